"""What the driver knows of the log: topics that the query reads, where they begin and end.

Owns the questions to the brokers (each a method, each one round trip where the protocol allows it)
and the translation between names on the wire and the offsets module's positions. Decides nothing
about micro-batches; that is `stream_planner` and `batch_reader`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from quiverlog.errors import InvalidOption, UnknownTopic, error_class, error_from_code
from quiverlog.types import EARLIEST, LATEST, TopicPartition

from .offsets import Position, TopicPositions
from .options import Positions, ReadOptions, Use
from .planning import Backlog, admit_bytes, share_bytes

if TYPE_CHECKING:
    from quiverlog.batch.schema import SchemaHistory
    from quiverlog.client.results import ClusterMetadata, OffsetAndEpoch, RangeSize

__all__ = ["DriverClient", "LogView", "TopicView", "group_positions"]


class DriverClient(Protocol):
    """The part of `quiverlog.Client` that the driver uses (tests put a simulated log here)."""

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
        self, epochs: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, OffsetAndEpoch]: ...
    def describe_ranges(
        self, ranges: Mapping[TopicPartition, tuple[int, int]], *, bytes_max: int = -1
    ) -> dict[TopicPartition, RangeSize]: ...


class TopicView(NamedTuple):
    """A topic that the query reads. `topic_id` is 32 hex digits."""

    topic_id: str
    partitions: tuple[int, ...]


class LogView:
    """The topics of one query, as last looked up, and the questions about them."""

    def __init__(self, client: DriverClient, options: ReadOptions) -> None:
        self.client = client
        self.options = options
        self.topics: dict[str, TopicView] = {}
        self.partitions: tuple[TopicPartition, ...] = ()
        self.stale = True
        """Something changed at the brokers since `refresh`."""
        self._version = -1
        self._ids: dict[str, bytes] = {}
        self._at_latest: dict[TopicPartition, int] = {}

    # --- topics -------------------------------------------------------------------------------
    def refresh(self, *, required: bool = False) -> None:
        """Look up the topics that the query reads.

        Raises:
            UnknownTopic: `required`, and a topic that is named does not exist.
            InvalidOption: `assign` names a partition that does not exist.
        """
        options = self.options
        names = options.subscribe or (tuple(options.assign) if options.assign else None)
        metadata = self.client.metadata(names)
        if names is not None:
            found = {n: metadata.topics[n] for n in names if n in metadata.topics}
            missing = [n for n in names if n not in found]
            if missing and required:
                raise UnknownTopic(f"There is no topic {missing[0]!r}.", topic=missing[0])
        else:
            pattern = re.compile(options.subscribe_pattern or "")
            found = {
                n: t
                for n, t in metadata.topics.items()
                if pattern.fullmatch(n) and not t.is_internal
            }
        self._version = metadata.metadata_version
        self._ids = {n: t.topic_id for n, t in found.items()}
        self.topics = {
            n: TopicView(t.topic_id.hex(), self._chosen(n, [p.partition for p in t.partitions]))
            for n, t in found.items()
        }
        self.partitions = tuple(
            TopicPartition(n, p) for n, t in sorted(self.topics.items()) for p in t.partitions
        )
        self._at_latest = dict.fromkeys(self.partitions, LATEST)
        self.stale = False

    def _chosen(self, topic: str, partitions: list[int]) -> tuple[int, ...]:
        if self.options.assign is None:
            return tuple(sorted(partitions))
        for wanted in self.options.assign[topic]:
            if wanted not in partitions:
                raise InvalidOption(
                    f"option `assign`: topic {topic!r} has {len(partitions)} partitions, "
                    f"{wanted} is none of them."
                )
        return self.options.assign[topic]

    # --- offsets ------------------------------------------------------------------------------
    def latest(
        self, known: Mapping[TopicPartition, int] | None = None, max_wait: float = 0.0
    ) -> dict[TopicPartition, Position]:
        """The end of every partition; with `max_wait` (seconds), when one differs from `known`.

        Partitions that cannot answer right now are left out. `stale` is set when topics changed.
        """
        if not self.partitions:
            return {}
        version, answers = self.client.offsets_with_epochs(
            self._at_latest,
            known=known,
            topic_ids=self._ids,
            max_wait=max_wait,
            metadata_version=self._version,
        )
        if version != self._version:
            self.stale = True
        result = {}
        for where, answer in answers.items():
            if answer.error_code:
                self._note_error(where, answer)
            else:
                result[where] = Position(answer.offset, answer.leader_epoch)
        return result

    def _note_error(self, where: TopicPartition, answer: OffsetAndEpoch) -> None:
        cls = error_class(answer.error_code)
        if not (cls.retriable or cls.refresh_metadata):
            raise error_from_code(answer.error_code, f"{where}: {answer.error_message}")
        self.stale = True

    def earliest(self, wanted: Iterable[TopicPartition]) -> dict[TopicPartition, Position]:
        """The first row that is kept, in each of these partitions."""
        return self._offsets(dict.fromkeys(wanted, EARLIEST))

    def _offsets(self, at: dict[TopicPartition, int]) -> dict[TopicPartition, Position]:
        if not at:
            return {}
        _, answers = self.client.offsets_with_epochs(at)
        for where, answer in answers.items():
            if answer.error_code:
                raise error_from_code(answer.error_code, f"{where}: {answer.error_message}")
        return {w: Position(a.offset, a.leader_epoch) for w, a in answers.items()}

    # --- where to start and to end ------------------------------------------------------------
    def starting(self, use: Use) -> dict[TopicPartition, Position]:
        """Where a new query begins, by the starting options.

        Raises:
            InvalidOption: an offset above the end, a partition without one, or a moment for
                which a partition has no row.
        """
        options = self.options
        by_time = self._by_time(options.starting_timestamp, options.starting_offsets_by_timestamp)
        if by_time is not None:
            name = "startingTimestamp"
            if options.starting_timestamp is None:
                name = "startingOffsetsByTimestamp"
            return self._first_since(by_time, name, options.starting_strategy)
        default = "latest" if use is Use.STREAM_READ else "earliest"
        wanted = options.starting_offsets or default
        return self._resolve("startingOffsets", wanted)

    def ending(self) -> dict[TopicPartition, Position]:
        """Where a batch ends, by the ending options. Raises InvalidOption as `starting` does."""
        options = self.options
        by_time = self._by_time(options.ending_timestamp, options.ending_offsets_by_timestamp)
        if by_time is not None:
            return self._first_since(by_time, "endingTimestamp", "latest")
        return self._resolve("endingOffsets", options.ending_offsets)

    def _by_time(
        self, everywhere: int | None, each: Positions | None
    ) -> dict[TopicPartition, int] | None:
        if everywhere is not None:
            return dict.fromkeys(self.partitions, everywhere * 1000)
        if each is not None:
            moments = self._named("...ByTimestamp", each)
            return {where: ms * 1000 for where, ms in moments.items()}
        return None

    def _first_since(
        self, moments: dict[TopicPartition, int], name: str, strategy: str
    ) -> dict[TopicPartition, Position]:
        found = self._offsets(moments)
        without = [where for where, position in found.items() if position.offset < 0]
        if without and strategy == "error":
            raise InvalidOption(
                f"option `{name}`: {without[0]} has no row at or after that moment; set "
                "`startingOffsetsByTimestampStrategy` to latest to start at its end."
            )
        return found | self._offsets(dict.fromkeys(without, LATEST))

    def _resolve(self, name: str, wanted: str | Positions) -> dict[TopicPartition, Position]:
        if wanted == "latest":
            return self._offsets(dict.fromkeys(self.partitions, LATEST))
        if wanted == "earliest":
            return self.earliest(self.partitions)
        assert isinstance(wanted, dict)
        named = self._named(name, wanted)
        ends = self._offsets(dict.fromkeys(self.partitions, LATEST))
        firsts = self.earliest(where for where, offset in named.items() if offset == EARLIEST)
        result = {}
        for where, offset in named.items():
            if offset > ends[where].offset:
                raise InvalidOption(
                    f"option `{name}`: {where} ends at {ends[where].offset}, so it has no offset "
                    f"{offset}."
                )
            symbolic = {LATEST: ends[where], EARLIEST: firsts.get(where, ends[where])}
            result[where] = symbolic.get(offset, Position(offset))
        return result

    def _named(self, name: str, positions: Positions) -> dict[TopicPartition, int]:
        """Each partition's number; all must be there, and no other."""
        flat = {TopicPartition(t, p): n for t, ps in positions.items() for p, n in ps.items()}
        for where in self.partitions:
            if where not in flat:
                raise InvalidOption(f"option `{name}`: nothing is said of {where}.")
        for where in flat:
            if where not in self._at_latest:
                raise InvalidOption(
                    f"option `{name}` names {where}, which the query does not read."
                )
        return flat

    # --- what a careful reader asks -----------------------------------------------------------
    def truncated(
        self, positions: Mapping[TopicPartition, Position]
    ) -> dict[TopicPartition, Position]:
        """Positions whose preceding rows are no longer in the log: where to go on instead."""
        asked = {w: p for w, p in positions.items() if p.epoch >= 0 and w in self._at_latest}
        if not asked:
            return {}
        ends = self.client.epoch_end_offsets({w: p.epoch for w, p in asked.items()})
        result = {}
        for where, position in asked.items():
            end = ends[where]
            if 0 <= end.offset < position.offset and end.leader_epoch >= 0:
                result[where] = Position(end.offset, end.leader_epoch)
        return result

    def epoch_before(self, where: TopicPartition, offset: int, latest_epoch: int) -> int:
        """The leader epoch of the row before `offset`, which lies below the partition's end."""
        epoch = latest_epoch
        while epoch > 0:
            older = self.client.epoch_end_offsets({where: epoch - 1})[where]
            if older.offset < 0 or older.leader_epoch < 0 or offset > older.offset:
                return epoch
            epoch = older.leader_epoch
        return epoch

    def limit_bytes(
        self, backlogs: Sequence[Backlog], bytes_max: int
    ) -> dict[tuple[str, int], int]:
        """End offsets so that at most `bytes_max` stored bytes are read (at least one batch)."""
        waiting = {TopicPartition(*b.key): (b.start, b.end) for b in backlogs if b.rows}
        sizes = self.client.describe_ranges(waiting)
        counts: dict[tuple[str, int], int] = {w: size.byte_count for w, size in sizes.items()}
        if sum(counts.values()) <= bytes_max:
            return {b.key: max(b.start, b.end) for b in backlogs}
        reached: dict[tuple[str, int], tuple[int, int]] = {}
        for key, share in share_bytes(backlogs, counts, bytes_max).items():
            where = TopicPartition(*key)
            size = self.client.describe_ranges({where: waiting[where]}, bytes_max=share)[where]
            reached[key] = (size.end_offset, size.byte_count)
        return admit_bytes(backlogs, reached, bytes_max)

    # --- shapes -------------------------------------------------------------------------------
    def group(self, positions: Mapping[Any, Position]) -> dict[str, TopicPositions]:
        """Positions under the current topic ids."""
        return group_positions(positions, {n: t.topic_id for n, t in self.topics.items()})

    def schemas(self) -> dict[str, Any]:
        """Topic -> its current Arrow schema."""
        return {name: self.client.schemas(name).current for name in self.topics}


def group_positions(
    positions: Mapping[Any, Position], topic_ids: Mapping[str, str]
) -> dict[str, TopicPositions]:
    """Positions by topic."""
    grouped: dict[str, dict[int, Position]] = {}
    for (topic, partition), position in positions.items():
        grouped.setdefault(topic, {})[partition] = position
    return {topic: TopicPositions(topic_ids[topic], ps) for topic, ps in grouped.items()}
