"""The broker as a process: sockets, threads, clocks, configuration, logs, metrics around one node.

Owns all I/O of a broker. Uses `node`.

    observe < config | net < peers | http* < process
"""
