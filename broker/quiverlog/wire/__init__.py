"""The protocol: frames, typed messages, the table of APIs, a client's side of one connection.

Owns the messages between client and broker, and between brokers. Does no I/O: bytes come in and go
out. The tables in docs/protocol.md are generated from here.
"""
