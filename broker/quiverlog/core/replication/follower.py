"""A follower's copy of one partition: the next fetch, and how an answer changes the copy.

A fetch names the copy's end and the newest epoch in its list, so every fetch checks whether the
logs agree up to there; the answer is rows, or where the logs diverge.

    WAITING ──a leader──▶ ASKING ──they agree──▶ FETCHING
                           ▲ │                       │
                           │ └──they do not──▶ CUTTING ◀──they do not──┘
                           └──────cut: asked again──┘
    ASKING, FETCHING ──the leader's rows begin after the end──▶ SKIPPING ──▶ ASKING
    ASKING, FETCHING ──error, or over its quota──▶ FAILED ──retry deadline──▶ ASKING
    each ──another leader, or none──▶ ASKING, WAITING (from CUTTING, SKIPPING: when that is done)
    each ──its disk failed──▶ OFFLINE, for good
"""

from __future__ import annotations

import enum
from typing import Final, NamedTuple, Protocol

from quiverlog.core.replication.divergence import Epochs
from quiverlog.errors import LogTruncated, OffsetOutOfRange, UnknownLeaderEpoch
from quiverlog.types import NO_EPOCH
from quiverlog.wire.replica_messages import ReplicaFetchPartition, ReplicaFetchResult

__all__ = ["LEGAL", "Action", "CopiedLog", "Cut", "Follower", "Phase", "Skip", "Take", "cut_at"]

_BACKOFF_US_MIN: Final = 50_000
_BACKOFF_US_MAX: Final = 2_000_000


class Phase(enum.Enum):
    WAITING = "waiting"
    ASKING = "asking"
    CUTTING = "cutting"
    SKIPPING = "skipping"
    FETCHING = "fetching"
    FAILED = "failed"
    OFFLINE = "offline"


LEGAL: Final[dict[Phase, frozenset[Phase]]] = {
    Phase.WAITING: frozenset((Phase.ASKING, Phase.OFFLINE)),
    Phase.ASKING: frozenset(
        (
            Phase.WAITING,
            Phase.CUTTING,
            Phase.SKIPPING,
            Phase.FETCHING,
            Phase.FAILED,
            Phase.OFFLINE,
        )
    ),
    Phase.CUTTING: frozenset((Phase.WAITING, Phase.ASKING, Phase.OFFLINE)),
    Phase.SKIPPING: frozenset((Phase.WAITING, Phase.ASKING, Phase.OFFLINE)),
    Phase.FETCHING: frozenset(
        (
            Phase.WAITING,
            Phase.ASKING,
            Phase.CUTTING,
            Phase.SKIPPING,
            Phase.FAILED,
            Phase.OFFLINE,
        )
    ),
    Phase.FAILED: frozenset((Phase.WAITING, Phase.ASKING, Phase.OFFLINE)),
    Phase.OFFLINE: frozenset(),
}


class Cut(NamedTuple):
    """Cut rows and epochs from `offset` on, then call `cut`."""

    offset: int


class Skip(NamedTuple):
    """Drop all rows and begin at `offset`, then call `cut`."""

    offset: int


class Take(NamedTuple):
    """Append the rows of the result, then take its high watermark and log start."""

    result: ReplicaFetchResult


Action = Cut | Skip | Take


class CopiedLog(Protocol):
    @property
    def log_start_offset(self) -> int: ...

    @property
    def log_start_saved(self) -> int:
        """Rows below it never come back."""

    @property
    def log_end_offset(self) -> int: ...

    @property
    def flushed_offset(self) -> int: ...

    @property
    def high_watermark(self) -> int: ...

    @property
    def saved_epoch(self) -> int:
        """The newest epoch of the list on the disk, if that is up to date."""

    @property
    def readers_wait(self) -> bool:
        """True when a reader waits for rows to become readable."""

    @property
    def epochs(self) -> Epochs: ...


def cut_at(
    epochs: Epochs, log_end_offset: int, diverging_epoch: int, diverging_end_offset: int
) -> int:
    assert log_end_offset >= 0
    epoch, end_offset = epochs.end_offset_for(diverging_epoch)
    # The epoch is not in this list: only the newest older one may agree. The next fetch checks it
    # again, until both logs have the epoch that the leader names (KIP-279).
    if epoch != diverging_epoch and end_offset >= 0:
        return min(end_offset, log_end_offset)
    if end_offset >= 0:
        diverging_end_offset = min(end_offset, diverging_end_offset)
    return min(diverging_end_offset, log_end_offset)


class Follower:
    """The copy changes only by an `Action`, a flush or a trim.

    `recheck`: the leader sent damaged rows, and should check its disk.
    """

    __slots__ = (
        "_failures", "_leader_epoch", "_log", "_reported", "has_leader", "phase", "recheck",
        "rests", "retry_us",
    )  # fmt: skip

    def __init__(self, log: CopiedLog) -> None:
        self._log = log
        self._leader_epoch = NO_EPOCH
        self._failures = 0
        # End, flushed and start offset and saved epoch of the last fetch.
        self._reported = (-1, -1, -1, NO_EPOCH)
        self.phase = Phase.WAITING
        self.has_leader = False
        self.rests = False
        self.retry_us = 0
        self.recheck = False

    @property
    def may_fetch(self) -> bool:
        return self.phase is Phase.ASKING or self.phase is Phase.FETCHING

    @property
    def is_busy(self) -> bool:
        return self.phase is Phase.CUTTING or self.phase is Phase.SKIPPING

    def _become(self, phase: Phase) -> None:
        assert phase in LEGAL[self.phase], f"{self.phase.value} to {phase.value}"
        self.phase = phase
        self.rests = False

    # --- the leader ----------------------------------------------------------------------------
    def led_by(self, leader_epoch: int, *, has_leader: bool) -> None:
        assert leader_epoch >= self._leader_epoch
        if (leader_epoch, has_leader) == (self._leader_epoch, self.has_leader):
            return
        self._leader_epoch = leader_epoch
        self.has_leader = has_leader
        self._failures = 0
        if not self.is_busy and self.phase is not Phase.OFFLINE:
            self._begin()
        assert self.has_leader or not self.may_fetch

    def _begin(self) -> None:
        phase = Phase.ASKING if self.has_leader else Phase.WAITING
        if self.phase is not phase:
            self._become(phase)
        assert self.may_fetch == self.has_leader

    # --- asking --------------------------------------------------------------------------------
    @property
    def has_news(self) -> bool:
        log = self._log
        return self._reported != self._positions(log)

    @staticmethod
    def _positions(log: CopiedLog) -> tuple[int, int, int, int]:
        assert log.flushed_offset <= log.log_end_offset
        assert log.saved_epoch >= NO_EPOCH
        return (log.log_end_offset, log.flushed_offset, log.log_start_saved, log.saved_epoch)

    @property
    def has_new_start(self) -> bool:
        return self._reported[2] != self._log.log_start_saved

    def fetch_entry(self, topic_id: bytes, partition: int) -> ReplicaFetchPartition:
        assert self.may_fetch
        assert self._leader_epoch != NO_EPOCH, "a leader is known"
        log = self._log
        assert log.log_start_offset <= log.log_end_offset
        # An empty copy has nothing to agree upon: its newest epoch is of rows that it no longer
        # has, and may have ended below its start. No cut would change that.
        is_empty = log.log_start_offset == log.log_end_offset
        self._reported = self._positions(log)
        return ReplicaFetchPartition(
            topic_id,
            partition,
            self._leader_epoch,
            log.log_end_offset,
            NO_EPOCH if is_empty else log.epochs.latest()[0],
            log.flushed_offset,
            log.log_start_saved,
            self.recheck,
            log.readers_wait,
            log.saved_epoch,
        )

    def answered(self, result: ReplicaFetchResult, now_us: int) -> Action | None:
        if not self.may_fetch:
            return None  # Asked before an error, a cut, or a change of the leader.
        if result.leader_epoch not in (self._leader_epoch, NO_EPOCH):
            # Asked under another leader epoch; or the leader has no metadata of this one yet, and
            # will not send an update by itself.
            if result.error_code == UnknownLeaderEpoch.code:
                self.failed(now_us)
            return None
        log = self._log
        if result.error_code == LogTruncated.code:
            if result.diverging_epoch == NO_EPOCH:
                # The leader has no epoch as new as this log's: only rows below the high watermark
                # surely agree.
                offset = log.high_watermark
            else:
                offset = cut_at(
                    log.epochs,
                    log.log_end_offset,
                    result.diverging_epoch,
                    result.diverging_end_offset,
                )
            # By epochs, not by the high watermark, which may lag behind rows that are committed
            # (KIP-101). The list of epochs is cut even where no row is: after two elections without
            # a row the same answer would come for ever (KAFKA-10706).
            self._become(Phase.CUTTING)
            offset = max(offset, log.log_start_offset)
            assert offset <= log.log_end_offset, "a cut adds no rows"
            return Cut(offset)
        if result.error_code == OffsetOutOfRange.code:
            if result.log_start_offset > log.log_end_offset:
                self._become(Phase.SKIPPING)
                return Skip(result.log_start_offset)
            self.failed(now_us)
            return None
        if result.error_code:
            self.failed(now_us)
            return None
        if self.phase is Phase.ASKING:
            self._become(Phase.FETCHING)
        self._failures = 0
        assert self.phase is Phase.FETCHING
        assert not self.is_busy, "nothing is appended to a log that is being cut"
        return Take(result)

    def rows_of(self, epoch: int) -> Cut | None:
        """Return a cut if rows of this older epoch cannot follow the list's newest epoch."""
        log = self._log
        newest, begins_at = log.epochs.latest()
        assert self.may_fetch, "rows are an answer"
        # An empty copy that once led without writing a row has a newer epoch in its list, under
        # which the rows would be refused for ever.
        is_empty = log.log_start_offset == log.log_end_offset
        if not is_empty or epoch >= newest or begins_at < log.log_end_offset:
            return None
        self._become(Phase.CUTTING)
        assert self.is_busy
        return Cut(log.log_end_offset)

    # --- what came of it -----------------------------------------------------------------------
    def cut(self) -> None:
        """Record that the log was cut or skipped: ask again whether the logs agree."""
        assert self.is_busy
        self._begin()
        assert not self.is_busy

    def rest(self, until_us: int) -> None:
        assert self.may_fetch, "only a copy that asks can pause"
        self._become(Phase.FAILED)
        self.rests = True
        self.retry_us = until_us

    def rest_ends(self, now_us: int) -> None:
        assert self.rests
        self.retry_us = min(self.retry_us, now_us)

    def failed(self, now_us: int) -> None:
        self._become(Phase.FAILED)
        backoff_us = min(_BACKOFF_US_MIN << min(self._failures, 16), _BACKOFF_US_MAX)
        self._failures += 1
        self.retry_us = now_us + backoff_us
        assert not self.may_fetch
        assert self.retry_us > now_us, "a leader is not asked without a pause"

    def retry(self) -> None:
        assert self.phase is Phase.FAILED
        self._begin()

    def went_offline(self) -> None:
        if self.phase is not Phase.OFFLINE:
            self._become(Phase.OFFLINE)
