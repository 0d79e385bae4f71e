"""`produce`, `consume`, `sql`, `perf`: commands that write and read rows.

Of `cli` it imports `cli.formats` and `cli.console` only.
"""
