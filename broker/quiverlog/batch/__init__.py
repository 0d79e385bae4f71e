"""The stored unit, an Arrow record batch: header, codec, schemas and their evolution, partitioner.

Owns how rows become bytes and bytes rows, and a broker's checks of a batch's header, time and bytes
before it stores it. Uses types, errors and limits.
"""
