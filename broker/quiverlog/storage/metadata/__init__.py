"""The metadata log on the disk: Raft entries, snapshots, term and vote.

Owns the files in `metadata/`. Uses `storage.disk`.
"""
