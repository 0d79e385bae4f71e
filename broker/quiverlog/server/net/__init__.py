"""Client connections: listeners, frames, replies, limits, memory.

Owns clients' connections, but for HTTP. Uses `server.observe`.
"""
