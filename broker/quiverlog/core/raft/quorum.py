"""What a majority of voters has granted or reached: pure functions over numbers.

Owns the counting rules of the paper's section 5. Without voters nothing is decided.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

__all__ = ["majority", "reached_by_majority", "votes_suffice"]


def majority(voter_count: int) -> int:
    """Return the smallest group size for which any two groups of voters share one."""
    return voter_count // 2 + 1


def votes_suffice(granted: Collection[object], voter_count: int) -> bool:
    assert len(granted) <= voter_count
    return voter_count > 0 and len(granted) >= majority(voter_count)


def reached_by_majority(values: Iterable[int]) -> int:
    """Return the largest number that a majority of these, one per voter, has reached."""
    descending = sorted(values, reverse=True)
    assert descending, "without voters nothing is reached"
    # In descending order, a majority has at least the value at index majority - 1.
    return descending[majority(len(descending)) - 1]
