"""`topic` and `partition`: commands about topics and their partitions.

Owns how they are asked for and shown; the rules are the brokers'. Stands on `cli.moves` and
`cli.formats`.
"""
