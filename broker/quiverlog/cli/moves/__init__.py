"""Moving partitions between brokers: plans, their files, tables and progress.

Owns `partition reassign` and what the commands of topics and clusters use of it. Of `cli` it
imports `cli.console` only.
"""
