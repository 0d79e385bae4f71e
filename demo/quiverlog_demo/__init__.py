"""`quiverlog demo`: real flights through client, broker, disk, Spark, broker and client.

Uses the command line, the client and local clusters; `query`, a program of its own, uses Spark and
the connector.
"""
