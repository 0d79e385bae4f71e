"""Waiting for a condition, never for a time: every test's own way to poll.

Owns the pace and the bound. Must not know what is waited for.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

__all__ = ["until"]

T = TypeVar("T")
_EVERY_S = 0.02


def until(found: Callable[[], T], what: str = "", *, timeout_s: float = 60.0) -> T:
    """What `found` gives as soon as it is true; fails, and names `what`, if it is not in time.

    It is asked once more when the time is up: a machine that stood still has its chance.
    """
    deadline_s = time.monotonic() + timeout_s
    while True:
        is_late = time.monotonic() >= deadline_s
        result = found()
        if result:
            return result
        assert not is_late, f"not within {timeout_s:g} s: {what or found}"
        time.sleep(_EVERY_S)
