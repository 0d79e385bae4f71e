"""The data directory as a whole: its lock, identity and marks, and the partitions' directories."""
