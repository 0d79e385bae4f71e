"""A broker without I/O: events in, effects out.

Owns what a broker decides; its state changes in calls of `Node.handle_many` only. Stands on
`storage` and `core`. Must not know: sockets, threads, clocks; each call brings the time.

    runtime < partitions < metadata | replication < controller < assignment
            < live_config < broker < apis < lifecycle, closing < node
"""
