"""Sockets: the asyncio driver, the blocking driver, reads of local files.

Owns all I/O of the client, and no decisions.
"""
