"""Consumers and bounded reads: positions, fetches, batches."""
