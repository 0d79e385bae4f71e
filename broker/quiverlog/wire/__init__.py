"""The protocol: frames, typed messages, the table of APIs, a client's side of one connection.

Owns the messages between client and broker, and between brokers. Does no I/O: bytes come in and go
out. docs/protocol.md is generated from the tables here.
"""
