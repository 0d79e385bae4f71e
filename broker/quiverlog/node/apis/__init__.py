"""One function per request type: the only place in the node that knows wire messages of clients.

Owns the answers. Stands on `node.broker`; no part of the broker imports from here.
"""
