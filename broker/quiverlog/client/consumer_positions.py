"""Where a consumer begins and ends: from what the caller chose to positions, as operations.

Owns what `start` and `end` mean for each partition, and the questions to the leaders that this
takes. Must not know how rows are read from there on.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Literal

from quiverlog.errors import (
    CorruptLog,
    InvalidArgument,
    InvalidResponse,
    OffsetOutOfRange,
    QuiverlogError,
    error_from_code,
)
from quiverlog.types import EARLIEST, LATEST, NO_EPOCH, TopicPartition
from quiverlog.wire import messages as m

from .answers import named
from .commands import Operation
from .consumer_options import ConsumerOptions
from .partition_questions import ask_leaders, at_us, offset_entry
from .results import FetchedPartition
from .routing import Cluster

__all__ = ["Position", "PositionFinder"]

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
        self.offset = self.delivered = offset
        self.last_epoch = self.delivered_epoch = NO_EPOCH
        self.is_from_earliest = self.may_be_gone = False
        self.empty_since_s = None

    def skipped_damage(self, error: QuiverlogError) -> bool:
        """Go on behind rows that the broker itself cannot read; False for any other error."""
        after = error.details.get("next_offset")
        if not isinstance(error, CorruptLog) or not isinstance(after, int) or after <= self.offset:
            return False
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
