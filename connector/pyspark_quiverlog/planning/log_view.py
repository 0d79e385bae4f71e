"""The driver's view of the log: the topics that the query reads, where they begin and end.

Owns the requests with which a read is planned. A topic may be deleted or created again at any time:
requests about partitions name topic ids, partitions that are gone are missing from the answer, and
`stale` is set, so that the caller calls `refresh` before its next decision. `topics` and
`partitions` change only there.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeVar

from pyspark_quiverlog.options import ReadOptions
from quiverlog.client.base.arguments import partitions_of
from quiverlog.client.replay.stream_offsets import Position, TopicPositions
from quiverlog.errors import (
    InvalidOption,
    OffsetOutOfRange,
    RequestTimedOut,
    UnknownPartition,
    UnknownTopic,
    UnknownTopicId,
    error_class,
    error_from_code,
)
from quiverlog.types import EARLIEST, LATEST, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Sequence

    from quiverlog.batch.schema import SchemaHistory
    from quiverlog.client.base.results import ClusterMetadata, OffsetAndEpoch, RangeSize

__all__ = ["DriverClient", "LogView", "TopicView", "group_positions"]

GONE: Final = (UnknownTopic, UnknownTopicId, UnknownPartition)
PAUSE_S: Final = 0.1

T = TypeVar("T")


class DriverClient(Protocol):
    """The part of `quiverlog.Client` that `LogView` uses."""

    def metadata(self, topics: Sequence[str] | None = None) -> ClusterMetadata: ...
    def schemas(self, topic: str) -> SchemaHistory: ...
    def offsets_with_epochs(
        self,
        at: Mapping[TopicPartition, int],
        *,
        known: Mapping[TopicPartition, int] | None = None,
        topic_ids: Mapping[str, bytes] | None = None,
        max_wait: float = 0.0,
        metadata_version: int = -1,
    ) -> tuple[int, dict[TopicPartition, OffsetAndEpoch]]: ...
    def epoch_end_offsets(
        self,
        epochs: Mapping[TopicPartition, int],
        *,
        topic_ids: Mapping[str, bytes] | None = None,
    ) -> dict[TopicPartition, OffsetAndEpoch]: ...
    def describe_ranges(
        self,
        ranges: Mapping[TopicPartition, tuple[int, int]],
        *,
        bytes_max: int = -1,
        topic_ids: Mapping[str, bytes] | None = None,
    ) -> dict[TopicPartition, RangeSize]: ...


class TopicView(NamedTuple):
    """`topic_id` is 32 hex digits."""

    topic_id: str
    partitions: tuple[int, ...]


class LogView:
    """`clock`: monotonic seconds; `pause`: sleeps for seconds."""

    def __init__(
        self,
        client: DriverClient,
        options: ReadOptions,
        *,
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self.client = client
        self.options = options
        self.clock = clock
        self.pause = pause
        self.topics: dict[str, TopicView] = {}
        self.partitions: tuple[TopicPartition, ...] = ()
        self.stale = True
        self._version = -1
        self._pattern = re.compile(options.subscribe_pattern or "")

    # --- topics -------------------------------------------------------------------------------
    def selects(self, topic: str, partition: int) -> bool:
        options = self.options
        if options.assign is not None:
            return partition in options.assign.get(topic, ())
        if options.subscribe is not None:
            return topic in options.subscribe
        return self._pattern.fullmatch(topic) is not None

    def refresh(self, *, required: bool = False) -> None:
        """Request the topics that the query reads.

        Raises:
            UnknownTopic: `required`, and a named topic does not exist.
            InvalidOption: `required`, and `assign` names a partition that does not exist.
        """
        options = self.options
        names = self._named()
        metadata = self.client.metadata(names)
        found = {
            name: topic
            for name, topic in metadata.topics.items()
            if (name in names if names is not None else self._is_matched(topic))
        }
        if required:
            _check_there(names, found)
        topics = {}
        for name, topic in found.items():
            numbers = sorted(p.partition for p in topic.partitions)
            if required and options.assign is not None:
                _check_assigned(name, options.assign[name], numbers)
            chosen = tuple(p for p in numbers if self.selects(name, p))
            topics[name] = TopicView(topic.topic_id.hex(), chosen)
        self.topics = topics
        self._version = metadata.metadata_version
        self.partitions = tuple(
            TopicPartition(n, p) for n, t in sorted(self.topics.items()) for p in t.partitions
        )
        assert len(set(self.partitions)) == len(self.partitions)
        self.stale = False

    def _named(self) -> tuple[str, ...] | None:
        options = self.options
        return options.subscribe or (tuple(options.assign) if options.assign else None)

    def require_topics(self) -> None:
        """Raise UnknownTopic for a named topic that the last `refresh` did not find."""
        _check_there(self._named(), self.topics)

    def _is_matched(self, topic: Any) -> bool:
        return self._pattern.fullmatch(topic.name) is not None and not topic.is_internal

    def id_of(self, topic: str) -> str | None:
        """Return the id as of the last `refresh`; None: it does not exist."""
        view = self.topics.get(topic)
        return None if view is None else view.topic_id

    @property
    def ids(self) -> dict[str, str]:
        return {name: view.topic_id for name, view in self.topics.items()}

    def schemas(self) -> dict[str, Any]:
        """Return topic -> its current Arrow schema, without topics deleted meanwhile."""
        found = {}
        for name in self.topics:
            try:
                found[name] = self.client.schemas(name).current
            except GONE:
                self.stale = True
        return found

    # --- asking -------------------------------------------------------------------------------
    def _ask(
        self,
        wanted: Collection[TopicPartition],
        ids: Mapping[str, str] | None,
        question: Callable[[list[TopicPartition], dict[str, bytes]], dict[TopicPartition, T]],
    ) -> dict[TopicPartition, T]:
        """Return answers about the partitions of these topic ids (default: those of `refresh`),
        without those that are gone."""
        known = self.ids if ids is None else ids
        left = [w for w in wanted if w.topic in known]
        deadline = self.clock() + self.options.request_timeout
        while left:
            try:
                pinned = {w.topic: bytes.fromhex(known[w.topic]) for w in left}
                answers = question(left, pinned)
                assert answers.keys() <= set(left), "the client refuses answers not asked for"
                return answers
            except GONE:
                # The request fails whole; the metadata show which of its topics it was.
                self.stale = True
                if self.clock() > deadline:
                    raise
                there = self._existing({w.topic for w in left})
                still = [w for w in left if (known[w.topic], w.partition) in there]
                if len(still) == len(left):
                    self.pause(PAUSE_S)  # It exists again, or brokers have different metadata.
                left = still
        return {}

    def _existing(self, names: Iterable[str]) -> set[tuple[str, int]]:
        topics = self.client.metadata(sorted(names)).topics.values()
        return {(t.topic_id.hex(), p.partition) for t in topics for p in t.partitions}

    def _offsets(
        self, at: Mapping[TopicPartition, int], ids: Mapping[str, str] | None = None
    ) -> dict[TopicPartition, Position]:
        """Return offsets with epochs; wait for partitions without a leader.

        Raises:
            RequestTimedOut: a partition had no leader for `request.timeout`.
        """
        result: dict[TopicPartition, Position] = {}
        deadline = self.clock() + self.options.request_timeout
        left = list(at)
        while left:
            answers = self._ask(
                left,
                ids,
                lambda asked, pinned: self.client.offsets_with_epochs(
                    {w: at[w] for w in asked}, topic_ids=pinned
                )[1],
            )
            left = self._sort(answers, result)
            if left:
                if self.clock() > deadline:
                    names = ", ".join(map(str, left[:10]))
                    raise RequestTimedOut(f"no broker leads {names}: no answer in time.")
                self.pause(PAUSE_S)
        return result

    def _sort(
        self,
        answers: Mapping[TopicPartition, OffsetAndEpoch],
        result: dict[TopicPartition, Position],
    ) -> list[TopicPartition]:
        """Add good answers to `result`, and return the partitions to ask again."""
        again = []
        for where, answer in answers.items():
            if not answer.error_code:
                result[where] = Position(answer.offset, answer.leader_epoch)
                continue
            cls = error_class(answer.error_code)
            if not (cls.retriable or cls.refresh_metadata):
                raise error_from_code(answer.error_code, f"{where}: {answer.error_message}")
            self.stale = True
            if not issubclass(cls, GONE):  # a partition without a leader at present
                again.append(where)
        return again

    def latest(
        self, known: Mapping[TopicPartition, int] | None = None, max_wait: float = 0.0
    ) -> dict[TopicPartition, Position]:
        """Return the ends once one differs from `known`, or after `max_wait` seconds. Partitions
        without a leader are left out.
        """

        def question(
            asked: list[TopicPartition], pinned: dict[str, bytes]
        ) -> dict[TopicPartition, OffsetAndEpoch]:
            version, answers = self.client.offsets_with_epochs(
                dict.fromkeys(asked, LATEST),
                known=known,
                topic_ids=pinned,
                max_wait=max_wait,
                metadata_version=self._version,
            )
            if version != self._version:
                self.stale = True
            return answers

        result: dict[TopicPartition, Position] = {}
        self._sort(self._ask(self.partitions, None, question), result)
        return result

    def ends(
        self, wanted: Iterable[TopicPartition], ids: Mapping[str, str] | None = None
    ) -> dict[TopicPartition, Position]:
        """Return these ends; wait for partitions without a leader."""
        return self._offsets(dict.fromkeys(wanted, LATEST), ids)

    def earliest(
        self, wanted: Iterable[TopicPartition], ids: Mapping[str, str] | None = None
    ) -> dict[TopicPartition, Position]:
        return self._offsets(dict.fromkeys(wanted, EARLIEST), ids)

    def first_since(self, moments: Mapping[TopicPartition, int]) -> dict[TopicPartition, Position]:
        """Return the first row at or after a time in microseconds since 1970; offset -1: none."""
        return self._offsets(moments)

    def truncated(
        self,
        positions: Mapping[TopicPartition, Position],
        ids: Mapping[str, str] | None = None,
    ) -> dict[TopicPartition, Position]:
        """Return the positions whose preceding rows were truncated, with where to go on instead."""
        # Without an epoch there is nothing to compare.
        asked = {w: p for w, p in positions.items() if p.epoch >= 0}
        ends = self._epoch_ends({w: p.epoch for w, p in asked.items()}, ids)
        return {
            where: Position(end.offset, end.leader_epoch)
            for where, end in ends.items()
            if 0 <= end.offset < asked[where].offset and end.leader_epoch >= 0
        }

    def epoch_before(self, where: TopicPartition, offset: int, latest_epoch: int) -> int:
        """Return the leader epoch of the row before `offset`, an offset below the end."""
        epoch = latest_epoch
        while epoch > 0:
            older = self._epoch_ends({where: epoch - 1}).get(where)
            if older is None or older.offset < 0 or older.leader_epoch < 0:
                return epoch
            if offset > older.offset:  # the older epoch ended before that row
                return epoch
            assert older.leader_epoch < epoch, "each step goes back, so there is a last one"
            epoch = older.leader_epoch
        return epoch

    def _epoch_ends(
        self, epochs: Mapping[TopicPartition, int], ids: Mapping[str, str] | None = None
    ) -> dict[TopicPartition, OffsetAndEpoch]:
        return self._ask(
            epochs,
            ids,
            lambda left, pinned: self.client.epoch_end_offsets(
                {w: epochs[w] for w in left}, topic_ids=pinned
            ),
        )

    def range_sizes(
        self, ranges: Mapping[TopicPartition, tuple[int, int]], *, bytes_max: int = -1
    ) -> dict[TopicPartition, RangeSize]:
        """Return stored bytes, without ranges that are no longer within the log."""

        def question(
            asked: list[TopicPartition], pinned: dict[str, bytes]
        ) -> dict[TopicPartition, RangeSize]:
            try:
                return self.client.describe_ranges(
                    {w: ranges[w] for w in asked}, bytes_max=bytes_max, topic_ids=pinned
                )
            except OffsetOutOfRange:
                # One such range fails the whole request: halves find it.
                if len(asked) == 1:
                    return {}
            assert len(asked) > 1
            halves = asked[: len(asked) // 2], asked[len(asked) // 2 :]
            return question(halves[0], pinned) | question(halves[1], pinned)

        return self._ask(ranges, None, question)

    def group(self, positions: Mapping[Any, Position]) -> dict[str, TopicPositions]:
        return group_positions(positions, self.ids)


def _check_there(names: Iterable[str] | None, found: Collection[str]) -> None:
    for name in names or ():
        if name not in found:
            raise UnknownTopic(f"There is no topic {name!r}.", topic=name)


def _check_assigned(topic: str, wanted: Iterable[int], there: list[int]) -> None:
    for partition in wanted:
        if partition not in there:
            raise InvalidOption(
                f"option `assign`: {partitions_of(topic, len(there))}; {partition} is not one of "
                "them."
            )


def group_positions(
    positions: Mapping[Any, Position], topic_ids: Mapping[str, str]
) -> dict[str, TopicPositions]:
    grouped: dict[str, dict[int, Position]] = {}
    for (topic, partition), position in positions.items():
        grouped.setdefault(topic, {})[partition] = position
    return {topic: TopicPositions(topic_ids[topic], ps) for topic, ps in grouped.items()}
