"""The disk: what is asked of one, and the real one.

Owns the interface `Disk`, which simulators implement as well, and its POSIX implementation.
Stands on no other package of storage.
"""
