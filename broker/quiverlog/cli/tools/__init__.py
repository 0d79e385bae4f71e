"""`broker`, `dev`, `doctor`, `dump-log`, `docs`, `profile`: commands about this machine.

Imports `cli.console` only.
"""
