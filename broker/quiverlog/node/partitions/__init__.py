"""One replica that is open on this broker: append, checks, flush, trim, cold reads, close.

Owns the state of each replica, in columns of several owners. Builds on `node.runtime`; must not
use the metadata image, other brokers.
"""
