"""Both ends of a copy: what a follower asks for next, what a leader answers and learns from it.

Owns fetch sessions, the search for where two logs part, and the checks of a follower's entry.
Stands on `core.partition`. Must not know: files, connections, how rows are read.
"""
