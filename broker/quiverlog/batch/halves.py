"""Which row it is: found by halves, where something that is asked of many rows at once fails."""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["first_bad_row"]


def first_bad_row(count: int, is_good: Callable[[int, int], bool]) -> int:
    """The first of `count` rows, one of which is bad, that is.

    Args:
        is_good: of so many rows (the second number) from one on (the first).
    """
    assert count > 0, "one of the rows is bad"
    start, end = 0, count  # The rows before `start` are good, those before `end` are not.
    while end - start > 1:
        middle = (start + end) // 2
        if is_good(start, middle - start):
            start = middle
        else:
            end = middle
    return start
