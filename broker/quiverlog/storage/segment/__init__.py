"""One segment file of a partition log: index, reading, scanning, damage.

Owns the bytes of `.log`, `.index` and `.epochs` files. Uses `storage.disk`.
"""
