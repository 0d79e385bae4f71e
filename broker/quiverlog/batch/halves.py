"""Binary search for the bad row, where a check of many rows fails."""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["first_bad_row"]


def first_bad_row(count: int, is_good: Callable[[int, int], bool]) -> int:
    assert count > 0, "one of the rows is bad"
    start, end = 0, count  # The rows before `start` are good, those before `end` are not.
    while end - start > 1:
        middle = (start + end) // 2
        if is_good(start, middle - start):
            start = middle
        else:
            end = middle
    return start
