"""Sockets: the asyncio driver, the blocking driver, reads of local files.

Owns all I/O of the client; decides nothing. Stands on `client.cluster` and `client.rows`.
"""
