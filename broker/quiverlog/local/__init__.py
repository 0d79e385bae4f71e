"""Clusters of real broker processes on this machine, for development and for tests.

`quiverlog dev`, `quiverlog demo` and `quiverlog.testing` stand on it. It starts brokers as a person
would, from their command line, and talks to them as a client: it must not import what runs in them.
"""
