"""The clocks of the process: monotonic for deadlines, the time of day for rows."""

from __future__ import annotations

import time

from quiverlog.types import Now

__all__ = ["monotonic_us", "read_clocks"]


def monotonic_us() -> int:
    return time.monotonic_ns() // 1000


def read_clocks() -> Now:
    # Called at every read of a socket: `Now(...)` would add a Python call.
    return tuple.__new__(Now, (time.monotonic_ns() // 1000, time.time_ns() // 1000))
