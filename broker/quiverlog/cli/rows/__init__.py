"""`produce`, `consume`, `sql`, `perf`: commands that write and read rows.

Imports `cli.formats` and `cli.console` only.
"""
