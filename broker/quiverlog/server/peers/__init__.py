"""Connections to other brokers.

Owns one link per broker and purpose. Uses `server.net` (memory, peers' names).
"""
