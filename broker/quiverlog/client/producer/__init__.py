"""Producers: accumulation, sending, idempotence, futures.

Owns rows from `send` to their acknowledgement. Uses `client.drivers`.
"""
