"""The controller's side of partitions that await logs: hosts what brokers tell of their log ends.

Owns what was told, as long as this node decides in this term, and the election that follows when
enough is known (core/controller/elections.py, `longest_log`). While it is not, the log says who is
waited for, every ten seconds.

Must not know: how requests travel, how a broker knows where its logs end.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from quiverlog.core.controller.elections import deleted_below, longest_log, only_copy_lost
from quiverlog.core.controller.eligible import logs_needed
from quiverlog.core.controller.image import Image
from quiverlog.core.controller.log_ends import LogEnd, LogEnds, Said
from quiverlog.core.controller.records import Record
from quiverlog.core.controller.topic_image import PartitionImage
from quiverlog.errors import NotController
from quiverlog.node.jobs import Then
from quiverlog.node.metadata import Metadata
from quiverlog.node.outbox import Outbox
from quiverlog.node.quorum import Quorum
from quiverlog.types import Now
from quiverlog.wire.replica_messages import (
    PartitionLogStart,
    ReportLogEndsRequest,
    ReportLogEndsResponse,
)

__all__ = ["LogEndDecisions"]

_TELL_US: Final = 10_000_000
_NEVER_US: Final = -(2**62)

Key = tuple[bytes, int]


class LogEndDecisions:
    """See the module docstring.

    Args:
        is_heard: whether a broker has a session, as far as this controller knows.
    """

    __slots__ = ("_ends", "_is_heard", "_metadata", "_outbox", "_quorum", "_term", "_told_us")

    def __init__(
        self,
        quorum: Quorum,
        metadata: Metadata,
        outbox: Outbox,
        is_heard: Callable[[int, Now], bool],
    ) -> None:
        self._quorum = quorum
        self._metadata = metadata
        self._outbox = outbox
        self._is_heard = is_heard
        self._ends = LogEnds()
        self._term = 0  # In which this was told.
        self._told_us = _NEVER_US

    def decide(self, request: ReportLogEndsRequest, then: Then, now: Now) -> None:
        """Take what a broker tells, and elect where that is enough. `then` is called at once.

        Raises:
            NotController: another node decides, or nobody yet.
            StaleBrokerEpoch: the teller was registered anew.
        """
        self._follow_quorum()
        if not self._quorum.is_leading:
            raise NotController
        told = [
            Said(
                one.topic_id,
                one.partition,
                one.leader_epoch,
                LogEnd(one.last_epoch, one.end_offset, one.log_start_offset, one.is_offline),
            )
            for one in request.partitions
        ]
        pending = self._metadata.pending
        keys = self._ends.take(pending, request.broker_id, request.broker_epoch, told)
        records: list[Record] = []
        for one in told:
            records += only_copy_lost(pending, request.broker_id, one)
        lost = len(records)
        waiting: list[Key] = []
        starts: list[PartitionLogStart] = []
        for key in dict.fromkeys(keys):
            ends = self.of(pending, *key)
            elected = longest_log(pending, *key, ends, lambda one: self._is_heard(one, now))
            records += elected
            if elected:
                self._tell_elected(pending, key, ends)
            elif _partition(pending, key).awaits_logs:
                waiting.append(key)
                starts += _start(pending, key, ends, request.broker_id)
        assert len(records) + len(waiting) <= len(keys) + lost
        if waiting:
            self._tell_waiting(pending, waiting[0], now)
        if records:
            self._metadata.propose(records, now, _nobody_waits)
        then(ReportLogEndsResponse(starts=starts), None, now)

    def of(self, image: Image, topic_id: bytes, number: int) -> dict[int, LogEnd]:
        """What is known of the logs of a partition, by broker."""
        self._follow_quorum()
        return self._ends.of(image, topic_id, number)

    def _follow_quorum(self) -> None:
        term = self._quorum.leading_term
        if term != self._term:
            self._ends.clear()
            self._term = term

    # --- what is said --------------------------------------------------------------------------
    def _tell_elected(self, image: Image, key: Key, ends: dict[int, LogEnd]) -> None:
        self._outbox.log(
            "warning", "the longest log leads", partition=_name(image, key), logs=_shown(ends)
        )

    def _tell_waiting(self, image: Image, key: Key, now: Now) -> None:
        """One of them stands for all: what is missing is a broker."""
        if now.mono_us < self._told_us + _TELL_US:
            return
        self._told_us = now.mono_us
        topic, partition = image.topics_by_id[key[0]], _partition(image, key)
        ends = self.of(image, *key)
        self._outbox.log(
            "warning",
            "partitions wait for logs",
            leaderless=len(image.leaderless),
            partition=_name(image, key),
            logs=_shown(ends),
            needed=logs_needed(topic, partition),
            awaited=[n for n in partition.counted if n not in ends or not _may_lead(ends[n])],
            replaced=list(partition.replaced_disks),
        )


def _start(
    image: Image, key: Key, ends: dict[int, LogEnd], broker_id: int
) -> list[PartitionLogStart]:
    """Where this broker's log is to begin, if others know of rows in it that were deleted."""
    own = ends.get(broker_id)
    if own is None or not own.is_log or own.is_offline:
        return []
    offset = deleted_below(ends.values(), own)
    if offset <= own.log_start_offset:
        return []
    return [PartitionLogStart(*key, _partition(image, key).leader_epoch, offset)]


def _partition(image: Image, key: Key) -> PartitionImage:
    return image.topics_by_id[key[0]].partitions[key[1]]


def _name(image: Image, key: Key) -> str:
    return f"{image.topics_by_id[key[0]].name}-{key[1]}"


def _may_lead(end: LogEnd) -> bool:
    """Not before a restart, where the disk has failed."""
    return end.is_log and not end.is_offline


def _shown(ends: dict[int, LogEnd]) -> str:
    """Broker: leader epoch of the last row @ end."""
    return ", ".join(f"{n}: {one.last_epoch}@{one.end_offset}" for n, one in sorted(ends.items()))


def _nobody_waits(_result: object, _error: BaseException | None, _now: Now) -> None:
    """What failed is decided again with the next report, in two seconds."""
