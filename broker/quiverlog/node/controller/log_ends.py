"""Log ends of partitions without a leader: reported by brokers, used by the controller.

A broker reports logs that do not change, soon after a change of the metadata and every two seconds.
The controller keeps reports of its own term, and elects the longest log when enough have arrived.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import islice
from typing import Final, Protocol

from quiverlog.core.controller.elections import deleted_below, longest_log, only_copy_lost
from quiverlog.core.controller.eligible import logs_needed
from quiverlog.core.controller.image import Image
from quiverlog.core.controller.log_ends import MISSING, UNREADABLE, LogEnd, LogEndReport, LogEnds
from quiverlog.core.controller.records import Record
from quiverlog.core.controller.topic_image import PartitionImage
from quiverlog.errors import (
    NotController,
    OutcomeUnknown,
    PeerUnreachable,
    QuiverlogError,
    StaleBrokerEpoch,
)
from quiverlog.limits import ALTER_PARTITION_ENTRIES_MAX, BROKER_RETRY_MS
from quiverlog.node.metadata.metadata import Metadata
from quiverlog.node.metadata.quorum import Quorum
from quiverlog.node.partitions.offline import Offline, may_be_made
from quiverlog.node.partitions.replica import Replica
from quiverlog.node.runtime.jobs import Then
from quiverlog.node.runtime.metadata_view import MetadataView
from quiverlog.node.runtime.outbox import Outbox
from quiverlog.types import NO_EPOCH, Now
from quiverlog.wire.replica_messages import (
    PartitionLogEnd,
    PartitionLogStart,
    ReportLogEndsRequest,
    ReportLogEndsResponse,
)

__all__ = ["Copies", "LogEndDecisions", "LogEndReports", "log_end"]


_LOG_PAUSE_US: Final = 10_000_000
_NEVER_US: Final = -(2**62)

Key = tuple[bytes, int]


class LogEndDecisions:
    """The controller's part; `has_session`: whether a broker has a session with this controller."""

    __slots__ = ("_ends", "_has_session", "_logged_us", "_metadata", "_outbox", "_quorum", "_term")

    def __init__(
        self,
        quorum: Quorum,
        metadata: Metadata,
        outbox: Outbox,
        has_session: Callable[[int, Now], bool],
    ) -> None:
        self._quorum = quorum
        self._metadata = metadata
        self._outbox = outbox
        self._has_session = has_session
        self._ends = LogEnds()
        self._term = 0  # In which the last message was logged.
        self._logged_us = _NEVER_US

    def decide(self, request: ReportLogEndsRequest, then: Then, now: Now) -> None:
        """Record a broker's report, and elect a leader where possible. Calls `then` at once.

        Raises:
            NotController: this node is not the controller.
            StaleBrokerEpoch: the sender has registered again.
        """
        self._follow_quorum()
        if not self._quorum.is_leading:
            raise NotController
        reports = [
            LogEndReport(
                one.topic_id,
                one.partition,
                one.leader_epoch,
                LogEnd(one.last_epoch, one.end_offset, one.log_start_offset, one.is_offline),
            )
            for one in request.partitions
        ]
        pending = self._metadata.pending
        keys = self._ends.take(pending, request.broker_id, request.broker_epoch, reports)
        records: list[Record] = []
        for one in reports:
            records += only_copy_lost(pending, request.broker_id, one)
        lost = len(records)
        waiting: list[Key] = []
        starts: list[PartitionLogStart] = []
        for key in dict.fromkeys(keys):
            ends = self.of(pending, *key)
            elected = longest_log(pending, *key, ends, lambda one: self._has_session(one, now))
            records += elected
            if elected:
                self._log_elected(pending, key, ends)
            elif _partition(pending, key).awaits_logs:
                waiting.append(key)
                starts += _start(pending, key, ends, request.broker_id)
        assert len(records) + len(waiting) <= len(keys) + lost
        if waiting:
            self._log_waiting(pending, waiting[0], now)
        if records:
            self._metadata.propose(records, now, _ignore_outcome)
        then(ReportLogEndsResponse(starts=starts), None, now)

    def of(self, image: Image, topic_id: bytes, number: int) -> dict[int, LogEnd]:
        self._follow_quorum()
        return self._ends.of(image, topic_id, number)

    def _follow_quorum(self) -> None:
        term = self._quorum.leading_term
        if term != self._term:
            self._ends.clear()
            self._term = term

    # --- logs ----------------------------------------------------------------------------------
    def _log_elected(self, image: Image, key: Key, ends: dict[int, LogEnd]) -> None:
        self._outbox.log(
            "warning", "the longest log leads", partition=_name(image, key), logs=_shown(ends)
        )

    def _log_waiting(self, image: Image, key: Key, now: Now) -> None:
        if now.mono_us < self._logged_us + _LOG_PAUSE_US:
            return
        self._logged_us = now.mono_us
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
    """Return where this broker's log must begin, if others report rows in it as deleted."""
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
    """Return False for a failed disk, which cannot lead before a restart."""
    return end.is_log and not end.is_offline


def _shown(ends: dict[int, LogEnd]) -> str:
    """Return "broker: leader epoch of the last row @ end" of each."""
    return ", ".join(f"{n}: {one.last_epoch}@{one.end_offset}" for n, one in sorted(ends.items()))


def _ignore_outcome(_result: object, _error: BaseException | None, _now: Now) -> None:
    """Do nothing: the next report, in two seconds, decides again."""


_AGAIN_US: Final = 2_000_000
_PAUSE_US: Final = BROKER_RETRY_MS * 1000
_LOOKED_AT_MAX: Final = 10 * ALTER_PARTITION_ENTRIES_MAX
"""Partitions that one call visits: most may be of other brokers."""
_OFTEN: Final = (NotController, OutcomeUnknown, PeerUnreachable, StaleBrokerEpoch)
"""Passing reasons for a controller not to accept reports."""


class Copies(Protocol):
    """The replicas here: the open ones, and those that cannot be opened."""

    @property
    def offline(self) -> Mapping[Key, Offline]:
        """Those that cannot be opened, and why."""

    def find(self, key: Key) -> Replica | None: ...


class LogEndReports:
    """The broker's part: reports of its replicas whose partitions have no leader.

    Args:
        broker_epoch: of this broker's registration; negative: it has none.
        ask: sends to the controller.
        deleted: called for rows of a log here that another broker's log reports as deleted.
    """

    __slots__ = (
        "_ask",
        "_broker_epoch",
        "_copies",
        "_deleted",
        "_in_flight",
        "_lost_us",
        "_metadata",
        "_node_id",
        "_outbox",
        "_reported_us",
        "_reported_version",
        "_skip",
    )  # fmt: skip

    def __init__(
        self,
        node_id: int,
        metadata: MetadataView,
        copies: Copies,
        broker_epoch: Callable[[], int],
        ask: Callable[[ReportLogEndsRequest, Then, Now], None],
        deleted: Callable[[Key, int, Now], None],
        outbox: Outbox,
    ) -> None:
        self._node_id = node_id
        self._metadata = metadata
        self._copies = copies
        self._broker_epoch = broker_epoch
        self._ask = ask
        self._deleted = deleted
        self._outbox = outbox
        self._in_flight: object = None
        self._lost_us = 0  # When lost partitions that are led here are reported next.
        self._reported_us = 0
        self._reported_version = -1
        self._skip = 0  # Where the next call begins among the partitions without a leader.

    def next_us(self) -> int | None:
        image = self._metadata.image
        if not image.leaderless or self._in_flight is not None or not self._is_counted(image):
            return None
        is_news = image.version != self._reported_version or self._skip
        # Again and again: a new controller has no reports.
        return self._reported_us + (_PAUSE_US if is_news else _AGAIN_US)

    def _is_counted(self, image: Image) -> bool:
        """Return whether the controller counts this broker's logs: not while it is fenced."""
        broker = image.brokers.get(self._node_id)
        return broker is not None and not broker.fenced and self._broker_epoch() >= 0

    def run(self, now: Now) -> None:
        due_us = self.next_us()
        if due_us is None or now.mono_us < due_us:
            self._report_lost(now)
            return
        image = self._metadata.image
        self._reported_us, self._reported_version = now.mono_us, image.version
        entries = self._entries(image)
        assert len(entries) <= ALTER_PARTITION_ENTRIES_MAX
        if entries:
            self._report(entries, now)

    def _report(self, entries: list[PartitionLogEnd], now: Now) -> None:
        assert self._in_flight is None, "one request at a time"
        asked = self._in_flight = object()
        request = ReportLogEndsRequest(broker_id=self._node_id, broker_epoch=self._broker_epoch())
        request.partitions = entries

        def then(answer: object, error: BaseException | None, now: Now) -> None:
            if self._in_flight is not asked:
                return
            self._in_flight = None
            if error is None:
                assert isinstance(answer, ReportLogEndsResponse)
                self._give_up(answer, now)
            elif not isinstance(error, _OFTEN):
                self._outbox.log("warning", "controller refused log ends", why=str(error))

        try:
            self._ask(request, then, now)
        except QuiverlogError as error:
            then(None, error, now)

    def _give_up(self, answer: ReportLogEndsResponse, now: Now) -> None:
        """Delete rows that were deleted while this broker was away: then its log may lead."""
        image = self._metadata.image
        for one in answer.starts:
            key = (one.topic_id, one.partition)
            if key in image.leaderless and self._is_of(image, key, one.leader_epoch):
                self._deleted(key, one.log_start_offset, now)
                self._reported_version = -1  # Report it again, soon.

    @staticmethod
    def _is_of(image: Image, key: Key, leader_epoch: int) -> bool:
        return image.topics_by_id[key[0]].partitions[key[1]].leader_epoch == leader_epoch

    def _entries(self, image: Image) -> list[PartitionLogEnd]:
        """Return some reports; a later call continues after them."""
        entries: list[PartitionLogEnd] = []
        begin = self._skip if self._skip < len(image.leaderless) else 0
        looked_at = begin
        for topic_id, number in islice(image.leaderless, begin, begin + _LOOKED_AT_MAX):
            if len(entries) == ALTER_PARTITION_ENTRIES_MAX:
                break
            looked_at += 1
            partition = image.topics_by_id[topic_id].partitions[number]
            end = self._end((topic_id, number), partition)
            if end is not None:
                entries.append(PartitionLogEnd(topic_id, number, partition.leader_epoch, *end))
        self._skip = looked_at if looked_at < len(image.leaderless) else 0
        return entries

    def _report_lost(self, now: Now) -> None:
        """Report lost copies only, if it is time; opening retries call this often."""
        image, offline = self._metadata.image, self._copies.offline
        if not offline or now.mono_us < self._lost_us:
            return
        if self._in_flight is not None or not self._is_counted(image):
            return
        self._lost_us = now.mono_us + _AGAIN_US
        entries: list[PartitionLogEnd] = []
        for key, one in offline.items():
            if len(entries) == ALTER_PARTITION_ENTRIES_MAX:
                break
            entries += self._lost(image, key) if one.lost else ()
        if entries:
            self._report(entries, now)

    def _lost(self, image: Image, key: Key) -> list[PartitionLogEnd]:
        """Return a report of no log if this broker had the only one and leads its partition."""
        topic = image.topics_by_id.get(key[0])
        if topic is None or may_be_made(image, key, self._node_id):
            return []
        partition = topic.partitions[key[1]]
        if partition.replicas != (self._node_id,) or partition.leader_id != self._node_id:
            return []
        return [PartitionLogEnd(*key, partition.leader_epoch, NO_EPOCH, MISSING)]

    def _end(self, key: Key, partition: PartitionImage) -> LogEnd | None:
        """Return the end; None: there is no copy here, or it is about to change."""
        if self._node_id not in partition.replicas:
            return None
        replica = self._copies.find(key)
        if replica is None:
            offline = self._copies.offline.get(key)
            if offline is None:
                return None
            # Reported, too: the controller need not wait for it.
            return LogEnd(NO_EPOCH, MISSING if offline.lost else UNREADABLE)
        state = replica.state
        if replica.cutting or state.leads or state.leader_epoch != partition.leader_epoch:
            return None
        return log_end(replica)


def log_end(replica: Replica) -> LogEnd:
    """Return a copy's end and the newest epoch whose log it has up to where that epoch began."""
    log = replica.log
    # An epoch that begins at the end counts without a row (docs/adr/0067). Where rows before it
    # were lost, the start has removed it from the list.
    last_epoch, start_offset = log.epochs.latest()
    assert start_offset <= log.log_end_offset, "no epoch begins after the end"
    assert last_epoch <= replica.state.leader_epoch
    # With a failed disk its rows are at least in memory: a leader without them loses them, and a
    # restart may find them.
    return LogEnd(last_epoch, log.log_end_offset, log.start_saved, replica.fault is not None)
