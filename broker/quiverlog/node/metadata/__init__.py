"""The replicated metadata log: the Raft host, the image that its records make, proposals."""
