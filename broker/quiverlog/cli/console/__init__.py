"""What all commands share: options, output, terminals, failures, waiting, the cluster's state.

Owns how a command reads words, prints results, and asks the brokers how the cluster is. Stands on
no other package of the command line.
"""
