"""The clocks of the process, read in one place.

Owns both readings: the clock that only grows, for deadlines, and the time of day, for rows.
"""

from __future__ import annotations

import time

from quiverlog.types import Now

__all__ = ["monotonic_us", "read_clocks"]


def monotonic_us() -> int:
    """Return this moment on the clock that only grows."""
    return time.monotonic_ns() // 1000


def read_clocks() -> Now:
    """Return this moment on both clocks."""
    # At every read of a socket: without the call that a named tuple's constructor is.
    return tuple.__new__(Now, (time.monotonic_ns() // 1000, time.time_ns() // 1000))
