"""Both ends of replication: follower fetchers, the in-sync set, log starts of followers, repairs.

Owns a follower's requests and a leader's state of its followers. Uses `node.partitions`.
"""
