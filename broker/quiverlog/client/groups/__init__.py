"""Members of consumer groups: membership, commits, and the consumers built on them.

Builds on `consumer`, whose core reads what is assigned; nothing but the clients imports it.
"""
