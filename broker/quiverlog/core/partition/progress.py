"""One follower's progress, as its fetches report it to the leader.

Owns its positions, and when it last had all rows: at this fetch, if that asks for what comes after
the leader's end; at the fetch before, if this one asks for what comes after the end of that time.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from quiverlog.types import NO_EPOCH

__all__ = [
    "NEVER_FETCHED_EPOCH",
    "NEVER_US",
    "FollowerProgress",
    "FollowerReport",
    "FollowerSession",
]

NEVER_US: Final = -(2**62)
"""Before any moment: it never had all rows."""

NEVER_FETCHED_EPOCH: Final = -1
"""The broker epoch of a follower that has not asked under this leader epoch."""


class FollowerReport(NamedTuple):
    broker_id: int
    broker_epoch: int
    log_end_offset: int
    flushed_offset: int
    log_start_offset: int
    saved_epoch: int = NO_EPOCH


class FollowerSession:
    """The last fetch of a follower, for all partitions of its session."""

    __slots__ = ("fetched_us",)

    def __init__(self, fetched_us: int) -> None:
        self.fetched_us = fetched_us


class FollowerProgress:
    """`caught_up_us`: when it last had all rows; of in-sync members at least the election, or their
    joining."""

    __slots__ = (
        "_end_at_fetch",
        "_fetched_us",
        "broker_epoch",
        "broker_id",
        "caught_up_us",
        "flushed_offset",
        "known_us",
        "log_end_offset",
        "log_start_offset",
        "saved_epoch",
        "session",
    )

    def __init__(self, broker_id: int, caught_up_us: int, known_us: int = 0) -> None:
        self.broker_id = broker_id
        self.known_us = known_us
        self.broker_epoch = NEVER_FETCHED_EPOCH
        self.log_start_offset = 0
        self.log_end_offset = 0
        self.flushed_offset = 0
        self.saved_epoch = NO_EPOCH
        self.caught_up_us = caught_up_us
        self.session: FollowerSession | None = None
        self._end_at_fetch = -1
        self._fetched_us = NEVER_US

    @property
    def has_fetched(self) -> bool:
        return self.broker_epoch != NEVER_FETCHED_EPOCH

    @property
    def last_fetch_us(self) -> int:
        session = self.session
        return self._fetched_us if session is None else max(self._fetched_us, session.fetched_us)

    def fetched(self, report: FollowerReport, leader_end_offset: int, now_us: int) -> None:
        log_end_offset, broker_epoch = report.log_end_offset, report.broker_epoch
        assert report.broker_id == self.broker_id
        assert report.saved_epoch >= NO_EPOCH
        assert 0 <= log_end_offset <= leader_end_offset
        assert self._fetched_us <= now_us
        assert broker_epoch >= self.broker_epoch
        if broker_epoch != self.broker_epoch:
            self._end_at_fetch = -1  # The broker restarted, perhaps with an empty disk.
        if log_end_offset >= leader_end_offset:
            self.caught_up_us = max(self.caught_up_us, now_us)
        elif 0 <= self._end_at_fetch <= log_end_offset:
            self.caught_up_us = max(self.caught_up_us, self._fetched_us)
        self._end_at_fetch = leader_end_offset
        self._fetched_us = now_us
        self.broker_epoch = broker_epoch
        self.log_end_offset = log_end_offset
        self.flushed_offset = min(report.flushed_offset, log_end_offset)
        self.log_start_offset = report.log_start_offset
        self.saved_epoch = report.saved_epoch
        assert self.flushed_offset <= self.log_end_offset

    def leader_grows(self, leader_end_offset: int) -> None:
        assert self.log_end_offset <= leader_end_offset, "a leader's log is never cut"
        # At the end it no longer names the partition in its fetches: each of its session counts.
        if self.session is not None and self.log_end_offset >= leader_end_offset:
            self.caught_up_us = max(self.caught_up_us, self.session.fetched_us)

    def is_caught_up(self, leader_end_offset: int, lag_max_us: int, now_us: int) -> bool:
        if self.has_fetched and self.log_end_offset >= leader_end_offset:
            return True
        return now_us - self.caught_up_us <= lag_max_us
