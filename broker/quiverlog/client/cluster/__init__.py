"""Cached metadata, routing of requests to brokers, retries, checks of answers.

Owns the client's metadata. Uses `client.base`. Does no I/O.
"""
