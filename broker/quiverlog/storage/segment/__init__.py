"""One segment file of a partition log: index, reading, scanning, damage.

Owns the bytes of `.log`, `.index` and `.epochs` files. Stands on `storage.disk`. Must not know:
which segments make a log, what is flushed when.
"""
