"""Clusters of real broker processes on this machine, for development and for tests.

Brokers are started from their command line and talked to as by a client: this package must not
import what runs in them.
"""
