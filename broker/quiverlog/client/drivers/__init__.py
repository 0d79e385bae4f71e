"""Sockets: the asyncio driver, the blocking driver, reads of local files.

Owns the client's I/O with brokers, and no decisions.
"""
