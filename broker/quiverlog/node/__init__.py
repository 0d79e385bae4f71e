"""A broker without I/O: events in, effects out.

State changes only in calls of `Node.handle_many`; each call brings the time.

    runtime < partitions < metadata | replication < controller < assignment
      < live_config < broker < apis < lifecycle, closing < node
"""
