"""Which broker to ask: metadata, routing, retries, checks of answers.

Owns the client's picture of the cluster. Stands on `client.base`. Does no I/O.
"""
