"""What exactly-once costs: rows that are staged, decided and published, beside rows that are not.

Publishing is a copy on the leader's machine; its opponent reads the same bytes mapped, computes
their checksum twice, writes and flushes them. On three brokers all bytes are copied twice: the
opponent is a plain produce of the same rows. Brokers, followers and the load share the processors,
so that nothing here predicts what three machines would do.

A reader fetches published rows, and the same ones that were produced. A producer sends one row
after the other, alone and beside a publish of 100 MB/s that was staged before. Spark writes by
default and with `deliveryMode=at_least_once`.
"""

from __future__ import annotations

import itertools
import mmap
import os
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Final

from benchmarks.bench_churn import LEVELS, OneRow, p99
from benchmarks.bench_cluster import BROKERS, cluster, topic_on
from benchmarks.bench_spark_write import TASKS, batch_write, columns, sink_options, stream_write
from benchmarks.harness import Comparison, Settings, interleave
from benchmarks.load import Load
from benchmarks.quiver import (
    BrokerProcess,
    Topic,
    expect_rows,
    fetch_frame,
    fetched,
    largest_batch,
    numbered,
    open_load,
    produce_frame,
    producer_id,
    running,
    temporary_topic,
)
from benchmarks.spark import run_stream, session, trigger_ms
from benchmarks.staging import DEPTH, Holder, Staged, send
from quiverlog.batch.checksum import crc32c
from quiverlog.client.client import Client
from quiverlog.limits import MIB

PUBLISHED_BYTES: Final = 32 * MIB
LARGE_BYTES: Final = 2 * MIB
OF_COPY_MIN, OF_COPY_GOAL = 0.6, 0.8
BATCH_BYTES: Final = 1 * MIB
BATCHES: Final = 48
FETCHES: Final = 64
PASSES: Final = 8
OF_PRODUCED_MIN, OF_PRODUCED_GOAL = 0.97, 1.0
BESIDE_BATCHES: Final = 10
BESIDE_PER_SECOND: Final = 10
BESIDE_SECONDS: Final = 4
P99_TIMES_MAX, P99_TIMES_GOAL = 3, 1.5
MILLION: Final = 1_000_000
SPARK_ROUNDS_MAX: Final = 3
ONE_ROW_TRIGGERS: Final = 40
ONE_ROW_WARMING: Final = 5
ONE_ROW_MORE_MS, ONE_ROW_MORE_GOAL_MS = 30.0, 12.0


def run(settings: Settings) -> list[Comparison]:
    with running() as (broker, client), ExitStack() as stack:
        one = One(broker, client, stack, settings)
        rows = [one.published(), one.fetched(), *(one.beside(level) for level in LEVELS)]
    return [*rows, on_three_brokers(settings), *through_spark(settings)]


class One:
    """One broker, and an id at it."""

    def __init__(
        self, broker: BrokerProcess, client: Client, stack: ExitStack, settings: Settings
    ) -> None:
        self._broker = broker
        self._client = client
        self._settings = settings
        self._node_id = next(iter(client.metadata([]).brokers))
        self._holder = Holder({self._node_id: broker}, client, stack)
        self._staged: Staged = self._holder.staged_on(self._node_id)

    def _stage(
        self, load: Load, topic: Topic, batch: bytes, rows: int, count: int
    ) -> tuple[int, int]:
        self._holder.begin()
        requests = self._holder.frames(self._staged, [(topic, batch, rows)], count)
        first, last = send(load, requests)
        return first, last + 1

    def _commit(self, first: int, next_offset: int, rows: int) -> None:
        self._holder.commit(self._staged[1], first, next_offset, rows)

    def published(self) -> Comparison:
        """MB/s from COMMIT to the answer that all is published."""
        count = self._settings.scaled(PUBLISHED_BYTES // LARGE_BYTES, at_least=2)
        names = itertools.count()
        with (
            tempfile.TemporaryDirectory() as directory,
            temporary_topic(self._client, "published") as topic,
            open_load(self._broker) as load,
        ):
            batch, rows = largest_batch(LARGE_BYTES, schema_id=topic.schema_id)
            total = 0

            def ours() -> float:
                nonlocal total
                first, next_offset = self._stage(load, topic, bytes(batch), rows, count)
                began = time.perf_counter()
                self._commit(first, next_offset, rows * count)
                seconds = time.perf_counter() - began
                total += rows * count
                return count * len(batch) / seconds / 1e6

            def bare() -> float:
                return _copied(Path(directory) / f"{next(names)}", batch, count)

            measured = interleave(self._settings.rounds, ours, bare)
            expect_rows(self._client, "published", total)
        return Comparison(
            f"publishing {count} batches of 2 MiB: beside a bare copy",
            "MB/s",
            measured.ours,
            measured.baseline,
            OF_COPY_MIN,
            OF_COPY_GOAL,
        )

    def fetched(self) -> Comparison:
        """MB/s of the same rows, published and produced."""
        count = self._settings.scaled(FETCHES, at_least=8)
        with (
            temporary_topic(self._client, "by-transaction", durability="memory") as ours,
            temporary_topic(self._client, "by-produce", durability="memory") as plain,
            open_load(self._broker) as load,
        ):
            batch, rows = largest_batch(BATCH_BYTES, schema_id=ours.schema_id)
            first, next_offset = self._stage(load, ours, bytes(batch), rows, count)
            self._commit(first, next_offset, rows * count)
            batches = numbered(batch, count, producer_id=producer_id(self._client), rows=rows)
            send(load, [produce_frame(plain, one, n) for n, one in enumerate(batches)])
            asked = {
                topic.name: [fetch_frame(topic, n * rows, len(batch), n) for n in range(count)]
                for topic in (ours, plain)
            }
            for requests in asked.values():
                for request in requests:
                    _, body = fetched(load.exchange(request))
                    assert len(body) == len(batch), "each fetch has one batch"

            def speed(topic: Topic) -> float:
                seconds = load.pipeline(asked[topic.name] * PASSES, depth=DEPTH)
                return PASSES * count * len(batch) / seconds / 1e6

            measured = interleave(self._settings.rounds, lambda: speed(ours), lambda: speed(plain))
        return Comparison(
            "published batches of 1 MiB fetched: beside produced ones",
            "MB/s",
            measured.ours,
            measured.baseline,
            OF_PRODUCED_MIN,
            OF_PRODUCED_GOAL,
        )

    def beside(self, level: str) -> Comparison:
        """The p99 of one row after the other, beside 100 MB/s of publishing and alone."""
        seconds = self._settings.scaled(BESIDE_SECONDS)
        lags: list[float] = []
        with (
            temporary_topic(self._client, f"rows-{level}", durability=level) as topic,
            temporary_topic(self._client, f"beside-{level}", durability="memory") as target,
            open_load(self._broker) as load,
            open_load(self._broker) as staging,
        ):
            producer = OneRow(topic, load)
            batch, rows = largest_batch(BATCH_BYTES, schema_id=target.schema_id)

            @contextmanager
            def publishing() -> Iterator[None]:
                """Commit what was staged before, a tenth of it in each tenth of a second."""
                parts: list[tuple[int, int, int]] = []
                for _ in range(seconds * BESIDE_PER_SECOND):
                    ends = self._stage(staging, target, bytes(batch), rows, BESIDE_BATCHES)
                    parts.append((self._holder.sequence, *ends))
                began = time.perf_counter()

                def commit() -> None:
                    for number, (sequence, first, next_offset) in enumerate(parts):
                        time.sleep(max(0, began + number / BESIDE_PER_SECOND - time.perf_counter()))
                        self._holder.sequence = sequence
                        self._commit(first, next_offset, rows * BESIDE_BATCHES)
                    lags.append((time.perf_counter() - began) / seconds)

                thread = threading.Thread(target=commit)
                thread.start()
                yield
                thread.join()

            def ours() -> float:
                with publishing():
                    return p99(producer.during(seconds))

            def alone() -> float:
                return p99(producer.during(seconds))

            measured = interleave(self._settings.rounds, ours, alone)
        return Comparison(
            f"one row, {level}, beside 100 MB/s of publishing: p99",
            "us",
            measured.ours,
            measured.baseline,
            round(1 / P99_TIMES_MAX, 4),
            round(1 / P99_TIMES_GOAL, 4),
            bigger_is_better=False,
            note=f"the slowest round published what it should in {max(lags):.2f} of its time",
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
                staged = holder.staged_on(node_id)
                holder.begin()
                requests = holder.frames(staged, [(topic, bytes(batch), rows)], count)
                with open_load(leader) as load:
                    began = time.perf_counter()
                    first, last = send(load, requests)
                    holder.commit(staged[1], first, last + 1, rows * count)
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
                    send(load, requests)
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


# --- through Spark --------------------------------------------------------------------------------
def through_spark(settings: Settings) -> Iterator[Comparison]:
    """The sink's default, of the same writes at least once."""
    with running() as (broker, client):
        with temporary_topic(client, "written", partitions=TASKS):
            yield from _writes(settings, client, broker.bootstrap, 1, 0.85, 0.92)
        with temporary_topic(client, "written", partitions=TASKS):
            yield from _writes(settings, client, broker.bootstrap, 5, 0.75, 0.85)
        with temporary_topic(client, "written"):
            yield _one_row(settings, broker.bootstrap)
    with (
        cluster() as (brokers, client),
        temporary_topic(
            client, "written", partitions=TASKS, copies=BROKERS, durability="replicated"
        ),
    ):
        bootstrap = ",".join(one.bootstrap for one in brokers.values())
        yield from _writes(settings, client, bootstrap, 1, 0.5, 0.65, ", three copies")


def _writes(
    settings: Settings,
    client: Client,
    bootstrap: str,
    millions: int,
    budget: float,
    goal: float,
    where: str = "",
) -> Iterator[Comparison]:
    """Rows/s of batch writes, and of a stream's micro-batches, of so many rows each."""
    rows = settings.scaled(millions * MILLION)
    once = sink_options(bootstrap)
    least = once | {"deliveryMode": "at_least_once"}
    for kind, write in (("batch", batch_write), ("streaming", stream_write)):
        measured = interleave(
            min(settings.rounds, SPARK_ROUNDS_MAX),
            partial(write, rows, "quiverlog", once, client),
            partial(write, rows, "quiverlog", least, client),
        )
        yield Comparison(
            f"Spark {kind} write, {millions}M rows{where}, exactly once: of at least once",
            "rows/s",
            measured.ours,
            measured.baseline,
            budget,
            goal,
        )


def _one_row(settings: Settings, bootstrap: str) -> Comparison:
    """Milliseconds of a trigger with one row and one task, more than at least once."""
    triggers = ONE_ROW_WARMING + settings.scaled(ONE_ROW_TRIGGERS - ONE_ROW_WARMING)
    once = sink_options(bootstrap)

    def trigger(options: dict[str, str]) -> float:
        source = session().readStream.format("rate-micro-batch")
        frame = source.options(rowsPerBatch=1, numPartitions=1).load()
        writer = columns(frame, "value").writeStream.format("quiverlog").options(**options)
        return trigger_ms(run_stream(writer, triggers=triggers), skip=ONE_ROW_WARMING)

    measured = interleave(
        min(settings.rounds, SPARK_ROUNDS_MAX),
        partial(trigger, once),
        partial(trigger, once | {"deliveryMode": "at_least_once"}),
    )
    more = [a - b for a, b in zip(measured.ours, measured.baseline, strict=True)]
    return Comparison(
        "Spark, one row and one task: p50 of a trigger, exactly once more than at least once",
        "ms",
        [max(figure, ONE_ROW_MORE_MS / 100) for figure in more],
        [ONE_ROW_MORE_MS],
        1.0,
        ONE_ROW_MORE_MS / ONE_ROW_MORE_GOAL_MS,
        bigger_is_better=False,
    )
