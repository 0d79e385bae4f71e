"""What a cluster costs its users as it grows: 100, 1,000 and 5,000 partitions with three copies.

One cluster of three brokers is asked the same questions at each size: how long it takes to restart
all brokers one after the other, speed and latency of a partition that is written, how long its
writes pause when its leader is killed. The figures at 100 are in the baseline's place. What is
asked of one partition should stay as it is. A rolling restart opens every log, and may grow as they
do; it comes first, because a clean stop flushes what the fillers left behind.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass, field
from typing import Final

from benchmarks.bench_cluster import BROKERS, cluster, topic_on, until
from benchmarks.harness import Comparison, Settings
from benchmarks.load import Frame, Load
from benchmarks.quiver import (
    BrokerProcess,
    largest_batch,
    numbered,
    open_load,
    produce_frame,
    producer_id,
)
from benchmarks.rows import SCHEMA, make_batch
from quiverlog.client.client import Client
from quiverlog.errors import QuiverlogError

PARTITIONS: Final = (100, 1_000, 5_000)
PARTITIONS_PER_TOPIC: Final = 500
FILLER_BYTES: Final = 1_024
WARM: Final = 20
SINGLES: Final = 200
BATCHES: Final = 200
BATCH_BYTES: Final = 64 * 1024
DEPTH: Final = 4
POLL_S: Final = 0.02


def run(settings: Settings) -> list[Comparison]:
    with cluster() as (brokers, client):
        return Growth(brokers, client, settings).rows()


@dataclass(slots=True)
class _Asked:
    """What one size answered."""

    megabytes_per_s: float
    p50_us: float
    failover_s: float
    restart_s: float


@dataclass(slots=True)
class Growth:
    """One cluster that grows, and what it is asked at each size."""

    brokers: dict[int, BrokerProcess]
    client: Client
    settings: Settings
    _held: int = 0
    _hot: int = 0
    _found: dict[int, _Asked] = field(default_factory=dict)

    def rows(self) -> list[Comparison]:
        """Each size beside the first."""
        sizes = [self.settings.scaled(size) for size in PARTITIONS]
        for size in sizes:
            self._grow(size)
            restart_s = self._rolling_restart()
            speed, p50_us = self._written()
            self._found[size] = _Asked(speed, p50_us, self._failover(), restart_s)
        first, *others = sizes
        kinds = (
            ("64 KiB batches as `replicated`, 4 in flight", "MB/s", "megabytes_per_s", True),
            ("one row as `replicated`, p50", "us", "p50_us", False),
            ("leader killed, until the next acknowledged write", "s", "failover_s", False),
            ("restart of all brokers, one after the other", "s", "restart_s", False),
        )
        return [
            Comparison(
                f"{what}, at {size:,} partitions beside {first:,}",
                unit,
                [getattr(self._found[size], name)],
                [getattr(self._found[first], name)],
                budget=None,
                bigger_is_better=is_bigger_better,
            )
            for what, unit, name, is_bigger_better in kinds
            for size in others
        ]

    # --- growing -------------------------------------------------------------------------------
    def _grow(self, size: int) -> None:
        """Fill up to `size` partitions, each with a row on all three brokers."""
        while self._held < size:
            count = min(PARTITIONS_PER_TOPIC, size - self._held)
            name = f"filler-{self._held}"
            self.client.create_topic(name, SCHEMA, partitions=count, replication_factor=BROKERS)
            until(lambda: self._is_filled(name, count), f"{name} has rows")  # noqa: B023
            self._held += count
        until(self._is_whole, "every copy is in sync")

    def _is_filled(self, name: str, count: int) -> bool:
        schema_id = self.client.metadata([name]).topics[name].schema_id
        batch, _ = largest_batch(FILLER_BYTES, schema_id)
        try:
            self.client.raw_produce(name, {p: [bytearray(batch)] for p in range(count)})
        except QuiverlogError as error:
            if not error.retriable:
                raise
            return False
        return True

    def _is_whole(self) -> bool:
        try:
            found = self.client.describe_cluster()
        except QuiverlogError:
            return False
        live = [one for one in found.brokers if not one.fenced]
        return len(live) == BROKERS and not found.under_replicated and not found.offline

    # --- asking --------------------------------------------------------------------------------
    def _written(self) -> tuple[float, float]:
        """MB/s of batches, and microseconds of one row after the other."""
        self._hot += 1
        with topic_on(self.brokers, self.client, f"hot-{self._hot}", BROKERS) as (topic, leader, _):
            batch, rows = largest_batch(BATCH_BYTES, schema_id=topic.schema_id)
            single, _ = largest_batch(1, schema_id=topic.schema_id)
            writer = producer_id(self.client)
            batches = numbered(batch, WARM + BATCHES, producer_id=writer, rows=rows)
            singles = numbered(single, SINGLES, producer_id=producer_id(self.client), rows=1)
            many = [produce_frame(topic, one, n) for n, one in enumerate(batches, 1)]
            with open_load(leader) as load:
                load.pipeline(many[:WARM], depth=DEPTH)
                seconds = load.pipeline(many[WARM:], depth=DEPTH)
                times = [_seconds(load, produce_frame(topic, one, 0)) for one in singles]
        return BATCHES * len(batch) / seconds / 1e6, statistics.median(times) * 1e6

    def _failover(self) -> float:
        """Seconds from the kill of the leader of a partition to the next acknowledged row."""
        self._hot += 1
        name = f"hot-{self._hot}"
        with (
            topic_on(self.brokers, self.client, name, BROKERS) as (_, leader, _),
            self.client.producer(name, durability="replicated", linger=0) as producer,
        ):
            row = make_batch(1)
            producer.send(row).result(timeout=60)
            leader.kill()
            began = time.perf_counter()
            producer.send(row).result(timeout=60)
            seconds = time.perf_counter() - began
            leader.start()
            until(self._is_whole, "the killed one is in sync", every_seconds=POLL_S)
        return seconds

    def _rolling_restart(self) -> float:
        began = time.perf_counter()
        for broker in self.brokers.values():
            broker.restart()
            until(self._is_whole, "the restarted one is in sync", every_seconds=POLL_S)
        return time.perf_counter() - began


def _seconds(load: Load, frame: Frame) -> float:
    began = time.perf_counter()
    load.exchange(frame)
    return time.perf_counter() - began
