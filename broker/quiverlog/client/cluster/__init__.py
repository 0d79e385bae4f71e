"""Cached metadata, routing of requests to brokers, retries, checks of answers. Does no I/O."""
