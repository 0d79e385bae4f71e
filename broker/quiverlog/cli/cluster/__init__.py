"""`cluster`, `quorum` and `config`: commands about brokers.

Owns options and output; the rules are the brokers'. Imports `cli.moves` and `cli.console` only.
"""
