"""The rules of a cluster, without I/O: which broker leads, what is committed, what a topic may be.

Owns decisions. `controller` (topics, brokers, elections), `partition` (epochs, high watermark,
producers) and `raft` (the quorum) do not know each other and meet in `node`; `replication` (both
ends of a copy) stands on `partition`. Stands on `batch` and `wire`.
"""
