"""Waiting for a condition, never for a time: every test's own way to poll.

Owns the pace and the bounds. Not here: what is waited for.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import TypeVar

__all__ = ["slack", "until"]

T = TypeVar("T")
_EVERY_S = 0.05


def slack() -> float:
    """Multiplies a budget in seconds, which is for a machine of one's own, by others' load."""
    return max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


def until(found: Callable[[], T], what: str = "", *, timeout_s: float = 60.0) -> T:
    """What `found` gives as soon as it is true; fails, and names `what`, if it is not in time.

    It is asked once more when the time is up: a machine that was paused has its chance.
    """
    deadline_s = time.monotonic() + timeout_s
    while True:
        is_late = time.monotonic() >= deadline_s
        result = found()
        if result:
            return result
        assert not is_late, f"not within {timeout_s:g} s: {what or found}"
        time.sleep(_EVERY_S)
