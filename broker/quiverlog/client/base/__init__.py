"""What all client code uses: commands, results, checks of arguments.

Owns the commands between operations and drivers. Imports no other package of the client.
"""
