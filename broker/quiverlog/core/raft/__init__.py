"""Raft for the metadata log: votes, replication, voters, snapshots; messages in, a `Ready` out.

Owns one replica of the quorum. The duties of its host are listed in `raft`;
`node/metadata/quorum.py` performs them. Uses only bounds: no wire messages, no clock, no disk.
"""
