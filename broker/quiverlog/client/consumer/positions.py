"""The start and end of each partition, and expected rows that do not arrive: truncated or late.

A log that lost rows with its leader may end below a reader's position and return neither rows nor
an error. So does a new leader without a high watermark, but for its log end it answers
OffsetNotAvailable.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Literal, TypeAlias

from quiverlog.client.base.commands import Operation
from quiverlog.client.base.deadline import within
from quiverlog.client.base.results import FetchedPartition
from quiverlog.client.cluster.answers import named
from quiverlog.client.cluster.partition_questions import ask_leaders, at_us, offset_entry, raise_for
from quiverlog.client.cluster.routing import Cluster
from quiverlog.errors import (
    CorruptLog,
    InvalidArgument,
    InvalidResponse,
    OffsetNotAvailable,
    OffsetOutOfRange,
    QuiverlogError,
    error_from_code,
)
from quiverlog.types import EARLIEST, LATEST, NO_EPOCH, TopicPartition
from quiverlog.wire import messages as m

from .options import ConsumerOptions

__all__ = ["PartitionKey", "Position", "PositionFinder", "first_gone", "why_none"]

PartitionKey: TypeAlias = tuple[bytes, int]
"""A topic's id and a partition's number."""

# A busy caller leaves time between two answers: time alone does not show that rows are withheld.
_EMPTY_ANSWERS_MIN: Final = 3

logger = logging.getLogger("quiverlog")


@dataclass(slots=True)
class Position:
    """One partition, whose rows from `offset` on are still to be fetched."""

    topic: str
    key: PartitionKey
    offset: int
    end: int | None
    last_epoch: int = NO_EPOCH
    # After the last row that the caller has received.
    delivered: int = 0
    delivered_epoch: int = NO_EPOCH
    # Nothing was read yet from the log start, which retention may move.
    is_from_earliest: bool = False
    # Rows below it exist.
    known_end: int = 0
    # Since when answers have no rows although there are some; `empty_answers` counts them.
    empty_since_s: float | None = None
    empty_answers: int = 0
    # The leader's high watermark has been below `known_end` for long.
    may_be_gone: bool = False
    # No rows are fetched or returned.
    is_paused: bool = False

    @property
    def partition(self) -> int:
        return self.key[1]

    @property
    def topic_id(self) -> bytes:
        return self.key[0]

    @property
    def wants_rows(self) -> bool:
        return not (self.is_paused or self.is_done)

    @property
    def is_done(self) -> bool:
        return self.end is not None and self.offset >= self.end

    def seek(self, offset: int) -> None:
        assert offset >= 0
        self.offset = self.delivered = offset
        self.last_epoch = self.delivered_epoch = NO_EPOCH
        self.is_from_earliest = self.may_be_gone = False
        self.empty_since_s = None

    def skipped_damage(self, error: QuiverlogError) -> bool:
        """Skip rows that the broker itself cannot read; False: another error."""
        after = error.details.get("next_offset")
        if not isinstance(error, CorruptLog) or not isinstance(after, int) or after <= self.offset:
            return False
        assert self.delivered == self.offset, "rows that wait would be stepped over"
        logger.warning("stepping over rows (skip_corrupt): %s", error.message)
        self.offset = self.delivered = after
        return True

    def check_stalled(self, high_watermark: int, now_s: float, timeout_s: float) -> None:
        """Record a leader's answer without rows that are known to exist.

        After `timeout_s` without rows: `may_be_gone` where the high watermark is not above the
        position, InvalidResponse where it is.
        """
        if self.offset >= self.known_end:
            self.empty_since_s = None
            self.may_be_gone = False
            return
        if self.empty_since_s is None:
            self.empty_since_s, self.empty_answers = now_s, 0
        self.empty_answers += 1
        if now_s - self.empty_since_s < timeout_s or self.empty_answers < _EMPTY_ANSWERS_MIN:
            return
        self.empty_since_s = None
        self.may_be_gone = high_watermark <= self.offset
        if not self.may_be_gone:
            raise InvalidResponse(
                f"{self.topic}-{self.partition} returned no rows at offset {self.offset} for "
                f"{timeout_s:g} s, although there are rows up to {self.known_end}.",
                topic=self.topic,
                partition=self.partition,
                offset=self.offset,
            )

    def moved_start(self, error: QuiverlogError, fetched: FetchedPartition) -> bool:
        """Follow a log start that retention moved before the first fetch; False: another error."""
        if not (isinstance(error, OffsetOutOfRange) and self.is_from_earliest):
            return False
        if fetched.log_start_offset <= self.offset:
            return False
        assert self.delivered == self.offset, "nothing was read yet"
        self.offset = self.delivered = fetched.log_start_offset
        return True


class PositionFinder:
    __slots__ = ("_cluster", "_options", "_topic", "_topic_id")

    def __init__(
        self, cluster: Cluster, topic: str, topic_id: bytes, options: ConsumerOptions
    ) -> None:
        self._cluster = cluster
        self._topic = topic
        self._topic_id = topic_id
        self._options = options

    def named_partitions(self, chosen: Sequence[int]) -> list[int]:
        partitions = list(chosen)
        for spec in (self._options.start, self._options.end):
            if isinstance(spec, Mapping):
                partitions.extend(spec)
        return partitions

    def resolve(self, partitions: Sequence[int]) -> Operation[dict[int, Position]]:
        """Raises OffsetOutOfRange: a start is beyond its partition's end."""
        starts = {p: self._start_of(p) for p in partitions}
        if self._options.is_settled:
            return {p: self._settled(p) for p in partitions}
        latest: dict[int, int] = {}
        if not self._options.follow or any(isinstance(s, datetime) for s in starts.values()):
            # First, so that rows added between the questions are read.
            latest = yield from self.offsets(dict.fromkeys(partitions, LATEST))
        asked = {p: at_us(s) for p, s in starts.items() if not isinstance(s, int)}
        found = yield from self.offsets(asked)
        positions = {}
        for p, start in starts.items():
            offset = start if isinstance(start, int) else found[p]
            if offset < 0:  # no row is that young: begin at the next one
                offset = latest[p]
            if not isinstance(start, int) and not self._options.follow:
                # Between the questions rows were added, or retention removed some.
                offset = min(offset, latest[p])
            # A fetch that a leader could refuse is not sent for these.
            if p in latest and offset > latest[p]:
                raise (yield from self._beyond(p, offset, latest[p]))
            assert offset >= 0
            positions[p] = Position(
                self._topic,
                (self._topic_id, p),
                offset,
                self._end_of(p, latest),
                delivered=offset,
                is_from_earliest=start == "earliest",
                known_end=latest.get(p, 0),
            )
        return positions

    def _settled(self, partition: int) -> Position:
        start, end = self._options.start, self._options.end
        assert isinstance(start, Mapping)
        assert isinstance(end, Mapping)
        offset = start[partition]
        assert isinstance(offset, int)
        return Position(
            self._topic,
            (self._topic_id, partition),
            offset,
            end[partition],
            delivered=offset,
            known_end=end[partition],
        )

    def added(self, partitions: Sequence[int]) -> Operation[dict[PartitionKey, Position]]:
        starts = yield from self.offsets(dict.fromkeys(partitions, EARLIEST))
        found = (
            Position(
                self._topic,
                (self._topic_id, p),
                start,
                None,
                delivered=start,
                is_from_earliest=True,
            )
            for p, start in starts.items()
        )
        return {position.key: position for position in found}

    def _beyond(self, partition: int, offset: int, end: int) -> Operation[OffsetOutOfRange]:
        first = (yield from self.offsets({partition: EARLIEST}))[partition]
        return OffsetOutOfRange(
            f"{self._topic}-{partition}: offset {offset} is not in the valid range {first} to"
            f" {end}.",
            log_start_offset=first,
            high_watermark=end,
        )

    def _start_of(self, partition: int) -> int | Literal["earliest", "latest"] | datetime:
        start = self._options.start
        if not isinstance(start, Mapping):
            return start
        chosen = start.get(partition, "earliest")
        if isinstance(chosen, int) and chosen < 0:
            raise InvalidArgument(f"start: offset {chosen} of partition {partition} is negative.")
        return chosen

    def _end_of(self, partition: int, latest: Mapping[int, int]) -> int | None:
        if self._options.follow:
            return None
        if isinstance(self._options.end, Mapping):
            return self._options.end.get(partition, latest[partition])
        return latest[partition]

    def offsets(self, at: Mapping[int, int]) -> Operation[dict[int, int]]:
        if not at:
            return {}
        entries = {
            TopicPartition(self._topic, p): offset_entry(p, a, topic_id=self._topic_id)
            for p, a in at.items()
        }
        _, results = yield from ask_leaders(
            self._cluster, entries, lambda parts: m.ListOffsetsRequest(partitions=parts)
        )
        for where, result in results.items():
            if result.error_code:
                error = error_from_code(result.error_code, result.error_message)
                raise named(error, where.topic, where.partition)
        return {where.partition: result.offset for where, result in results.items()}


_LOOK_S: Final = 2.0


def first_gone(
    cluster: Cluster, positions: Iterable[Position]
) -> Operation[OffsetOutOfRange | None]:
    """Return the error of the first position whose rows are gone.

    One without an end goes on with later rows, after a warning. Raises OffsetNotAvailable: a leader
    has no high watermark yet; after any other error the position is checked again.
    """
    for position in positions:
        if not position.may_be_gone:
            continue
        topic_id, partition = position.key
        where = TopicPartition(position.topic, partition)
        try:
            gone = yield from _gone_rows(
                cluster, where, topic_id, position.offset, position.known_end
            )
        except OffsetNotAvailable:
            position.may_be_gone = False
            raise
        position.may_be_gone = False
        if gone is not None and position.end is not None:
            return gone
        if gone is not None:
            logger.warning("%s", gone.message)
            position.known_end = position.offset
    return None


def why_none(
    cluster: Cluster, where: TopicPartition, topic_id: bytes, offset: int, end: int
) -> Operation[QuiverlogError]:
    gone: QuiverlogError | None = None
    try:
        gone = yield from _gone_rows(cluster, where, topic_id, offset, end)
    except QuiverlogError as error:
        if not error.retriable:
            return error
    return gone or OffsetNotAvailable(
        f"{where.topic}-{where.partition} returned no rows at offset {offset} for "
        f"{cluster.settings.request_timeout_s:g} s; rows up to {end} were expected."
    )


def _gone_rows(
    cluster: Cluster, where: TopicPartition, topic_id: bytes, offset: int, end: int
) -> Operation[OffsetOutOfRange | None]:
    """Return the error for lost rows from `offset` to `end`; None: there are rows. No retry."""
    assert offset < end
    found = yield from _ask(cluster, where, topic_id, LATEST)
    if found > offset:
        return None
    first = yield from _ask(cluster, where, topic_id, EARLIEST)
    return OffsetOutOfRange(
        f"{where.topic}-{where.partition}: the rows [{offset}, {end}) are not there any more: its "
        f"log ends at {found}, they were lost with an earlier leader.",
        topic=where.topic,
        partition=where.partition,
        offset=offset,
        log_start_offset=first,
        high_watermark=found,
    )


def _ask(cluster: Cluster, where: TopicPartition, topic_id: bytes, at: int) -> Operation[int]:
    entries = {where: offset_entry(where.partition, at, topic_id=topic_id)}
    asked = ask_leaders(cluster, entries, lambda parts: m.ListOffsetsRequest(partitions=parts))
    _, results = yield from within(cluster.clock, _LOOK_S, asked)
    raise_for(results[where], where)
    found: int = results[where].offset
    return found
