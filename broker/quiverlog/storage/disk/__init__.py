"""The disk: the interface `Disk`, which simulators implement as well, and its POSIX implementation.

Uses no other package of storage.
"""
