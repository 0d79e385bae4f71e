"""One function per request type: the only place in the node that uses wire messages of clients.

Builds on `node.broker`; no part of the broker imports from here.
"""
