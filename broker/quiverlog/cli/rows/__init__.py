"""`produce`, `consume`, `sql`, `perf`: commands that write and read rows.

Owns their options. Stands on `cli.formats`.
"""
