"""Connections to other brokers.

Owns one link per broker and purpose. Stands on `server.net` (memory, peers' names).
"""
