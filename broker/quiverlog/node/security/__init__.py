"""Logins of connections and the decision what a connection may do.

Uses `runtime` and the metadata image, and no handler.
"""
