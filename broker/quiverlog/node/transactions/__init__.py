"""Transactions on this broker: partitions of the internal topics that it leads, each with a
machine, and the way of committed rows to their topics.

Builds on assignment, partitions and runtime; imports no request.
"""
