"""`quiverlog demo`: real flights through client, broker, disk, Spark, broker and client.

Owns the data, the run and its verdict. Uses the command line, the client and local clusters;
`query` is a program of its own, with Spark, that uses the connector.
"""
