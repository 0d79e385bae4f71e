"""Which partitions are on this broker, and how a request finds one.

Owns `reconcile`, the only place that opens, leads, follows and removes replicas, and the round of
retention. Uses `node.metadata`, `node.replication` and `node.controller`.
"""
