"""What exactly-once costs: rows that are staged, decided and published, beside rows that are not.

Publishing is a copy on the leader's machine; its opponent reads the same bytes mapped, computes
their checksum twice, writes and flushes them. On three brokers all bytes are copied twice: the
opponent is a plain produce of the same rows. Brokers, followers and the load share the processors,
so that nothing here predicts what three machines would do.
"""

from __future__ import annotations

import itertools
import mmap
import os
import secrets
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final, TypeVar

import pyarrow as pa

from benchmarks.bench_cluster import BROKERS, cluster, topic_on, until
from benchmarks.harness import Comparison, Settings, interleave
from benchmarks.load import Frame, Load
from benchmarks.quiver import (
    BrokerProcess,
    Topic,
    expect_rows,
    header_of,
    largest_batch,
    numbered,
    open_load,
    produce_frame,
    produced,
    producer_id,
    running,
    temporary_topic,
)
from quiverlog.batch.checksum import crc32c
from quiverlog.batch.codec import encode_batch
from quiverlog.client.client import Client
from quiverlog.core.controller.internal_topics import INTERNAL_TOPICS, STAGED, TRANSACTIONS
from quiverlog.wire import frames
from quiverlog.wire import messages as m
from quiverlog.wire.transaction_messages import (
    CommittedAttempt,
    CommittedPart,
    CommitTransactionRequest,
    CommitTransactionResponse,
    OpenTransactionRequest,
    OpenTransactionResponse,
)

MIB: Final = 1024 * 1024
PUBLISHED_BYTES: Final = 32 * MIB
LARGE_BYTES: Final = 2 * MIB
OF_COPY_MIN, OF_COPY_GOAL = 0.6, 0.8
BATCH_BYTES: Final = 1 * MIB
BATCHES: Final = 48
DEPTH: Final = 4
ATTEMPT: Final = b"benchmark-exact1"

_R = TypeVar("_R", bound=m.Response)


def run(settings: Settings) -> list[Comparison]:
    return [published(settings), on_three_brokers(settings)]


class Holder:
    """One transactional id: stages batches beside their leader, and commits them."""

    def __init__(self, brokers: dict[int, BrokerProcess], client: Client, stack: ExitStack) -> None:
        self._brokers = brokers
        self._client = client
        self._stack = stack
        self._loads: dict[int, Load] = {}
        self._numbers = itertools.count(1)
        self._sequences = itertools.count(1)
        self._id = f"benchmark-{secrets.token_hex(4)}"
        self._make_topics()
        self._coordinator = self._leader(TRANSACTIONS, crc32c(self._id.encode()) % 16)
        until(self._is_open, "the coordinator serves", every_seconds=0.2)

    def _load(self, node_id: int) -> Load:
        if node_id not in self._loads:
            self._loads[node_id] = self._stack.enter_context(open_load(self._brokers[node_id]))
        return self._loads[node_id]

    def _ask(self, node_id: int, request: m.Request, kind: type[_R]) -> _R:
        reply = self._load(node_id).exchange([frames.encode(request, next(self._numbers))])
        response = frames.decode_response(header_of(reply), request.API)
        assert isinstance(response, kind)
        return response

    def _open(self, node_id: int) -> OpenTransactionResponse:
        request = OpenTransactionRequest(transactional_id=self._id, instance=b"one")
        return self._ask(node_id, request, OpenTransactionResponse)

    def _make_topics(self) -> None:
        def made() -> bool:
            for node_id in self._brokers:
                self._open(node_id)
            topics = self._client.metadata([STAGED, TRANSACTIONS]).topics
            leaders = [one.leader for topic in topics.values() for one in topic.partitions]
            return len(topics) == 2 and min(leaders) >= 0

        until(made, "both internal topics are there", every_seconds=0.2)

    def _leader(self, topic: str, partition: int) -> int:
        return self._client.metadata([topic]).topics[topic].partitions[partition].leader

    def _is_open(self) -> bool:
        response = self._open(self._coordinator)
        self.epoch = response.epoch
        return not response.error_code

    # --- a transaction -------------------------------------------------------------------------
    def staged_on(self, node_id: int) -> tuple[Topic, int]:
        """The first partition of `__staged` that the broker leads."""
        info = self._client.metadata([STAGED]).topics[STAGED]
        for one in info.partitions:
            if one.leader == node_id:
                topic = Topic(STAGED, info.topic_id, info.schema_id, one.leader_epoch)
                return topic, one.partition
        raise AssertionError(f"broker {node_id} leads no partition of {STAGED}")

    def rows_to_stage(self, target: Topic, batch: bytes, rows: int, count: int) -> list[bytearray]:
        """One staged batch for each, numbered."""
        self.sequence = next(self._sequences)
        values: list[Any] = [
            0, self._id, self.epoch, self.sequence, ATTEMPT, target.topic_id, 0, rows, bytes(batch),
        ]  # fmt: skip
        schema = INTERNAL_TOPICS[STAGED].schema
        columns = [pa.array([v], f.type) for v, f in zip(values, schema, strict=True)]
        data = pa.record_batch(columns, schema=schema)
        outer = encode_batch(data, schema_id=1, timestamp_us=time.time_ns() // 1000)
        return numbered(outer, count, producer_id=producer_id(self._client), rows=1)

    def commit(self, staged_partition: int, first: int, next_offset: int, row_count: int) -> None:
        """Returns when all is published."""
        part = CommittedPart(staged_partition, first, next_offset, row_count)
        request = CommitTransactionRequest(
            transactional_id=self._id,
            epoch=self.epoch,
            sequence=self.sequence,
            attempts=[CommittedAttempt(ATTEMPT, row_count, [part])],
            wait=1,
        )
        response = self._ask(self._coordinator, request, CommitTransactionResponse)
        if response.error_code or not response.is_published:
            raise AssertionError(f"not committed and published: {response}")


def _staged_frame(topic: Topic, partition: int, batch: bytearray, number: int) -> Frame:
    entry = m.ProducePartition(topic.topic_id, partition, topic.leader_epoch, len(batch))
    return [frames.encode(m.ProduceRequest(partitions=[entry]), 1 + number, len(batch)), batch]


def _send(load: Load, requests: list[Frame]) -> tuple[int, int]:
    """The base offsets of the first and the last batch."""
    offsets: list[int] = []
    waiting = 0
    for frame in requests:
        if waiting == DEPTH:
            offsets.append(produced(load.receive()).base_offset)
            waiting -= 1
        load.send(frame)
        waiting += 1
    offsets += [produced(load.receive()).base_offset for _ in range(waiting)]
    return offsets[0], offsets[-1]


# --- publishing, on one broker --------------------------------------------------------------------
def published(settings: Settings) -> Comparison:
    """MB/s from COMMIT to the answer that all is published."""
    count = settings.scaled(PUBLISHED_BYTES // LARGE_BYTES, at_least=2)
    with running() as (broker, client), ExitStack() as stack:
        node_id = next(iter(client.metadata([]).brokers))
        holder = Holder({node_id: broker}, client, stack)
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        names = itertools.count()
        with temporary_topic(client, "published") as topic, open_load(broker) as load:
            batch, rows = largest_batch(LARGE_BYTES, schema_id=topic.schema_id)
            total = 0

            def ours() -> float:
                nonlocal total
                staged, partition = holder.staged_on(node_id)
                batches = holder.rows_to_stage(topic, batch, rows, count)
                requests = [_staged_frame(staged, partition, b, n) for n, b in enumerate(batches)]
                first, last = _send(load, requests)
                began = time.perf_counter()
                holder.commit(partition, first, last + 1, rows * count)
                seconds = time.perf_counter() - began
                total += rows * count
                return count * len(batch) / seconds / 1e6

            def bare() -> float:
                return _copied(directory / f"{next(names)}", batch, count)

            measured = interleave(settings.rounds, ours, bare)
            expect_rows(client, "published", total)
    return Comparison(
        f"publishing {count} batches of 2 MiB: beside a bare copy",
        "MB/s",
        measured.ours,
        measured.baseline,
        OF_COPY_MIN,
        OF_COPY_GOAL,
    )


def _copied(path: Path, batch: bytearray, count: int) -> float:
    source = path.with_suffix(".source")
    source.write_bytes(bytes(batch) * count)
    size = len(batch)
    with source.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        view = memoryview(mapped)
        began = time.perf_counter()
        with path.open("wb", buffering=0) as out:
            for number in range(count):
                one = view[number * size : (number + 1) * size]
                crc32c(one)
                crc32c(one)
                out.write(one)
                one.release()
            os.fsync(out.fileno())
        seconds = time.perf_counter() - began
        view.release()
    path.unlink()
    source.unlink()
    return count * size / seconds / 1e6


# --- end to end, on three brokers -----------------------------------------------------------------
def on_three_brokers(settings: Settings) -> Comparison:
    """MB/s of rows to three copies: staged, decided and published, beside produced."""
    count = settings.scaled(BATCHES, at_least=4)
    names = itertools.count()
    with cluster() as (brokers, client), ExitStack() as stack:
        holder = Holder(brokers, client, stack)

        def ours() -> float:
            name = f"exactly-{next(names)}"
            with topic_on(brokers, client, name, BROKERS) as (topic, leader, _):
                node_id = next(n for n, one in brokers.items() if one is leader)
                batch, rows = largest_batch(BATCH_BYTES, schema_id=topic.schema_id)
                staged, partition = holder.staged_on(node_id)
                batches = holder.rows_to_stage(topic, batch, rows, count)
                requests = [_staged_frame(staged, partition, b, n) for n, b in enumerate(batches)]
                with open_load(leader) as load:
                    began = time.perf_counter()
                    first, last = _send(load, requests)
                    holder.commit(partition, first, last + 1, rows * count)
                    seconds = time.perf_counter() - began
                expect_rows(client, name, rows * count)
            return count * len(batch) / seconds / 1e6

        def plain() -> float:
            name = f"plain-{next(names)}"
            with topic_on(brokers, client, name, BROKERS) as (topic, leader, _):
                batch, rows = largest_batch(BATCH_BYTES, schema_id=topic.schema_id)
                batches = numbered(batch, count, producer_id=producer_id(client), rows=rows)
                requests = [produce_frame(topic, one, n) for n, one in enumerate(batches)]
                with open_load(leader) as load:
                    began = time.perf_counter()
                    _send(load, requests)
                    seconds = time.perf_counter() - began
                expect_rows(client, name, rows * count)
            return count * len(batch) / seconds / 1e6

        measured = interleave(settings.rounds, ours, plain)
    return Comparison(
        f"{count} batches of 1 MiB to three copies, staged and published: beside produced",
        "MB/s",
        measured.ours,
        measured.baseline,
        None,
    )
