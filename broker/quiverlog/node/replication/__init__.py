"""Both ends of replication: follower fetchers, the in-sync set, log starts of followers,
repairs.
"""
