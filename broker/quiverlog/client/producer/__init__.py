"""Producers: rows from `send` to their acknowledgement."""
