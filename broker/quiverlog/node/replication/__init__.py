"""Both ends of replication: follower fetchers, the in-sync set, log starts of followers, repairs.

Owns what a follower asks for and what a leader knows of its followers. Stands on
`node.partitions`. Must not know: how requests of clients are answered.
"""
