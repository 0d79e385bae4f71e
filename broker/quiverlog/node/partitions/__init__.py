"""One replica that is open on this broker: append, checks, flush, trim, cold reads, close.

Owns the files and the state of each replica. Builds on `node.runtime`; gets what it needs of the
metadata as arguments, and asks no other broker.
"""
