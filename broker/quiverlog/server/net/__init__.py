"""Client connections: listeners, frames, replies, limits, memory.

Owns every socket that clients connect to. Stands on `server.observe`.
"""
