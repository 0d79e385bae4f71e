"""One segment file of a partition log: index, reading, scanning, damage.

Owns the formats of `.log`, `.index` and `leader-epochs` files. Uses `storage.disk`.
"""
