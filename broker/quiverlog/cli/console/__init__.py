"""What all commands share: options, output, terminals, failures, waiting, the cluster's state.

Imports no other package of the command line.
"""
