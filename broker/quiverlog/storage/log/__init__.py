"""One partition's log over its segments: append, read, flush, trim, truncation, and the opening
after a clean stop or a crash."""
