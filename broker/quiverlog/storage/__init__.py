"""The files on disk: segments, partition logs, the metadata log, the data directory.

Owns every file in a broker's data directory. Uses `batch` and `core` (values); no clock, no thread,
no event loop: once a broker serves, what waits for the disk is a job that the node starts.

    disk < segment < log | metadata < directory
"""
