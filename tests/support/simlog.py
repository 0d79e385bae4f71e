"""A log in memory with the questions that the Spark driver asks, and Spark's micro-batch stream.

Owns `SimLog` (topics, leader epochs, retention, truncation; in place of `quiverlog.Client` in
`LogView`) and `SimulatedQuery` (Spark's order of calls, its offset log and commit log, and crashes
between any two steps). No clock, no network.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pyspark_quiverlog.options import Use, parse_read_options
from pyspark_quiverlog.planning.log_view import LogView
from pyspark_quiverlog.planning.losses import Losses
from pyspark_quiverlog.planning.ranges import Range
from pyspark_quiverlog.planning.stream_planner import StreamPlanner
from quiverlog.client.base.results import (
    ClusterMetadata,
    OffsetAndEpoch,
    PartitionInfo,
    RangeSize,
    TopicInfo,
)
from quiverlog.errors import OffsetOutOfRange, UnknownPartition, UnknownTopic, UnknownTopicId
from quiverlog.storage.segment.epochs import LeaderEpochs
from quiverlog.types import LATEST, Compression, Durability, TopicPartition

ROW_BYTES = 10
BATCH_ROWS = 4


@dataclass
class SimPartition:
    """`rows[i]` is (epoch, value) of offset i; those below `start` are gone."""

    start: int = 0
    rows: list[tuple[int, int]] = field(default_factory=list)
    ever: set[int] = field(default_factory=set)
    """Every value that was appended, without those that a crash took: no reader may have them."""

    def __post_init__(self) -> None:
        self.epochs = LeaderEpochs(lambda: self.end)
        self.epochs.assign(0, 0)

    @property
    def end(self) -> int:
        return len(self.rows)

    @property
    def epoch(self) -> int:
        """The epoch in which rows are written now."""
        return self.epochs.newest

    def epoch_before(self, offset: int) -> int:
        return self.rows[offset - 1][0] if offset > self.start else -1


@dataclass
class SimTopic:
    topic_id: bytes
    partitions: list[SimPartition]


class SimLog:
    """The broker's side, and a client of it."""

    def __init__(self) -> None:
        self.topics: dict[str, SimTopic] = {}
        self.deleted: list[tuple[str, SimTopic]] = []
        self.version = 0
        self.requests = 0
        self._ids = 0
        self._value = 0
        self.between: Callable[[], None] | None = None
        """What happens to the log before each request is answered."""

    # --- what happens to the log --------------------------------------------------------------
    def create(self, name: str, partitions: int = 1) -> None:
        self._ids += 1
        topic = SimTopic(self._ids.to_bytes(16, "big"), [])
        self.topics[name] = topic
        self.add_partitions(name, partitions)

    def delete(self, name: str) -> None:
        self.deleted.append((name, self.topics.pop(name)))
        self.version += 1

    def add_partitions(self, name: str, count: int) -> None:
        self.topics[name].partitions += [SimPartition() for _ in range(count)]
        self.version += 1

    def append(self, name: str, partition: int, count: int = 1) -> None:
        part = self.topics[name].partitions[partition]
        for _ in range(count):
            self._value += 1
            part.rows.append((part.epoch, self._value))
            part.ever.add(self._value)

    def trim(self, name: str, partition: int, offset: int) -> None:
        part = self.topics[name].partitions[partition]
        part.start = max(part.start, min(offset, part.end))
        part.epochs.trim(part.start)

    def truncate(self, name: str, partition: int, offset: int) -> None:
        """An unclean restart: rows from `offset` on are lost, a new leader epoch begins."""
        part = self.topics[name].partitions[partition]
        part.ever -= {value for _, value in part.rows[max(offset, part.start) :]}
        del part.rows[max(offset, part.start) :]
        epoch = part.epoch + 1
        part.epochs.truncate_to(part.end)
        part.epochs.assign(epoch, part.end)

    def new_leader(self, name: str, partition: int, epochs: int = 1) -> None:
        """Nothing is lost."""
        part = self.topics[name].partitions[partition]
        part.epochs.assign(part.epoch + epochs, part.end)

    # --- DriverClient -------------------------------------------------------------------------
    def _asked(self) -> None:
        """A request goes out: the world may have changed since the last one."""
        self.requests += 1
        if self.between is not None:
            self.between()

    def metadata(self, topics: Sequence[str] | None = None) -> ClusterMetadata:
        self._asked()
        names = [n for n in self.topics if topics is None or n in topics]
        infos = {n: self._info(n) for n in names}
        return ClusterMetadata("sim", 0, self.version, {}, {}, infos)

    def _info(self, name: str) -> TopicInfo:
        topic = self.topics[name]
        partitions = tuple(PartitionInfo(i, 0, p.epoch) for i, p in enumerate(topic.partitions))
        return TopicInfo(
            name, topic.topic_id, 1, (), Durability.FLUSHED, 1 << 20, Compression.NONE, partitions,
            is_internal=name.startswith("__"),
        )  # fmt: skip

    def schemas(self, topic: str) -> Any:
        raise NotImplementedError

    def _routed(self, where: TopicPartition) -> SimTopic:
        """As the client's routing: it fails as a whole where it finds no partition by the name."""
        topic = self.topics.get(where.topic)
        if topic is None:
            raise UnknownTopic(f"There is no topic {where.topic!r}.")
        if where.partition >= len(topic.partitions):
            raise UnknownPartition(f"no {where}")
        return topic

    def _pinned(self, where: TopicPartition, ids: Mapping[str, bytes] | None) -> SimPartition:
        topic = self._routed(where)
        if ids and ids.get(where.topic, topic.topic_id) != topic.topic_id:
            raise UnknownTopicId(f"{where} is another")
        return topic.partitions[where.partition]

    def offsets_with_epochs(
        self,
        at: Mapping[TopicPartition, int],
        *,
        known: Mapping[TopicPartition, int] | None = None,
        topic_ids: Mapping[str, bytes] | None = None,
        max_wait: float = 0.0,
        metadata_version: int = -1,
    ) -> tuple[int, dict[TopicPartition, OffsetAndEpoch]]:
        self._asked()
        for where in at:
            self._routed(where)
        return self.version, {w: self._offset(w, a, topic_ids) for w, a in at.items()}

    def _offset(
        self, where: TopicPartition, at: int, ids: Mapping[str, bytes] | None
    ) -> OffsetAndEpoch:
        try:
            part = self._pinned(where, ids)
        except UnknownTopicId as error:
            return OffsetAndEpoch(-1, error_code=error.code, error_message="another")
        if at >= 0:  # rows have no times here: none is as young as any moment
            return OffsetAndEpoch(-1)
        offset = part.end if at == LATEST else part.start
        return OffsetAndEpoch(offset, part.epoch_before(offset))

    def epoch_end_offsets(
        self,
        epochs: Mapping[TopicPartition, int],
        *,
        topic_ids: Mapping[str, bytes] | None = None,
    ) -> dict[TopicPartition, OffsetAndEpoch]:
        self._asked()
        answers = {}
        for where, epoch in epochs.items():
            found, end = self._pinned(where, topic_ids).epochs.end_offset_for(epoch)
            answers[where] = OffsetAndEpoch(end, found)
        return answers

    def describe_ranges(
        self,
        ranges: Mapping[TopicPartition, tuple[int, int]],
        *,
        bytes_max: int = -1,
        topic_ids: Mapping[str, bytes] | None = None,
    ) -> dict[TopicPartition, RangeSize]:
        self._asked()
        result = {}
        for where, (start, end) in ranges.items():
            part = self._pinned(where, topic_ids)
            if not part.start <= start <= end <= part.end:
                raise OffsetOutOfRange(f"{where}: [{start}, {end})")
            reach = end
            if bytes_max >= 0:
                batches = max(1, bytes_max // (ROW_BYTES * BATCH_ROWS))
                reach = min(end, (start // BATCH_ROWS + batches) * BATCH_ROWS)
            result[where] = RangeSize(reach, (reach - start) * ROW_BYTES)
        return result


Row = tuple[bytes, int, int, int]
"""Topic id, partition, offset, value."""


class Crash(Exception):
    """The driver was killed."""


class SimulatedQuery:
    """Spark's MicroBatchExecution around one source, over logs that survive a crash.

    The sink replaces a batch that is run again, as Spark's own file sink does, so whatever is
    missing or double in it is the source's fault.
    """

    def __init__(self, log: SimLog, **options: str) -> None:
        self.log = log
        self.raw = {"bootstrap.servers": "sim:1", "subscribe": "t"} | options
        self.offsets: dict[int, str] = {}
        self.commits: set[int] = set()
        self.sink: dict[int, list[Row]] = {}
        self.now = 0.0
        self.planner: StreamPlanner | None = None

    def start(self) -> None:
        """A new driver process: whatever was in memory is gone."""
        options = parse_read_options(self.raw, Use.STREAM_READ)
        self._losses = Losses(fail=options.fail_on_data_loss)
        view = LogView(self.log, options, clock=lambda: self.now, pause=self._pause)
        view.refresh()
        self.planner = StreamPlanner(view)

    def _pause(self, seconds: float) -> None:
        self.now += seconds

    def trigger(self, crash_at: str = "", *, unlimited: bool | None = None) -> bool:
        """One micro-batch, or none (False). `crash_at`: "plan", "log", "write" or "commit"."""
        if self.planner is None:
            self.start()
        assert self.planner is not None
        try:
            return self._trigger(crash_at, unlimited)
        except Crash:
            self.planner = None
            return True

    def _trigger(self, crash_at: str, unlimited: bool | None) -> bool:
        assert self.planner is not None
        batch = max(self.offsets, default=-1)
        if batch >= 0 and batch not in self.commits:  # replay: latestOffset is not called
            self._run(batch, crash_at)
            return True
        start = self._start_of(batch + 1)
        if unlimited is None:
            bounded = any(k.startswith(("max", "min")) for k in self.raw)
            unlimited = not bounded
        end = json.dumps(self.planner.latest_offset(json.loads(start), unlimited=unlimited))
        if batch >= 0 and end == self.offsets[batch]:
            return False
        self._maybe_crash(crash_at, "plan")
        self.offsets[batch + 1] = end
        self._maybe_crash(crash_at, "log")
        self._run(batch + 1, crash_at)
        return True

    def _start_of(self, batch: int) -> str:
        assert self.planner is not None
        if batch == 0:
            return json.dumps(self.planner.initial_offset())
        return self.offsets[batch - 1]

    def _run(self, batch: int, crash_at: str) -> None:
        assert self.planner is not None
        start, end = json.loads(self._start_of(batch)), json.loads(self.offsets[batch])
        rows = []
        for piece in self.planner.ranges(start, end):
            assert piece.start < piece.end
            rows += self._task(piece)
        self.sink[batch] = rows
        self._maybe_crash(crash_at, "write")
        self.commits.add(batch)
        self._maybe_crash(crash_at, "commit")

    def _task(self, piece: Range) -> list[Row]:
        """What an executor finds of a range, and reports of the rest (`reader.SplitReader`)."""
        topic = self.log.topics.get(piece.topic)
        where = f"{piece.topic}-{piece.partition}"
        if topic is None or topic.topic_id.hex() != piece.topic_id:
            self._losses.report(f"{where}: rows [{piece.start}, {piece.end}) are gone")
            return []
        part = topic.partitions[piece.partition]
        start = max(piece.start, min(part.start, piece.end))
        if start > piece.start:
            self._losses.report(f"{where}: rows [{piece.start}, {start}) are no longer kept")
        end = min(piece.end, part.end)
        if piece.end_epoch >= 0:
            newer = (o for o in range(start, end) if part.rows[o][0] > piece.end_epoch)
            end = next(newer, end)
        if end < piece.end:
            self._losses.report(f"{where}: rows [{end}, {piece.end}) were truncated")
        return [(topic.topic_id, piece.partition, o, part.rows[o][1]) for o in range(start, end)]

    def _maybe_crash(self, crash_at: str, here: str) -> None:
        if crash_at == here:
            raise Crash

    def drain(self) -> None:
        """Trigger until nothing is left; a stream that never rests is a failure."""
        for _ in range(500):
            if not self.trigger():
                return
        raise AssertionError("the stream never comes to rest")

    @property
    def rows(self) -> list[Row]:
        """(topic id, partition, offset, value) in the order of the sink."""
        return [row for batch in sorted(self.sink) for row in self.sink[batch]]
