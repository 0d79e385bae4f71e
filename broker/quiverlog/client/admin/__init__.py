"""Administration, as operations: topics, brokers, quorum, moves of partitions.

Owns their requests to brokers, and the results that callers get. Uses `client.cluster`.
"""
