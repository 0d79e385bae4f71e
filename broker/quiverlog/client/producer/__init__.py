"""Producers: accumulation, sending, idempotence, futures.

Owns rows from `send` to their acknowledgement. Stands on `client.drivers` and what is below it.
"""
