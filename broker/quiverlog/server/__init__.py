"""The broker as a process: sockets, threads, clocks, configuration, logs, metrics around one node.

Owns all I/O of a broker but that of its data, which is `storage`'s. Uses `node`.

    observe < config | net < peers | http* < process
"""
