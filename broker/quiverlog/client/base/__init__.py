"""What all client code uses: commands, results, checks of arguments.

Owns the language between operations and drivers. Stands on `wire` and on no other package of the
client.
"""
