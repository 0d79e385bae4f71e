"""The data directory as a whole: its lock, identity and marks, and the partitions' directories.

Owns every name at the top of a data directory and in `data/`. Uses the logs of partitions and of
metadata.
"""
