"""Python clients and brokers of one process: rows in and out, small writes, disk and start.

Kafka's client is confluent-kafka, which is C below; a row is a message whose value is JSON. Both
sides acknowledge from the page cache (`acks=all` on one broker; durability `memory`), and a round
ends when all is acknowledged.
"""

from __future__ import annotations

import gc
import itertools
import json
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import psutil

from benchmarks.kafka.brokers import Cluster
from benchmarks.kafka.measure import OURS, Plan, Row, both_clusters, in_turns
from benchmarks.kafka.through_spark import (
    FORMATS,
    PARTITIONS,
    expect_kafka,
    kafka_session,
    to_kafka,
    to_quiverlog,
)
from benchmarks.quiver import BrokerProcess, expect_rows, running, temporary_topic
from benchmarks.rows import SCHEMA, make_dicts
from quiverlog.client.client import Client

ROWS = 400_000
SENT_AT_ONCE = 10_000
SMALL_ROWS = 300_000
SMALL_AT_ONCE = 10
STORED_ROWS = 1_000_000
QUEUE_MESSAGES = 1_000_000
WAIT_SECONDS_MAX = 60.0

__all__ = ["disk", "python_client", "start"]

Rows = list[dict[str, Any]]


# --- rows in and out ------------------------------------------------------------------------------
def python_client(plan: Plan) -> list[Row]:
    """Rows per second: dicts of four fields in and out, and in tens."""
    rows = _plain(plan.scaled(ROWS))
    parts = [rows[at : at + SENT_AT_ONCE] for at in range(0, len(rows), SENT_AT_ONCE)]
    small = rows[: plan.scaled(SMALL_ROWS)]
    tens = [small[at : at + SMALL_AT_ONCE] for at in range(0, len(small), SMALL_AT_ONCE)]
    gc.collect()
    gc.freeze()  # what only the benchmark keeps must not lengthen each collection
    names = (f"dicts-{number}" for number in itertools.count())
    disk_bytes: dict[str, list[float]] = {}

    def ours(sent: Sequence[Rows], count: int) -> float:
        name = next(names)
        with temporary_topic(client, name, durability="memory"):
            with client.producer(name) as producer:
                began = time.perf_counter()
                for part in sent:
                    producer.send(part)
                producer.flush()
                seconds = time.perf_counter() - began
            expect_rows(client, name, count)
            disk_bytes.setdefault(OURS, []).append(_stored_bytes(broker, name) / count)
        return count / seconds

    def theirs(cluster: Cluster, sent: Sequence[Rows], count: int) -> float:
        name = next(names)
        cluster.create_topic(name, 1)
        seconds = _produce(cluster, name, sent)
        expect_kafka(cluster, name, count)
        stored = cluster.disk_bytes(name) / count
        disk_bytes.setdefault(cluster.tuning.name, []).append(stored)
        cluster.delete_topic(name)
        return count / seconds

    with running() as (broker, client), both_clusters(1) as clusters:

        def sides(sent: Sequence[Rows], count: int) -> dict[str, Callable[[], float]]:
            kafka = {name: partial(theirs, one, sent, count) for name, one in clusters.items()}
            return {OURS: partial(ours, sent, count), **kafka}

        print("  produce", flush=True)
        produced = in_turns(plan.rounds, sides(parts, len(rows)))
        disk_bytes.clear()
        print("  produce in tens", flush=True)
        in_tens = in_turns(plan.rounds, sides(tens, len(small)))
        print("  consume", flush=True)
        consumed = _consumed(plan, client, clusters, parts)
    return [
        Row("Python client, produce dicts of 4 fields (JSON)", "rows/s", produced),
        Row("Python client, consume dicts of 4 fields (JSON)", "rows/s", consumed),
        Row(f"Python client, {len(small):,} rows sent in tens (JSON)", "rows/s", in_tens),
        Row("disk per row, rows sent in tens (JSON)", "bytes", disk_bytes, bigger_is_better=False),
    ]


def _plain(count: int) -> Rows:
    """Dicts that JSON can carry: the moment as microseconds, which is what both sides store."""
    rows = make_dicts(count)
    for number, row in enumerate(rows):
        row["ts"] = 1_700_000_000_000_000 + number
    return rows


def _produce(cluster: Cluster, name: str, sent: Iterable[Rows]) -> float:
    """Seconds until every row is acknowledged."""
    from confluent_kafka import Producer

    failed: list[str] = []
    tuned = {k: v for k, v in cluster.tuning.producer.items() if k in ("linger.ms", "batch.size")}
    producer = Producer(
        {"bootstrap.servers": cluster.bootstrap, "acks": "all", "log_level": 0}
        | {"queue.buffering.max.messages": QUEUE_MESSAGES, "enable.idempotence": True}
        | {"on_delivery": lambda error, _: failed.append(str(error)) if error else None}
        | tuned
    )
    dumps = json.JSONEncoder(separators=(",", ":")).encode
    began = time.perf_counter()
    for part in sent:
        for row in part:
            producer.produce(name, dumps(row))
        producer.poll(0)
    left = producer.flush(WAIT_SECONDS_MAX)
    seconds = time.perf_counter() - began
    assert not left, f"{left} rows were not acknowledged"
    assert not failed, failed[0]
    return seconds


def _consumed(
    plan: Plan, client: Client, clusters: dict[str, Cluster], parts: Sequence[Rows]
) -> dict[str, list[float]]:
    """Rows per second, from a consumer's start until every row is a dict again."""
    count = sum(map(len, parts))
    for cluster in clusters.values():
        cluster.create_topic("stored", 1)
        _produce(cluster, "stored", parts)
    with temporary_topic(client, "stored", durability="memory"):
        with client.producer("stored") as producer:
            for part in parts:
                producer.send(part)

        def ours() -> float:
            began = time.perf_counter()
            found = 0
            for batch in client.consumer("stored", start="earliest"):
                found += len(batch.data.to_pylist())
            assert found == count
            return count / (time.perf_counter() - began)

        kafka = {name: partial(_consume, one, count) for name, one in clusters.items()}
        return in_turns(plan.rounds, {OURS: ours, **kafka})


def _consume(cluster: Cluster, count: int) -> float:
    from confluent_kafka import Consumer, TopicPartition

    larger = {"fetch.message.max.bytes": 16 * 1024 * 1024, "queued.min.messages": 1_000_000}
    consumer = Consumer(
        {"bootstrap.servers": cluster.bootstrap, "group.id": "benchmark", "log_level": 0}
        | {"enable.auto.commit": False}
        | (larger if cluster.tuning.consumer else {})
    )
    try:
        began = time.perf_counter()
        consumer.assign([TopicPartition("stored", 0, 0)])
        found = 0
        while found < count:
            messages = consumer.consume(10_000, timeout=1.0)
            assert messages or time.perf_counter() - began < WAIT_SECONDS_MAX, "rows are missing"
            for message in messages:
                json.loads(message.value())
            found += len(messages)
        return count / (time.perf_counter() - began)
    finally:
        consumer.close()


# --- disk -----------------------------------------------------------------------------------------
def disk(plan: Plan) -> list[Row]:
    """Bytes of disk per row, as each system's Spark sink stores the same rows."""
    kafka_session()
    rows = plan.scaled(STORED_ROWS)
    found = []
    with running() as (broker, client), both_clusters(1) as clusters:
        for kind in ("none", "zstd"):
            print(f"  compression {kind}", flush=True)
            topic = {"durability": "memory", "compression.type": kind}
            client.create_topic(kind, SCHEMA, partitions=PARTITIONS, config=topic)
            to_quiverlog(broker.bootstrap, kind, rows)
            expect_rows(client, kind, rows)
            ours = _stored_bytes(broker, kind) / rows
            for form in FORMATS:
                name = f"{kind}-{form}"
                figures = {OURS: [ours]}
                for side, cluster in clusters.items():
                    cluster.create_topic(name, PARTITIONS)
                    to_kafka(cluster, name, form, rows, kind)
                    expect_kafka(cluster, name, rows)
                    figures[side] = [cluster.disk_bytes(name) / rows]
                what = f"disk per row, compression `{kind}`, Kafka's rows as {form}"
                found.append(Row(what, "bytes", figures, bigger_is_better=False))
    return found


def _stored_bytes(broker: BrokerProcess, name: str) -> int:
    """Allocated by the topic's folders."""
    files = [file for file in broker.data_dir.glob(f"data/{name}-*/**/*") if file.is_file()]
    assert files, f"no files of {name} in {broker.data_dir}"
    return sum(file.stat().st_blocks * 512 for file in files)


# --- start ----------------------------------------------------------------------------------------
def start(plan: Plan) -> list[Row]:
    """Seconds from a stopped broker to one that takes connections, and its memory then."""
    memory: dict[str, list[float]] = {}

    def ours() -> float:
        broker.stop()
        broker.start()
        memory.setdefault(OURS, []).append(_resident(broker.pid))
        return broker.start_seconds

    def theirs(cluster: Cluster) -> float:
        (one,) = cluster.brokers.values()
        one.stop()
        began = time.perf_counter()
        one.launch()
        one.wait_ready()
        seconds = time.perf_counter() - began
        memory.setdefault(cluster.tuning.name, []).append(_resident(one.pid))
        return seconds

    with BrokerProcess() as broker, both_clusters(1) as clusters:
        kafka = {name: partial(theirs, cluster) for name, cluster in clusters.items()}
        seconds = in_turns(plan.rounds, {OURS: ours, **kafka})
    return [
        Row("start of a broker without rows", "s", seconds, bigger_is_better=False),
        Row("its memory then, resident", "MB", memory, bigger_is_better=False),
    ]


def _resident(pid: int) -> float:
    return float(psutil.Process(pid).memory_info().rss / 1e6)
