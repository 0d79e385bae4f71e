"""Partitions of the internal topics that this broker leads, each with a machine.

Builds on assignment, partitions and runtime; imports no request.
"""
