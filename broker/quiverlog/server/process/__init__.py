"""The broker process: start, signals, threads, jobs, the loop around the node, stop.

Owns the life of all parts. Uses every other package of the server.
"""
