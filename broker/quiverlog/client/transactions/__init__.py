"""Transactions of a client: rows that are staged, and one commit that names them.

Builds on `producer`, whose machine stages the rows; nothing but the clients imports it.
"""
