"""The replicated metadata log: the Raft host, the image that its records make, proposals.

Owns this node's replica of the quorum, and the image.
"""
