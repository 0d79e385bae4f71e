"""Where a consumer begins and ends, and rows that were known to exist and do not come.

Owns what `start` and `end` mean for each partition, the questions to leaders that this takes, and
whether missing rows are truncated or late: a log that lost rows with its leader may end in front
of what a reader waits for, and then brings neither rows nor an error. A new leader that does not
know the high watermark yet looks the same; asked where rows end, it reports that.

Must not know: how rows are read from there on, how long they are waited for.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Literal

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

__all__ = ["Position", "PositionFinder", "first_gone", "why_none"]


_EMPTY_ANSWERS_MIN: Final = 3

logger = logging.getLogger("quiverlog")


@dataclass(slots=True)
class Position:
    """Where a partition is read: rows from `offset` on are not asked for yet."""

    partition: int
    offset: int
    end: int | None
    last_epoch: int = NO_EPOCH
    delivered: int = 0
    """The offset after the last row that was handed out."""
    delivered_epoch: int = NO_EPOCH
    is_from_earliest: bool = False
    """Nothing was read yet and the start was the first row kept, which may move on any time."""
    known_end: int = 0
    """Rows below are known to exist."""
    empty_since_s: float | None = None
    """Since when answers bring no rows although there are some, and `empty_answers`: how many."""
    empty_answers: int = 0
    may_be_gone: bool = False
    """The leader shows no rows here, for long, although there were some."""

    @property
    def is_done(self) -> bool:
        """True when every row up to `end` was asked for (never, when following)."""
        return self.end is not None and self.offset >= self.end

    def seek(self, offset: int) -> None:
        """Go on from there, whatever was read before."""
        assert offset >= 0
        self.offset = self.delivered = offset
        self.last_epoch = self.delivered_epoch = NO_EPOCH
        self.is_from_earliest = self.may_be_gone = False
        self.empty_since_s = None

    def skipped_damage(self, error: QuiverlogError) -> bool:
        """Go on behind rows that the broker itself cannot read; False for any other error."""
        after = error.details.get("next_offset")
        if not isinstance(error, CorruptLog) or not isinstance(after, int) or after <= self.offset:
            return False
        assert self.delivered == self.offset, "rows that wait would be stepped over"
        logger.warning("stepping over rows (skip_corrupt): %s", error.message)
        self.offset = self.delivered = after
        return True

    def check_stalled(
        self, topic: str, high_watermark: int, now_s: float, timeout_s: float
    ) -> None:
        """Rows exist and do not come, though nothing else fills the leader's answers.

        The program may be away between two answers, so that time alone says nothing. Where the
        leader shows no such rows, `may_be_gone` is set.

        Raises:
            InvalidResponse: it shows them, and they have not come for `timeout_s`.
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
                f"{topic}-{self.partition} gave no rows at offset {self.offset} for "
                f"{timeout_s:g} s, although there are rows up to {self.known_end}.",
                topic=topic,
                partition=self.partition,
                offset=self.offset,
            )

    def moved_start(self, error: QuiverlogError, fetched: FetchedPartition) -> bool:
        """Retention moved the start between the question where it is and the first fetch."""
        if not (isinstance(error, OffsetOutOfRange) and self.is_from_earliest):
            return False
        if fetched.log_start_offset <= self.offset:
            return False
        assert self.delivered == self.offset, "nothing was read yet"
        self.offset = self.delivered = fetched.log_start_offset
        return True


class PositionFinder:
    """Resolves the positions of one topic's partitions."""

    __slots__ = ("_cluster", "_options", "_topic", "_topic_id")

    def __init__(
        self, cluster: Cluster, topic: str, topic_id: bytes, options: ConsumerOptions
    ) -> None:
        self._cluster = cluster
        self._topic = topic
        self._topic_id = topic_id
        self._options = options

    def named_partitions(self, chosen: Sequence[int]) -> list[int]:
        """The partitions that are read, and those that `start` and `end` speak of."""
        partitions = list(chosen)
        for spec in (self._options.start, self._options.end):
            if isinstance(spec, Mapping):
                partitions.extend(spec)
        return partitions

    def resolve(self, partitions: Sequence[int]) -> Operation[dict[int, Position]]:
        """The position of each partition.

        Latest is asked for first: rows that come between the two questions are then read, not
        skipped.

        Raises:
            OffsetOutOfRange: a start lies beyond its partition's end.
        """
        starts = {p: self._start_of(p) for p in partitions}
        if self._options.is_settled:
            return {p: self._settled(p) for p in partitions}
        latest: dict[int, int] = {}
        if not self._options.follow or any(isinstance(s, datetime) for s in starts.values()):
            latest = yield from self.offsets(dict.fromkeys(partitions, LATEST))
        asked = {p: at_us(s) for p, s in starts.items() if not isinstance(s, int)}
        found = yield from self.offsets(asked)
        positions = {}
        for p, start in starts.items():
            offset = start if isinstance(start, int) else found[p]
            if offset < 0:  # no row is that young: begin where the next one will be
                offset = latest[p]
            if not isinstance(start, int) and not self._options.follow:
                # Rows came, or were given up, between the two questions: nothing is to be read.
                offset = min(offset, latest[p])
            if p in latest and offset > latest[p]:  # nothing would be asked for, nothing refused
                raise (yield from self._beyond(p, offset, latest[p]))
            assert offset >= 0
            positions[p] = Position(
                p,
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
            partition, offset, end[partition], delivered=offset, known_end=end[partition]
        )

    def added(self, partitions: Sequence[int]) -> Operation[dict[int, Position]]:
        """Positions in partitions that a topic has gained: at their first rows, without an end."""
        starts = yield from self.offsets(dict.fromkeys(partitions, EARLIEST))
        return {
            p: Position(p, start, None, delivered=start, is_from_earliest=True)
            for p, start in starts.items()
        }

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
        """Partition -> the offset that belongs to a time, or to EARLIEST or LATEST."""
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


# Rows that were known to exist and do not come: whether they are gone or late.
_LOOK_S: Final = 2.0


def first_gone(
    cluster: Cluster, topic: str, topic_id: bytes, positions: Iterable[Position]
) -> Operation[OffsetOutOfRange | None]:
    """The error of the first reader whose rows up to its end are gone, of those that may be so.

    Who has no end waits for none of them any more, and goes on with what comes.

    Raises:
        OffsetNotAvailable: a leader does not know yet. Others are passed on, to be asked again.
    """
    for position in positions:
        if not position.may_be_gone:
            continue
        where = TopicPartition(topic, position.partition)
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
    """What to say at `offset` where rows up to `end` were expected and have not come in time."""
    gone: QuiverlogError | None = None
    try:
        gone = yield from _gone_rows(cluster, where, topic_id, offset, end)
    except QuiverlogError as error:
        if not error.retriable:
            return error
    return gone or OffsetNotAvailable(
        f"{where.topic}-{where.partition} gave no rows at offset {offset} for "
        f"{cluster.settings.request_timeout_s:g} s; rows up to {end} were expected."
    )


def _gone_rows(
    cluster: Cluster, where: TopicPartition, topic_id: bytes, offset: int, end: int
) -> Operation[OffsetOutOfRange | None]:
    """The error of who waits at `offset` for rows up to `end`; None: there are rows. No retry.

    Raises:
        OffsetNotAvailable: the leader does not know yet.
    """
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
