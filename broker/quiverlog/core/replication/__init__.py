"""Both ends of replication: a follower's next fetch, a leader's answer, and fetch sessions.

Owns the search for where two logs diverge, and the checks of a follower's fetch. Uses
`core.partition` and the messages of `wire`.
"""
