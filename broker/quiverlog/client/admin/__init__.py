"""Administration: topics, brokers, quorum, moves of partitions.

Owns the questions about them, as operations. Stands on `client.cluster` and `client.rows`.
"""
