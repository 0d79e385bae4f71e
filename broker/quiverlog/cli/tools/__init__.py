"""`broker`, `dev`, `doctor`, `dump-log`, `docs`, `profile`: commands about this machine.

Owns their options and output. Stands on `cli.console`.
"""
