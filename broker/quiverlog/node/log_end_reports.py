"""Log ends that the controller is told: of the copies here whose partitions nobody leads.

And of partitions that this broker leads, as their only replica, without a log: that there is none.

Owns when that is said: soon after the metadata have changed, and every two seconds for as long as
there is no leader, so that another controller, and one that could not decide, hears it again. Only
of logs that stay as they are: none is being cut, and none is led or followed here under an older
epoch. A copy that cannot be read to its end is told as such, so that nobody waits for it; one whose
disk has failed is told with the rows that it has. What the controller answers of rows that were
deleted is done, and told.

Must not know: what follows from it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import islice
from typing import Final, Protocol

from quiverlog.core.controller.image import Image
from quiverlog.core.controller.log_ends import MISSING, UNREADABLE, LogEnd
from quiverlog.core.controller.topic_image import PartitionImage
from quiverlog.errors import (
    NotController,
    OutcomeUnknown,
    PeerUnreachable,
    QuiverlogError,
    StaleBrokerEpoch,
)
from quiverlog.limits import ALTER_PARTITION_ENTRIES_MAX, BROKER_RETRY_MS
from quiverlog.node.jobs import Then
from quiverlog.node.offline import Offline, may_be_made
from quiverlog.node.outbox import Outbox
from quiverlog.node.replica import Replica
from quiverlog.types import NO_EPOCH, Now
from quiverlog.wire.replica_messages import (
    PartitionLogEnd,
    ReportLogEndsRequest,
    ReportLogEndsResponse,
)

__all__ = ["Copies", "LogEndReports", "log_end"]

Key = tuple[bytes, int]
_AGAIN_US: Final = 2_000_000
_PAUSE_US: Final = BROKER_RETRY_MS * 1000
_LOOKED_AT_MAX: Final = 10 * ALTER_PARTITION_ENTRIES_MAX
"""Partitions without a leader that one call looks at: most may be of other brokers."""
_OFTEN: Final = (NotController, OutcomeUnknown, PeerUnreachable, StaleBrokerEpoch)
"""Why a controller does not listen now, which passes."""


class Copies(Protocol):
    """The replicas here: those that are open, and those that cannot be opened."""

    @property
    def offline(self) -> Mapping[Key, Offline]:
        """Those that cannot be opened, and why."""

    def find(self, key: Key) -> Replica | None:
        """The replica, if it is open."""


class LogEndReports:
    """See the module docstring.

    Args:
        node_id: this broker.
        image: what holds now.
        broker_epoch: under which this life of the broker is registered; negative: it is not.
        ask: tells the controller.
        deleted: rows of a log here were deleted, as the log of another broker says.
    """

    __slots__ = (
        "_ask", "_broker_epoch", "_copies", "_deleted", "_image", "_in_flight", "_lost_us",
        "_node_id", "_outbox", "_said_us", "_said_version", "_skip",
    )  # fmt: skip

    def __init__(
        self,
        node_id: int,
        image: Callable[[], Image],
        copies: Copies,
        broker_epoch: Callable[[], int],
        ask: Callable[[ReportLogEndsRequest, Then, Now], None],
        deleted: Callable[[Key, int, Now], None],
        outbox: Outbox,
    ) -> None:
        self._node_id = node_id
        self._image = image
        self._copies = copies
        self._broker_epoch = broker_epoch
        self._ask = ask
        self._deleted = deleted
        self._outbox = outbox
        self._in_flight: object = None
        self._lost_us = 0  # When those are told of that are lost and led.
        self._said_us = 0
        self._said_version = -1
        self._skip = 0  # Of the partitions without a leader: where the next look begins.

    def next_us(self) -> int | None:
        """When `run` is to be called at the latest; None: when something happens."""
        image = self._image()
        if not image.leaderless or self._in_flight is not None or not self._is_heard(image):
            return None
        is_news = image.version != self._said_version or self._skip
        return self._said_us + (_PAUSE_US if is_news else _AGAIN_US)

    def _is_heard(self, image: Image) -> bool:
        """A fenced broker's logs do not count yet."""
        broker = image.brokers.get(self._node_id)
        return broker is not None and not broker.fenced and self._broker_epoch() >= 0

    def run(self, now: Now) -> None:
        """Tell the controller, if it is time."""
        due_us = self.next_us()
        if due_us is None or now.mono_us < due_us:
            self._tell_lost(now)
            return
        image = self._image()
        self._said_us, self._said_version = now.mono_us, image.version
        entries = self._entries(image)
        assert len(entries) <= ALTER_PARTITION_ENTRIES_MAX
        if entries:
            self._tell(entries, now)

    def _tell(self, entries: list[PartitionLogEnd], now: Now) -> None:
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
                self._outbox.log("warning", "controller took no log ends", why=str(error))

        try:
            self._ask(request, then, now)
        except QuiverlogError as error:
            then(None, error, now)

    def _give_up(self, answer: ReportLogEndsResponse, now: Now) -> None:
        """Rows that were deleted while this broker was away: without them, a log may lead."""
        image = self._image()
        for one in answer.starts:
            key = (one.topic_id, one.partition)
            if key in image.leaderless and self._is_of(image, key, one.leader_epoch):
                self._deleted(key, one.log_start_offset, now)
                self._said_version = -1  # It is told again, soon.

    @staticmethod
    def _is_of(image: Image, key: Key, leader_epoch: int) -> bool:
        return image.topics_by_id[key[0]].partitions[key[1]].leader_epoch == leader_epoch

    def _entries(self, image: Image) -> list[PartitionLogEnd]:
        """Some of them; a later call goes on behind."""
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

    def _tell_lost(self, now: Now) -> None:
        """Tell of only copies that are lost, if it is time. Who opens them again comes by often."""
        image, offline = self._image(), self._copies.offline
        if not offline or now.mono_us < self._lost_us:
            return
        if self._in_flight is not None or not self._is_heard(image):
            return
        self._lost_us = now.mono_us + _AGAIN_US
        entries: list[PartitionLogEnd] = []
        for key, one in offline.items():
            if len(entries) == ALTER_PARTITION_ENTRIES_MAX:
                break
            entries += self._lost(image, key) if one.lost else ()
        if entries:
            self._tell(entries, now)

    def _lost(self, image: Image, key: Key) -> list[PartitionLogEnd]:
        """That there is no log, where it was the only one and its partition is led here."""
        topic = image.topics_by_id.get(key[0])
        if topic is None or may_be_made(image, key, self._node_id):
            return []
        partition = topic.partitions[key[1]]
        if partition.replicas != (self._node_id,) or partition.leader_id != self._node_id:
            return []
        return [PartitionLogEnd(*key, partition.leader_epoch, NO_EPOCH, MISSING)]

    def _end(self, key: Key, partition: PartitionImage) -> LogEnd | None:
        """None: there is no copy here, or nothing can be said of it now."""
        if self._node_id not in partition.replicas:
            return None
        replica = self._copies.find(key)
        if replica is None:
            offline = self._copies.offline.get(key)
            if offline is None:
                return None
            return LogEnd(NO_EPOCH, MISSING if offline.lost else UNREADABLE)
        state = replica.state
        if replica.cutting or state.leads or state.leader_epoch != partition.leader_epoch:
            return None
        return log_end(replica)


def log_end(replica: Replica) -> LogEnd:
    """Where a copy ends, and the newest epoch whose leader's log it is up to where that began.

    An epoch that begins at the end counts without a row of it (docs/adr/0067). Where rows before
    it were lost, a start has taken it out of the list.
    """
    log = replica.log
    last_epoch, start_offset = log.epochs.latest()
    assert start_offset <= log.log_end_offset, "an epoch behind the end says nothing"
    assert last_epoch <= replica.state.leader_epoch
    # One whose disk has failed has its rows in memory at least: whoever leads without them loses
    # them, and a restart may find them.
    return LogEnd(last_epoch, log.log_end_offset, log.start_saved, replica.fault is not None)
