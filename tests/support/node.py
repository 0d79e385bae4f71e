"""Drives a Node by hand: every event, every moment and every flush is the test's decision.

Owns the clock, the counter in place of randomness, and the flushes that the node has asked for
(`syncs`), which happen at the test's `flush()`. Not here: what a test asserts.
"""

from __future__ import annotations

import dataclasses
import itertools
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar, cast

import pyarrow as pa
import pytest

from quiverlog.batch.codec import split_batches
from quiverlog.batch.header import BatchHeader
from quiverlog.batch.schema import serialize_schema
from quiverlog.limits import BATCH_HEADER_BYTES
from quiverlog.node.node import Node
from quiverlog.node.partitions.directories import CreateDirectoriesJob
from quiverlog.node.runtime.config import NodeConfig
from quiverlog.node.runtime.effects import (
    Audited,
    CloseConnection,
    Effect,
    LogLine,
    Respond,
    SendToPeer,
    ShutdownComplete,
    StartComplete,
    StartJob,
)
from quiverlog.node.runtime.events import (
    ConnectionClosed,
    DiskSpace,
    Event,
    JobDone,
    RequestReceived,
    Shutdown,
    Tick,
)
from quiverlog.node.runtime.metrics import NodeMetrics
from quiverlog.storage.disk.disk import Disk
from quiverlog.storage.disk.posix import PosixDisk
from quiverlog.types import PRODUCER_COUNTERS_END, Now
from quiverlog.wire import messages as m
from scripts.protocol_model import ENTRY_ERRORS, REQUEST_ERRORS

from .batches import NO_PRODUCER, encode_data
from .guarded_disk import GuardedDisk

__all__ = ["SCHEMA", "NodeDriver", "batch_of", "rows_of"]

SCHEMA = pa.schema([("n", pa.int64())])
START_WALL_US = 1_700_000_000_000_000
GIB = 1024**3

_R = TypeVar("_R", bound=m.Response)


def batch_of(
    values: Sequence[int],
    *,
    schema_id: int = 1,
    at_us: int = START_WALL_US,
    producer: tuple[int, int, int] | None = None,
    schema: pa.Schema = SCHEMA,
) -> bytearray:
    """One encoded batch; `producer` is (id, epoch, base sequence)."""
    columns = [pa.array(values, type=field.type) for field in schema]
    data = pa.record_batch(columns, schema=schema)
    return encode_data(data, at_us=at_us, schema_id=schema_id, producer=producer or NO_PRODUCER)


def rows_of(body: bytes) -> list[tuple[int, int]]:
    """(offset, row count) of every batch in a fetched body."""
    return [(header.base_offset, header.row_count) for header, _ in split_batches(memoryview(body))]


def check_codes(response: m.Response) -> None:
    """Every code in an answer is one that docs/protocol.json lists."""
    entry_codes = {kind.code for kind in ENTRY_ERRORS[response.API]}
    request_codes = {kind.code for kind in REQUEST_ERRORS} | entry_codes
    assert response.error_code in request_codes | {0}, (response.API, response.error_code)
    for name in ("partitions", "topics", "results"):
        for entry in getattr(response, name, ()):
            code = getattr(entry, "error_code", 0)
            assert code in entry_codes | {0}, (response.API, code)


class NodeDriver:
    """One node on one disk, with a clock of its own.

    Args:
        root: where data directories may be made.
        make_disk: called at every start; what it returns must see the same files.
        config: fields of NodeConfig.
    """

    def __init__(
        self, root: Path, make_disk: Callable[[], Disk] = PosixDisk, **config: Any
    ) -> None:
        self._make_disk = make_disk
        self._root = root
        self._lives = 1
        # The test decides which node leads.
        usual = {"disk_reserve_bytes": 0, "leader_balance_period_ms": 0}
        self.config = NodeConfig(data_dir=str(root / "data-1"), **{**usual, **config})
        self._random = itertools.count(1)
        self.mono_us = 1_000_000
        self.wall_us = START_WALL_US
        self.syncs: list[StartJob] = []
        """Flushes that were asked for; other jobs are done at once, unless `hold_jobs`."""
        self.jobs: list[StartJob] = []
        self.hold_jobs = False
        self.started = self.shut_down = False
        self.lines: list[LogLine] = []
        self.audited: list[Audited] = []
        self.sent: list[SendToPeer] = []
        self.responses: list[Respond] = []
        self.closed: list[CloseConnection] = []
        self._correlation = itertools.count(1)
        self.start()

    # --- life ----------------------------------------------------------------------------------
    def start(self) -> None:
        self.metrics = NodeMetrics()
        self.disk = GuardedDisk(self._make_disk())
        disk = cast("Disk", self.disk)
        self.node = Node(self.config, disk, entropy=self._entropy, metrics=self.metrics)
        self.syncs.clear()
        self.jobs.clear()
        self.shut_down = self.started = False
        self._perform(self.node.start(self.now))
        self.run_until_idle()
        self._greet()

    def _greet(self) -> None:
        assert self.started
        for connection in (1, 2):
            self.call(m.HelloRequest(client_id=f"test-{connection}"), connection=connection)

    def stop(self) -> None:
        self.send(Shutdown())
        self.run_until_idle()
        while self.syncs:
            self.flush()
        assert self.shut_down

    def restart(self, **config: Any) -> None:
        """Stop cleanly and start again, perhaps with another configuration."""
        self.stop()
        self.config = dataclasses.replace(self.config, **config)
        self.start()

    def crash(self) -> None:
        """The process dies (what it wrote stays in the page cache), and a new one starts.

        The dead one still holds its lock in this process, so its successor gets a copy.
        """
        self._lives += 1
        data_dir = str(self._root / f"data-{self._lives}")
        shutil.copytree(self.config.data_dir, data_dir)
        self.config = dataclasses.replace(self.config, data_dir=data_dir)
        self.start()

    def _entropy(self, count: int) -> bytes:
        return next(self._random).to_bytes(count, "big")

    # --- time ----------------------------------------------------------------------------------
    @property
    def now(self) -> Now:
        return Now(self.mono_us, self.wall_us)

    def advance(self, ms: int) -> None:
        """Let time pass, with every Tick at the moment that the node wants it."""
        end = self.mono_us + ms * 1000
        while True:
            deadline = self.node.next_deadline_us()
            if deadline is None or deadline > end:
                break
            self.set_clock(max(deadline, self.mono_us))
            self.send(Tick())
        self.set_clock(end)

    def set_clock(self, mono_us: int) -> None:
        """Both clocks move on, without a Tick."""
        self.wall_us += mono_us - self.mono_us
        self.mono_us = mono_us

    def handle(self, *events: Event) -> list[Effect]:
        """What the loop does: nothing in it may wait for the disk."""
        self.disk.on_loop = True
        try:
            return self.node.handle_many(events, self.now)
        finally:
            self.disk.on_loop = False

    # --- events --------------------------------------------------------------------------------
    def send(self, event: Event) -> list[Effect]:
        effects = self._perform(self.handle(event))
        return effects + self.run_until_idle()

    def run_until_idle(self) -> list[Effect]:
        """Do the jobs that are no flushes, and whatever the node wants to do at once."""
        effects: list[Effect] = []
        while not self.hold_jobs:
            if self.jobs:
                effects += self._run(self.jobs.pop(0))
            elif self.node.next_deadline_us() == 0:
                effects += self._perform(self.handle(Tick()))
            else:
                break
        return effects

    def step(self) -> list[Effect]:
        """One job, or what the node wants to do at once."""
        if self.node.next_deadline_us() == 0:
            return self._perform(self.handle(Tick()))
        return self._run(self.jobs.pop(0))

    def _run(self, start: StartJob, error: BaseException | None = None) -> list[Effect]:
        result: object = None
        if error is None:
            try:
                result = start.job.run()
            except Exception as failure:
                error = failure
        return self._perform(self.handle(JobDone(start.job, result, error)))

    def request(self, request: m.Request, body: bytes = b"", *, connection: int = 1) -> int:
        """Send a request; returns its correlation id."""
        self._give_out(request, body)
        correlation = self._number(request)
        self.send(RequestReceived(connection, request, memoryview(bytearray(body))))
        return correlation

    def request_many(self, requests: Sequence[tuple[m.Request, bytes]]) -> list[Effect]:
        """Requests that arrive in one read."""
        events = []
        for request, body in requests:
            self._give_out(request, body)
        for request, body in requests:
            self._number(request)
            events.append(RequestReceived(1, request, memoryview(bytearray(body))))
        return self._perform(self.handle(*events)) + self.run_until_idle()

    def _number(self, request: m.Request) -> int:
        request.correlation_id = next(self._correlation)
        return request.correlation_id

    def call(
        self, request: m.Request, body: bytes = b"", *, connection: int = 1
    ) -> tuple[Any, bytes]:
        """Send a request that is answered at once; returns response and body."""
        correlation = self.request(request, body, connection=connection)
        answer = self.answer(correlation)
        assert answer is not None, f"{type(request).__name__} was not answered"
        return answer

    def answer(self, correlation: int) -> tuple[Any, bytes] | None:
        """The answer to a request, if there is one yet. Two answers are a bug."""
        found = [r for r in self.responses if r.correlation_id == correlation]
        assert len(found) <= 1
        if not found:
            return None
        return found[0].response, b"".join(found[0].body)

    def close_connection(self, connection: int) -> None:
        self.send(ConnectionClosed(connection))

    def disk_space(self, free_bytes: int) -> None:
        self.send(DiskSpace(free_bytes))

    def flush(self, error: BaseException | None = None, *, only: int | None = None) -> None:
        """Perform the flushes that were asked for so far, or `only` one (or let them fail)."""
        syncs, self.syncs = self.syncs, []
        if only is not None:
            self.syncs = syncs[:only] + syncs[only + 1 :]
            syncs = [syncs[only]]
        for sync in syncs:
            self._run(sync, error)
        self.run_until_idle()

    def _perform(self, effects: list[Effect]) -> list[Effect]:
        for effect in effects:
            if isinstance(effect, Respond):
                check_codes(effect.response)
                self.responses.append(effect)
            elif isinstance(effect, StartJob):
                (self.syncs if effect.job.kind == "flush" else self.jobs).append(effect)
            elif isinstance(effect, StartComplete):
                self.started = True
            elif isinstance(effect, LogLine):
                self.lines.append(effect)
            elif isinstance(effect, Audited):
                self.audited.append(effect)
            elif isinstance(effect, SendToPeer):
                self.sent.append(effect)
            elif isinstance(effect, CloseConnection):
                self.closed.append(effect)
            elif isinstance(effect, ShutdownComplete):
                self.shut_down = True
        return effects

    # --- requests that many tests make ---------------------------------------------------------
    def create(self, name: str = "t", partitions: int = 1, **configs: str) -> bytes:
        """A topic of one int64 column; returns its id. `retention_ms` is the key retention.ms."""
        new = m.NewTopic(
            name,
            serialize_schema(SCHEMA),
            partitions,
            1,
            [],
            {key.replace("_", "."): value for key, value in configs.items()},
        )
        response, _ = self.call(m.CreateTopicsRequest(topics=[new]))
        result = response.topics[0]
        assert result.error_code == 0, result.error_message
        return bytes(result.topic_id)

    def _give_out(self, request: m.Request, body: bytes) -> None:
        """Ask for the producer ids and epochs that a produce carries, as its producer has done."""
        at = 0
        for entry in request.partitions if isinstance(request, m.ProduceRequest) else ():
            if BATCH_HEADER_BYTES <= entry.batch_bytes <= len(body) - at:
                header = BatchHeader.unpack(body, at)
                self.give_out(header.producer_id, header.producer_epoch)
            at += max(0, entry.batch_bytes)

    def give_out(self, producer_id: int, epoch: int) -> None:
        """Ask for producer ids until this one was given out, and for its epochs."""
        ids = self.node.broker.producer_ids
        while producer_id >= 0 and producer_id % PRODUCER_COUNTERS_END >= ids.next:
            self.call(m.InitProducerIdRequest())
        while producer_id >= 0 and ids.assigned_epoch(producer_id) < epoch:
            newest = ids.newest_epoch(producer_id)
            self.call(m.InitProducerIdRequest(producer_id=producer_id, producer_epoch=newest))

    def produce(
        self,
        topic_id: bytes,
        *batches: bytes,
        partition: int = 0,
        durability: int = -1,
        leader_epoch: int = -1,
        timeout_ms: int = 30_000,
        connection: int = 1,
    ) -> int:
        """One entry with these batches; returns the correlation id."""
        body = b"".join(batches)
        entry = m.ProducePartition(topic_id, partition, leader_epoch, len(body))
        request = m.ProduceRequest(durability=durability, timeout_ms=timeout_ms, partitions=[entry])
        return self.request(request, body, connection=connection)

    def produced(self, topic_id: bytes, *batches: bytes, **options: Any) -> Any:
        """Produce, flush, and return the entry's result."""
        correlation = self.produce(topic_id, *batches, **options)
        while self.syncs and self.answer(correlation) is None:
            self.flush()
        answer = self.answer(correlation)
        assert answer is not None
        assert answer[0].error_code == 0, answer[0].error_message
        return answer[0].partitions[0]

    def fetch_request(self, topic_id: bytes, offset: int, **options: Any) -> m.FetchRequest:
        """`options` of the entry and of the request, distinguished by name."""
        names = ("leader_epoch", "last_epoch", "end_offset", "partition", "entry_bytes_max")
        entry = {k: options.pop(k) for k in names if k in options}
        if "entry_bytes_max" in entry:
            entry["bytes_max"] = entry.pop("entry_bytes_max")
        part = m.FetchPartition(topic_id=topic_id, offset=offset, **{"partition": 0, **entry})
        return m.FetchRequest(partitions=[part], **options)

    def fetched(self, topic_id: bytes, offset: int = 0, **options: Any) -> tuple[Any, bytes]:
        """A fetch that does not wait: (the entry's result, body)."""
        response, body = self.call(self.fetch_request(topic_id, offset, **options))
        return response.partitions[0], body

    def offset_of(self, topic_id: bytes, at: int, partition: int = 0) -> Any:
        """LIST_OFFSETS for one partition, without waiting."""
        entry = m.ListOffsetsPartition(topic_id, partition, at=at)
        response, _ = self.call(m.ListOffsetsRequest(partitions=[entry]))
        return response.partitions[0]

    def broker_end(self, topic_id: bytes, partition: int = 0) -> int:
        """The end of the log, flushed or not."""
        return self.node.broker.replicas[topic_id, partition].log.log_end_offset

    def headers(self, topic_id: bytes, offset: int = 0) -> list[BatchHeader]:
        """The headers of all readable batches from `offset`."""
        found: list[BatchHeader] = []
        while True:
            _, body = self.fetched(topic_id, offset, entry_bytes_max=2**26, bytes_max=2**26)
            if not body:
                return found
            found += [header for header, _ in split_batches(memoryview(body))]
            offset = found[-1].next_offset


def open_new_logs_by_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the directories of new partitions had been there before, and might hold something."""
    run = CreateDirectoriesJob.run
    monkeypatch.setattr(CreateDirectoriesJob, "run", lambda job: run(job)._replace(made={}))
