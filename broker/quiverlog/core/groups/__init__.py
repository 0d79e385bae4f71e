"""Consumer groups: members, assignments and committed offsets. Without I/O.

Owns the rows of `__groups` and the states that follow from them. The other cores are not used,
only floor 0.
"""
