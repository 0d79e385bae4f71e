"""One partition log over its segments.

Owns append, read, flush, trim, truncation, and the opening of a log after a clean stop or a crash.
Uses `storage.segment` and `storage.disk`.
"""
