"""One partition log over its segments.

Owns append, read, flush, trim, truncation, and the opening of a log after a clean stop or a
crash. Stands on `storage.segment` and `storage.disk`. Must not know: leaders, replicas, requests.
"""
