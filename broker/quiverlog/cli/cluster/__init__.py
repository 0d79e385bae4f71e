"""`cluster`, `quorum` and `config`: commands about brokers.

Owns options and output. Of `cli` it imports `cli.moves` and `cli.console` only.
"""
