"""A broker's configuration: keys, files, environment, flags, reload.

Owns where values come from. Stands on `server.observe`. Must not know: sockets, the node.
"""
