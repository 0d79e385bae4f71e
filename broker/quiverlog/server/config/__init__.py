"""A broker's configuration: keys, files, environment, flags, reload.

Owns where values come from. Uses `server.observe`.
"""
