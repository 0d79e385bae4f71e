"""Client connections: listeners, frames, replies, limits, memory.

Owns every socket that clients connect to. Uses `server.observe`.
"""
