"""Where replicas lie, without I/O: of new partitions (`placement`), and plans of moves (`moves`).

Owns the choice of brokers by rack, host and what each holds. The controller places new partitions;
the command line plans moves, which the controller then checks. Uses only errors and bounds.
"""
