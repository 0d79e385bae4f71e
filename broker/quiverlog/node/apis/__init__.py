"""One function per request type.

Builds on `node.broker`; no part of the broker imports from here.
"""
