"""What a majority of voters says. Pure functions over plain numbers.

Owns the counting rules of the paper's section 5: who has won, how far a majority has come, when
a majority was last heard. No voters at all decide nothing: such a replica only follows.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

__all__ = ["majority", "reached_by_majority", "votes_suffice"]


def majority(voter_count: int) -> int:
    """So many of `voter_count` that any two such groups share one."""
    return voter_count // 2 + 1


def votes_suffice(granted: Collection[object], voter_count: int) -> bool:
    """True when these are enough to win."""
    assert len(granted) <= voter_count
    return voter_count > 0 and len(granted) >= majority(voter_count)


def reached_by_majority(values: Iterable[int]) -> int:
    """The largest number that a majority of these, one per voter, has reached."""
    descending = sorted(values, reverse=True)
    assert descending, "without voters nothing is reached"
    return descending[majority(len(descending)) - 1]
