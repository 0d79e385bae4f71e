"""`topic` and `partition`: commands about topics and their partitions.

Owns options and output; the rules are the brokers'. Imports `cli.moves`, `cli.formats` and
`cli.console` only.
"""
