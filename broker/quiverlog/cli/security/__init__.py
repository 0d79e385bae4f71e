"""`quiverlog user`, `token` and `whoami`.

Passwords are read from files, the environment or the terminal, never from the command line.
"""
