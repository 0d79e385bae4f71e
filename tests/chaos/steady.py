"""Full load and no fault: no broker may be fenced, no leader may change.

Owns the load on three brokers with default settings: producers as fast as they can at two levels,
readers that keep up, retention that deletes all the time, topics that are created, written and
deleted, and readers that begin anywhere in a topic whose index files are gone, so that indexes are
built again. And what must not be: a broker fenced, a leader elected, a term of the quorum begun, a
replica out of sync, a broker whose lease has ended.
"""

from __future__ import annotations

import asyncio
import random
import re
import time
import urllib.request
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa

from quiverlog import aio
from quiverlog.errors import QuiverlogError

from .brokers import Brokers
from .faults import look_at_metadata
from .nemesis import NODE_IDS

__all__ = ["Steady", "steady"]

SCHEMA: Final = pa.schema([("v", pa.int64()), ("text", pa.string())])
BATCH: Final = pa.record_batch([list(range(2_000)), ["x" * 64] * 2_000], schema=SCHEMA)
SMALL: Final = BATCH.slice(0, 4)
SENDS_UNANSWERED_MAX: Final = 8
COLD_PARTITIONS: Final = 3
COLD_SEGMENTS: Final = 12
"""In each partition, of small batches: to build one index again is many headers."""
COLD_SEGMENT_BYTES: Final = 1 << 20
CHURN_PARTITIONS: Final = 20
BOUND_S: Final = 60.0
SAMPLE_S: Final = 2.0
WRONG: Final = ("broker fenced", "stepping down", "internal error")
COUNTERS: Final = (
    "quiverlog_quorum_term", "quiverlog_in_sync_shrinks_total",
    "quiverlog_retention_segments_deleted_total", "quiverlog_internal_errors_total",
    'quiverlog_jobs_total{kind="load index"}',
)  # fmt: skip
LAG: Final = "quiverlog_event_loop_lag_max_seconds"


@dataclass(slots=True, eq=False)
class Steady:
    """What was done and what was wrong."""

    duration_s: float
    done: Counter[str] = field(default_factory=Counter)
    changed: dict[int, dict[str, float]] = field(default_factory=dict)
    """Metrics of each broker, by how much they grew."""
    lag_max_s: dict[int, float] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def text(self) -> str:
        """For people."""
        megabytes = self.done["bytes"] / 1e6 / self.duration_s
        lines = [
            f"{self.duration_s:g} s: {self.done['rows']} rows of {megabytes:.1f} MB/s acknowledged,"
            f" {self.done['rows read']} read, {self.done['topics']} topics of {CHURN_PARTITIONS}"
            f" partitions created and deleted, {self.done['cold reads']} reads begun anywhere",
        ]
        for node_id, metrics in self.changed.items():
            shown = ", ".join(
                f"{name.removeprefix('quiverlog_')} +{n:g}" for name, n in metrics.items()
            )
            lines.append(
                f"broker {node_id}: {shown}; loop late by {self.lag_max_s.get(node_id, 0):.2f} s"
                " at most"
            )
        lines += [f"PROBLEM {problem}" for problem in self.problems]
        if not self.problems:
            lines.append("no broker fenced, no leader elected, no term begun")
        return "\n".join(lines)


async def steady(
    duration_s: float, on_step: Callable[[str], None], *, cold_segments: int = COLD_SEGMENTS
) -> Steady:
    found = Steady(duration_s)
    async with Brokers() as brokers:
        async with aio.connect(brokers.bootstrap, client_id="client-founder") as client:
            await _prepare(client, on_step, cold_segments)
        await _without_indexes(brokers)
        on_step("index files are gone")
        async with aio.connect(brokers.bootstrap, client_id="client-founder") as client:
            await _settle(brokers, client)
        before = await _metrics(brokers)
        epochs = await _epochs(brokers)
        logged = {node_id: len(one.log_text) for node_id, one in brokers.by_id.items()}
        on_step("load begins")
        await _load(brokers, found, duration_s)
        on_step("load ends")
        after = await _metrics(brokers)
        for node_id in NODE_IDS:
            found.changed[node_id] = {
                name: after[node_id].get(name, 0) - before[node_id].get(name, 0)
                for name in COUNTERS
            }
            if found.changed[node_id]["quiverlog_quorum_term"]:
                found.problems.append(f"broker {node_id} has seen another term of the quorum")
            if found.changed[node_id]["quiverlog_in_sync_shrinks_total"]:
                found.problems.append(f"a replica that broker {node_id} leads was out of sync")
            text = brokers.by_id[node_id].log_text[logged[node_id] :]
            found.problems += [
                f"broker {node_id}: {line}"
                for line in text.splitlines()
                if any(wrong in line for wrong in WRONG)
            ]
        if await _epochs(brokers) != epochs:
            found.problems.append(f"leaders were elected: {epochs}, then {await _epochs(brokers)}")
        brokers.look()
        found.problems += brokers.problems
    return found


# --- before ------------------------------------------------------------------------------------
async def _prepare(
    client: aio.AsyncClient, on_step: Callable[[str], None], cold_segments: int
) -> None:
    hot = {"segment.bytes": 4 << 20, "retention.bytes": 16 << 20}
    for name, level in (("hot", "replicated"), ("hot-flushed", "replicated_flushed")):
        await _created(client, name, 3, {"durability": level, **hot})
    cold = {"durability": "replicated", "segment.bytes": COLD_SEGMENT_BYTES}
    await _created(client, "cold", COLD_PARTITIONS, cold)
    size = COLD_PARTITIONS * cold_segments * COLD_SEGMENT_BYTES
    async with client.producer("cold", batch_rows=SMALL.num_rows, linger=0) as producer:
        sent = 0
        while sent < size:
            for partition in range(COLD_PARTITIONS):
                await producer.send(SMALL, partition=partition)
            sent += COLD_PARTITIONS * 700  # Of one batch, about, with header and padding.
            if not sent % (COLD_PARTITIONS * 700 * 1_000):
                await producer.flush()
    on_step("the cold topic is written")


async def _created(
    client: aio.AsyncClient, name: str, partitions: int, config: dict[str, Any]
) -> None:
    async def is_created() -> bool:
        try:
            await client.create_topic(
                name, SCHEMA, partitions=partitions, replication_factor=3, config=config,
                if_not_exists=True,
            )  # fmt: skip
        except QuiverlogError:
            return False
        return True

    await _until(is_created)


async def _without_indexes(brokers: Brokers) -> None:
    """Stop all, remove the index files of the cold topic, start all."""
    await brokers.stop_all()
    for disk in brokers.disks.values():
        for path in (disk.data_dir / "data").glob("cold-*/*.index"):
            path.unlink()
    await asyncio.gather(*(brokers.start(node_id) for node_id in NODE_IDS))


async def _settle(brokers: Brokers, client: aio.AsyncClient) -> None:
    """All in sync, and each partition led by the first of its replicas: no move is due."""

    async def is_settled() -> bool:
        metadata = await look_at_metadata(brokers)
        if metadata is None or len(metadata.brokers) != len(NODE_IDS):
            return False
        partitions = [p for topic in metadata.topics.values() for p in topic.partitions]
        if any(set(p.in_sync_replicas) != set(p.replicas) for p in partitions):
            return False
        if all(p.leader == p.replicas[0] for p in partitions):
            return True
        try:
            for name in metadata.topics:
                await client.elect_leaders(name)
        except QuiverlogError:
            return False
        return False

    await _until(is_settled)


async def _until(condition: Callable[[], Coroutine[Any, Any, bool]]) -> None:
    deadline_s = time.monotonic() + BOUND_S
    while not await condition():
        assert time.monotonic() < deadline_s, f"not within {BOUND_S:g} s"
        await asyncio.sleep(0.1)


# --- the load ----------------------------------------------------------------------------------
async def _load(brokers: Brokers, found: Steady, duration_s: float) -> None:
    end_s = time.monotonic() + duration_s
    loops: list[Callable[[aio.AsyncClient, Steady, float], Awaitable[None]]] = [
        _write("hot"), _write("hot"), _write("hot-flushed"), _read("hot", "leader"),
        _read("hot-flushed", "follower"), _churn, _read_anywhere,
    ]  # fmt: skip

    async def run(number: int) -> None:
        async with aio.connect(brokers.bootstrap, client_id=f"client-{number}") as client:
            await loops[number](client, found, end_s)

    async def sample() -> None:
        while time.monotonic() < end_s:
            await asyncio.sleep(SAMPLE_S)
            for node_id, metrics in (await _metrics(brokers)).items():
                lag_s = metrics.get(LAG, 0.0)
                found.lag_max_s[node_id] = max(found.lag_max_s.get(node_id, 0.0), lag_s)

    async with asyncio.TaskGroup() as group:
        group.create_task(sample())
        for number in range(len(loops)):
            group.create_task(run(number))


def _write(topic: str) -> Callable[[aio.AsyncClient, Steady, float], Awaitable[None]]:
    async def write(client: aio.AsyncClient, found: Steady, end_s: float) -> None:
        waiting: list[aio.AsyncSendFuture] = []
        async with client.producer(topic) as producer:
            while time.monotonic() < end_s:
                waiting.append(await producer.send(BATCH))
                if len(waiting) >= SENDS_UNANSWERED_MAX:
                    await waiting.pop(0).result()
                    found.done["rows"] += BATCH.num_rows
                    found.done["bytes"] += BATCH.nbytes

    return write


def _read(topic: str, where: Any) -> Callable[[aio.AsyncClient, Steady, float], Awaitable[None]]:
    async def read(client: aio.AsyncClient, found: Steady, end_s: float) -> None:
        while time.monotonic() < end_s:
            # Retention may overtake a reader: then it begins anew.
            consumer = client.consumer(topic, start="latest", follow=True, fetch_from=where)
            try:
                while time.monotonic() < end_s:
                    batch = await consumer.poll(0.5)
                    found.done["rows read"] += 0 if batch is None else len(batch)
            except QuiverlogError as error:
                found.done[type(error).__name__] += 1
            finally:
                await consumer.close()

    return read


async def _churn(client: aio.AsyncClient, found: Steady, end_s: float) -> None:
    number = 0
    while time.monotonic() < end_s:
        name = f"passing-{number}"
        number += 1
        await client.create_topic(name, SCHEMA, partitions=CHURN_PARTITIONS, replication_factor=3)
        async with client.producer(name, linger=0) as producer:
            for partition in range(CHURN_PARTITIONS):
                await producer.send(SMALL, partition=partition)
        await client.delete_topic(name)
        found.done["topics"] += 1


async def _read_anywhere(client: aio.AsyncClient, found: Steady, end_s: float) -> None:
    """One batch from a random place, of the leader or of a follower."""
    rng = random.Random(1)
    detail = await client.describe_topic("cold")
    ends = {p.partition: p.high_watermark for p in detail.partitions}
    pause_s = max(0.05, (end_s - time.monotonic()) / (6 * COLD_PARTITIONS * COLD_SEGMENTS))
    while time.monotonic() < end_s:
        partition = rng.randrange(COLD_PARTITIONS)
        consumer = client.consumer(
            "cold",
            start={partition: rng.randrange(ends[partition])},
            partitions=[partition],
            fetch_from=rng.choice(("leader", "follower")),
            fetch_bytes=64 * 1024,
        )
        await consumer.poll(5.0)
        await consumer.close()
        found.done["cold reads"] += 1
        await asyncio.sleep(rng.uniform(0, 2 * pause_s))


# --- looking -----------------------------------------------------------------------------------
async def _epochs(brokers: Brokers) -> dict[str, list[int]]:
    metadata = await look_at_metadata(brokers)
    assert metadata is not None
    return {
        name: [p.leader_epoch for p in topic.partitions]
        for name, topic in metadata.topics.items()
        if not name.startswith("passing")
    }


async def _metrics(brokers: Brokers) -> dict[int, dict[str, float]]:
    texts = await asyncio.gather(
        *(asyncio.to_thread(_metrics_text, one.http) for one in brokers.by_id.values())
    )
    return {
        node_id: {
            name: float(value)
            for name, value in re.findall(r"^(\w\S*(?:\{[^}]*\})?) (\S+)$", text, re.MULTILINE)
        }
        for node_id, text in zip(brokers.by_id, texts, strict=True)
    }


def _metrics_text(address: str) -> str:
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=30) as reply:
        return str(reply.read().decode())
