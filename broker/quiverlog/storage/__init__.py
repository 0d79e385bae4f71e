"""The files on disk: segments, partition logs, the metadata log, the data directory.

Owns every file of a broker. Uses `batch`, `wire` (encodings) and `core` (values); no clock, no
thread, no event loop: what waits for the disk is a job that the node runs.

    disk < segment < log | metadata < directory
"""
