"""`broker`, `dev`, `doctor`, `dump-log`, `docs`, `profile`: commands about this machine.

Of `cli` it imports `cli.console` only.
"""
