"""Pure functions: what a majority of voters has granted or reached (paper, section 5)."""

from __future__ import annotations

from collections.abc import Collection, Iterable

__all__ = ["majority", "reached_by_majority", "votes_suffice"]


def majority(voter_count: int) -> int:
    return voter_count // 2 + 1


def votes_suffice(granted: Collection[object], voter_count: int) -> bool:
    assert len(granted) <= voter_count
    return voter_count > 0 and len(granted) >= majority(voter_count)


def reached_by_majority(values: Iterable[int]) -> int:
    descending = sorted(values, reverse=True)
    assert descending, "without voters nothing is reached"
    # In descending order, a majority has at least the value at index majority - 1.
    return descending[majority(len(descending)) - 1]
