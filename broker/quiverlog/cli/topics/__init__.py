"""`topic` and `partition`: commands about topics and their partitions.

Owns options and output. Of `cli` it imports `cli.moves`, `cli.formats` and `cli.console` only.
"""
