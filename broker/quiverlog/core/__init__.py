"""The rules of a cluster, without I/O: which broker leads, what is committed, what a topic may be.

Owns decisions, in packages that do not know each other and meet in `node`: `controller` (topics,
brokers, elections), `partition` (epochs, high watermark, producers), `raft` (the quorum),
`replication` (both ends of a copy). Stands on `batch` and `wire`.
"""
