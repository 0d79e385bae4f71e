"""How many logs one job opens, and how many such jobs run side by side.

A log that is opened quickly has not waited for its disk. Several such jobs at once would only take
the interpreter from each other, at each of some thirty system calls, and take half as long again.
So they follow each other, and each opens twice as many logs as the one before it: to go to another
thread and back costs more than opening a log. Once a job that had the interpreter for itself was
slow, several small ones run side by side for a while, because they wait for the disk.

Must not know: what is opened.
"""

from __future__ import annotations

from typing import Final

from quiverlog.types import Now

__all__ = ["JOBS_IN_FLIGHT_MAX", "LOGS_PER_JOB_MAX", "OpeningPace"]

JOBS_IN_FLIGHT_MAX: Final = 4
"""Enough for the threads, few enough that a cold read does not stand behind thousands of logs."""
_QUICK_US: Final = 500
"""For each log: a job that is back by then has not waited for its disk."""
_PATIENCE_US: Final = 50_000
"""A job that is not back after so long is slow, unless it has more logs than that."""
_SIDE_BY_SIDE: Final = 16
"""So many jobs run side by side before the next one is timed alone."""
_LOGS_PER_JOB: Final = 32
"""Opening a log takes less than waking a thread and the loop for it."""
LOGS_PER_JOB_MAX: Final = 1024


class OpeningPace:
    """See the module docstring.

    Attributes:
        slow_us: when the one job under way counts as slow; None: none is timed.
    """

    __slots__ = ("_logs_per_job", "_quick_us", "_side_by_side", "slow_us")

    def __init__(self) -> None:
        self._logs_per_job = _LOGS_PER_JOB
        self._side_by_side = 0  # So many more jobs may run beside others.
        self._quick_us = 0
        self.slow_us: int | None = None

    def look(self, now: Now) -> None:
        """Time has passed: the job that is timed may be slow."""
        if self.slow_us is not None and self.slow_us <= now.mono_us:
            self._is_slow()

    def _is_slow(self) -> None:
        self.slow_us = None
        self._side_by_side = _SIDE_BY_SIDE
        self._logs_per_job = _LOGS_PER_JOB

    def may_start(self, in_flight: int) -> bool:
        """True when another job may begin beside those under way."""
        assert 0 <= in_flight <= JOBS_IN_FLIGHT_MAX
        return in_flight < JOBS_IN_FLIGHT_MAX and (not in_flight or self._side_by_side > 0)

    def logs_of_next(self, waiting: int) -> int:
        """How many of the logs that wait the next job opens."""
        assert waiting > 0
        # One by one where there are few, which may take long to recover.
        return min(self._logs_per_job, 1 + waiting // JOBS_IN_FLIGHT_MAX)

    def started(self, logs: int, in_flight: int, now: Now) -> bool:
        """A job with so many logs begins, beside others. True when it is timed: see `back`."""
        assert 0 < logs <= LOGS_PER_JOB_MAX
        if self._side_by_side:
            self._side_by_side -= 1
            return False
        if in_flight:
            return False
        self._quick_us = now.mono_us + _QUICK_US * logs
        self.slow_us = max(self._quick_us, now.mono_us + _PATIENCE_US)
        return True

    def back(self, now: Now) -> None:
        """The job that was timed is back."""
        if self.slow_us is None:
            return  # It counted as slow before.
        self.slow_us = None
        if now.mono_us > self._quick_us:
            self._is_slow()
        else:
            self._logs_per_job = min(2 * self._logs_per_job, LOGS_PER_JOB_MAX)
        assert _LOGS_PER_JOB <= self._logs_per_job <= LOGS_PER_JOB_MAX
