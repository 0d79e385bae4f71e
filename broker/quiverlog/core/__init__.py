"""The rules of a cluster, without I/O: elections, commit rules, topics, brokers.

Owns decisions. `controller` (topics, brokers, elections), `partition` (epochs, high watermark,
producers) and `raft` (the quorum) do not import each other and meet in `node`; `replication` (both
ends of a copy) uses `partition`, `controller` uses `placement` (of new partitions; the command line
plans moves with it). Uses `batch` and `wire`.
"""
