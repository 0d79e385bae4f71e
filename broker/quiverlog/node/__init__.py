"""A broker as one machine: events in, effects out; files only through the `Disk` handed in.

State changes only in calls of `Node.start` and `Node.handle_many`; each brings the time.

    runtime < security < partitions < metadata | replication < controller < assignment
      < live_config < broker < apis < lifecycle, closing < node
"""
