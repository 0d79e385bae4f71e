"""Consumers and bounded reads: positions, fetches, batches.

Owns offsets from the caller's choice to the last row. Uses `client.drivers`.
"""
