"""Each call of the system fails once, in a fixed course of all that a node does with its disk.

Nothing may leave `handle_many`; every request is answered once, with a typed error where something
failed; others are served; and what was acknowledged to a client is there after a restart.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest

from quiverlog.batch.codec import decode_batch, split_batches
from quiverlog.batch.evolution import SchemaHistory
from quiverlog.limits import MIB, UNFLUSHED_MS_MAX
from quiverlog.storage.metadata import metadata_log
from quiverlog.wire import messages as m
from tests.support.batches import NO_PRODUCER, encode_data
from tests.support.failing_os import CALLS, CallLog, failing_calls
from tests.support.node import (
    GIB,
    NodeDriver,
    open_new_logs_by_jobs,
    serialize_schema,
)

PARTS = 3
CALLS_MAX = 1_000
CAN_FAIL = {
    errno.EIO: frozenset(CALLS),
    errno.ENOSPC: frozenset(CALLS) - {"listdir", "lstat", "pread", "rmdir", "stat", "unlink"},
    errno.EMFILE: frozenset(("listdir", "open")),
}
"""Which calls the system lets fail so: one that needs no descriptor never lacks one."""
SEGMENT_BYTES = 64 * 1024
SCHEMA = pa.schema([("n", pa.int64()), ("filler", pa.string())])
HISTORY = SchemaHistory({1: SCHEMA})
SCHEMA_BYTES = serialize_schema(SCHEMA)
ROWS, FILLER = 40, "x" * 800
"""Of one batch: two of them roll a segment. Few and wide: the course is run hundreds of times."""


def batch_of(values: Sequence[int], at_us: int, producer: tuple[int, int, int]) -> bytearray:
    """As that of `tests.support.node`, of wide rows."""
    columns = [pa.array(values, pa.int64()), pa.repeat(FILLER, len(values))]
    data = pa.record_batch(columns, schema=SCHEMA)
    return encode_data(data, at_us=at_us, producer=producer)


class Course:
    """What is done, in the same order every time; `acknowledged` by partition: (offset, value)."""

    def __init__(self, node: NodeDriver) -> None:
        self.node = node
        self.acknowledged: dict[tuple[bytes, int], dict[int, int]] = {}
        self.start_offsets: dict[tuple[bytes, int], int] = {}
        self.asked: list[tuple[m.Request, int]] = []
        self.topics: dict[str, bytes] = {}
        self._value = 0

    def ask(self, request: m.Request, body: bytes = b"") -> Any:
        """Ask, let everything that follows happen, and return the answer."""
        correlation = self.node.request(request, body)
        self.asked.append((request, correlation))
        self.rest()
        answer = self.node.answer(correlation)
        assert answer is not None, f"{type(request).__name__} was not answered"
        assert answer[0].error_code != 1, self._trace()
        for name in ("partitions", "topics"):
            for entry in getattr(answer[0], name, ()):
                assert getattr(entry, "error_code", 0) != 1, self._trace()
        return answer

    def _trace(self) -> object:
        return [line.fields for line in self.node.lines if line.event == "internal error"]

    def rest(self) -> None:
        """Jobs and flushes, and the retries of what was postponed."""
        for _ in range(200):
            self.node.run_until_idle()
            if not self.node.syncs:
                return
            self.node.flush()
        raise AssertionError("the node never comes to rest")

    def wait(self, ms: int) -> None:
        self.node.advance(ms)
        self.node.disk_space(10 * GIB)  # As the server does every second.
        self.rest()

    def create(self, name: str, partitions: int = 1, **configs: str) -> None:
        new = m.NewTopic(
            name,
            SCHEMA_BYTES,
            partitions,
            1,
            [],
            {key.replace("_", "."): value for key, value in configs.items()},
        )
        for _ in range(3):  # As a client does with a retriable error.
            answer, _ = self.ask(m.CreateTopicsRequest(topics=[new]))
            if not answer.error_code and not answer.topics[0].error_code:
                self.topics[name] = answer.topics[0].topic_id
                return
            self.wait(6_000)

    def produce(self, name: str, partition: int = 0, rows: int = 1, producer_id: int = -1) -> None:
        """Several rows are two batches, which are written by one call."""
        topic = self.topics.get(name)
        if topic is None:
            return
        values = [self._value + i for i in range(rows)]
        self._value += rows
        producer = (producer_id, 0, 0) if producer_id >= 0 else NO_PRODUCER
        parts = [values[: rows // 2], values[rows // 2 :]] if rows > 1 else [values]
        batches = [batch_of(part, self.node.wall_us, producer) for part in parts]
        body = b"".join(map(bytes, batches))
        entry = m.ProducePartition(topic, partition, -1, len(body))
        request = m.ProduceRequest(partitions=[entry], timeout_ms=20_000)
        correlation = self.node.request(request, body)
        self.rest()
        if self.node.answer(correlation) is None:
            self.wait(21_000)  # A flush that was postponed, or the deadline.
        answer = self.node.answer(correlation)
        assert answer is not None
        assert answer[0].error_code != 1, self._trace()
        result = answer[0].partitions[0] if answer[0].partitions else None
        assert result is None or result.error_code != 1, self._trace()
        if result is not None and result.error_code == 0:
            known = self.acknowledged.setdefault((topic, partition), {})
            known |= {result.base_offset + i: value for i, value in enumerate(values)}

    def delete_records(self, name: str, offset: int) -> None:
        topic = self.topics.get(name)
        if topic is None:
            return
        entry = m.DeleteRecordsPartition(topic, 0, offset)
        answer, _ = self.ask(m.DeleteRecordsRequest(partitions=[entry]))
        self.start_offsets[topic, 0] = offset  # Failed or not: it may have happened.
        assert answer.error_code == 0

    def fetch(self, name: str) -> None:
        topic = self.topics.get(name)
        if topic is not None:
            self.ask(self.node.fetch_request(topic, 0, max_wait_ms=0))

    def run(self) -> None:
        """Create, produce, roll, flush, trim, expire, alter, grow, read cold, compact, delete."""
        self.create("a", partitions=2, segment_bytes=str(SEGMENT_BYTES))
        self.create("old", segment_bytes=str(SEGMENT_BYTES), retention_ms="60000")
        self.create("gone", durability="memory")
        given, _ = self.ask(m.InitProducerIdRequest())
        # What is known of it is the snapshot that a roll leaves.
        self.produce("a", producer_id=-1 if given.error_code else given.producer_id)
        self.produce("a", partition=1)
        self.produce("gone")
        for _ in range(4):
            self.produce("a", rows=ROWS)
        self.produce("old", rows=ROWS)
        self.produce("old", rows=ROWS)
        self.delete_records("a", ROWS + 10)
        self.ask(m.AlterTopicRequest(name="a", set_configs={"retention.bytes": str(64 * MIB)}))
        self.ask(m.AlterTopicRequest(name="a", partitions=3))
        self.produce("a", partition=2)
        self.forget("a")
        self.fetch("a")
        self.ask(m.DeleteTopicsRequest(names=["gone"]))
        self.wait(UNFLUSHED_MS_MAX + 1)
        self.wait(100_000)  # Retention of `old`, and all that is tried again.
        self.produce("a", partition=1)
        self.wait(UNFLUSHED_MS_MAX + 1)

    def forget(self, name: str) -> None:
        """Neither indexes nor pages of it are in memory."""
        for (topic, _), replica in self.node.node.broker.replicas.items():
            if topic == self.topics.get(name):
                for segment in replica.log.reader.segments:
                    replica.log.reader.indexes.discard(segment)
                    segment.release_index()
                    segment.file.close()
        self.node.disk.evict()

    def check(self) -> None:
        """Everybody is served, and after a crash all that was acknowledged is there."""
        node = self.node
        traces = self._trace()
        assert not traces, traces
        self._serves_others()
        node.crash()
        assert not node.node.broker.assignment.offline
        self.create("later")
        assert "later" in self.topics
        for (topic, partition), known in self.acknowledged.items():
            if topic not in node.node.broker.metadata.image.topics_by_id:
                assert topic == self.topics["gone"]
                continue
            if topic != self.topics.get("old"):
                self._compare(topic, partition, known)

    def _serves_others(self) -> None:
        out_of_service = self.node.node.broker.metadata.log.fault
        self.create("after")
        if "after" not in self.topics:
            # What a failed flush of the metadata log has left there, only a start can find out.
            assert out_of_service, "no topic can be created any more"
        names = [name for name in ("after", "old", "a") if name in self.topics]
        partitions = [("a", p) for p in range(2)] if "a" in names else []
        stored = 0
        for name, partition in [*((n, 0) for n in names if n != "a"), *partitions]:
            before = sum(map(len, self.acknowledged.values()))
            self.produce(name, partition)
            stored += sum(map(len, self.acknowledged.values())) - before
        faults = self.node.metrics.partitions_with_faults
        assert faults <= 1
        assert stored >= len(names) - faults - self.node.metrics.partitions_offline
        for name in names:
            self.fetch(name)

    def _compare(self, topic: bytes, partition: int, known: dict[int, int]) -> None:
        start = self.node.offset_of(topic, -2, partition).offset
        assert start <= self.start_offsets.get((topic, partition), 0)
        found: dict[int, int] = {}
        offset = start
        while offset < self.node.offset_of(topic, -1, partition).offset:
            result, body = self.node.fetched(topic, offset, partition=partition)
            assert result.error_code == 0, result.error_message
            for header, view in split_batches(memoryview(body)):
                column = decode_batch(view, header, HISTORY).column(0).to_pylist()
                found |= {header.base_offset + i: value for i, value in enumerate(column)}
                offset = header.next_offset
        missing = {o: v for o, v in known.items() if o >= start and found.get(o) != v}
        assert not missing, f"partition {partition}: {len(missing)} rows lost: {list(missing)[:5]}"


def one_run(root: Path, nth: int, number: int) -> CallLog:
    node = NodeDriver(root)
    course = Course(node)
    with failing_calls(nth, number) as log:
        course.run()
    course.check()
    shutil.rmtree(root)
    return log


@pytest.fixture(autouse=True)
def _soon_compacted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata_log, "_COMPACT_ENTRIES_MIN", 6)
    monkeypatch.setattr(metadata_log, "_COMPACT_BYTES_MIN", 1)
    open_new_logs_by_jobs(monkeypatch)  # Making a new log calls nothing.
    for name in ("fsync", "fdatasync"):  # A crash here is one of the process: nothing is lost.
        monkeypatch.setattr(os, name, lambda _: None)


@pytest.mark.parametrize(
    ("number", "part"),
    [
        *((errno.EIO, part) for part in range(PARTS)),
        (errno.ENOSPC, 0),
        (errno.EMFILE, 0),
        *(
            pytest.param(number, part, marks=pytest.mark.long)
            for number in (errno.ENOSPC, errno.EMFILE)
            for part in range(1, PARTS)
        ),
    ],
)
def test_a_call_that_fails_once(tmp_path: Path, number: int, part: int) -> None:
    # Up to the one that fails, the calls are those of a course in which none does.
    sound = one_run(tmp_path / "sound", -1, 0)
    names = sound.names
    assert len(names) < CALLS_MAX, "the course never ends"
    # The course comes by each place in many states, of which the first and the last differ most.
    last = {place: nth for nth, place in enumerate(sound.places)}
    first = {place: nth for nth, place in reversed(list(enumerate(sound.places)))}
    chosen = [
        nth for nth in sorted({*first.values(), *last.values()}) if names[nth] in CAN_FAIL[number]
    ]
    assert chosen
    for nth in chosen[part::PARTS]:
        assert one_run(tmp_path / str(nth), nth, number).failed == names[nth]


def test_the_course_covers_all_its_calls(tmp_path: Path) -> None:
    node = NodeDriver(tmp_path)
    course = Course(node)
    kinds: set[str] = set()
    original = NodeDriver._run

    def run(driver: NodeDriver, start: Any, error: BaseException | None = None) -> Any:
        kinds.add(start.job.kind)
        return original(driver, start, error)

    with mock.patch.object(NodeDriver, "_run", run), failing_calls(-1, 0) as log:
        course.run()
    assert kinds == {
        "create directories", "metadata append", "metadata compaction", "open log", "flush",
        "trim", "remove files", "remove directories", "load index", "cold read",
    }  # fmt: skip
    assert not [line for line in node.lines if line.level in ("warning", "error")]
    assert set(CALLS) - set(log.names) <= {"chmod", "ftruncate", "lstat", "stat", "listdir"}
    data = Path(node.config.data_dir) / "data"
    assert list(data.glob("a-0/producers-*.snapshot"))
    course.check()
