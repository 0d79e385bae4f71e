"""Raft for the metadata log: votes, replication, voters, snapshots; messages in, a `Ready` out.

Owns one replica of the quorum. The duties of its host stand in `raft`; `node/metadata/quorum.py`
performs them. Stands on bounds and on itself alone: no messages of the wire, no clock, no disk.
"""
