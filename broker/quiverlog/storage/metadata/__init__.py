"""The metadata log on the disk: Raft entries, snapshots, term and vote.

Owns the files in `metadata/`. Stands on `storage.disk`. Must not know: what records mean, which
node leads.
"""
