"""`cluster`, `quorum` and `config`: commands about brokers.

Owns how they are asked for and shown; the rules are the brokers'. Stands on `cli.moves`.
"""
