"""The stored unit, an Arrow record batch: header, codec, schemas and their evolution, partitioner.

Owns how rows become bytes and bytes rows, and every check that a batch passes before a broker
stores it. Uses types, errors and limits.
"""
