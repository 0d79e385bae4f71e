"""Which partitions are on this broker, and how a request finds one.

Owns the replicas, `reconcile` and the rounds of retention.
"""
