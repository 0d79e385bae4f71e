"""Moving partitions between brokers: plans, their files, tables and progress.

Owns `partition reassign` and what the commands of topics and clusters use of it. Imports
`cli.console` only.
"""
