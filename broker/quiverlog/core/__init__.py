"""The rules of a cluster, without I/O: elections, commit rules, topics, brokers.

Owns decisions. `controller`, `partition`, `raft` and `transactions` do not import each other and
meet in `node`; `replication` uses `partition`, `controller` uses `placement`. Uses `batch` and
`wire`.
"""
