"""Random topics, partitions, bounds and restarts on a real Spark.

As Spark's KafkaSourceStressSuite and KafkaSourceStressForDontFailOnDataLossSuite. The seed in a
test's name decides which steps are taken.
"""

from __future__ import annotations

import contextlib
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from quiverlog.errors import QuiverlogError
from tests.spark.conftest import TRADES, produce, read_stream
from tests.spark.queries import Collected, wait_for
from tests.support.spark import unique

pytestmark = [pytest.mark.spark, pytest.mark.long]

STEPS = 24
BOUNDS: tuple[dict[str, Any], ...] = (
    {},
    {"maxOffsetsPerTrigger": 7},
    {"maxBytesPerTrigger": 2_000},
    {"maxOffsetsPerTrigger": 20, "maxBytesPerTrigger": 1_500, "minPartitions": 3},
    {"driverReadRows": 0},
)


class World:
    """Topics under one pattern, and which rows they were given."""

    def __init__(self, client: Any, chance: random.Random) -> None:
        self.client, self.chance = client, chance
        self.prefix = unique("stress")
        self.partitions: dict[str, int] = {}
        self.rows: dict[str, list[int]] = {}
        self.next_id = 0
        self.create()

    def create(self) -> None:
        name = f"{self.prefix}-{len(self.rows)}"
        self.partitions[name] = self.chance.randint(1, 3)
        self.rows[name] = []
        self.client.create_topic(name, schema=TRADES, partitions=self.partitions[name])

    def append(self) -> None:
        if not self.partitions:
            return
        name = self.chance.choice(sorted(self.partitions))
        count = self.chance.randint(1, 30)
        partition = self.chance.randrange(self.partitions[name])
        produce(self.client, name, self.next_id, count, partition)
        self.rows[name] += range(self.next_id, self.next_id + count)
        self.next_id += count

    def grow(self) -> None:
        if self.partitions:
            name = self.chance.choice(sorted(self.partitions))
            self.partitions[name] += 1
            self.client.alter_topic(name, partitions=self.partitions[name])

    def delete(self) -> None:
        if self.partitions:
            name = self.chance.choice(sorted(self.partitions))
            del self.partitions[name]
            self.client.delete_topic(name)

    def recreate(self) -> None:
        if self.partitions:
            name = self.chance.choice(sorted(self.partitions))
            self.client.delete_topic(name)
            self.client.create_topic(name, schema=TRADES, partitions=self.partitions[name])

    def trim(self) -> None:
        if self.partitions:
            name = self.chance.choice(sorted(self.partitions))
            partition = self.chance.randrange(self.partitions[name])
            with contextlib.suppress(QuiverlogError):  # there are fewer rows yet
                self.client.delete_records(name, {partition: self.chance.randint(1, 20)})

    @property
    def kept(self) -> set[int]:
        """Rows of topics that were never deleted."""
        return {i for name in self.partitions for i in self.rows[name]}


class Query:
    """A streaming query that is stopped and started anew, with other bounds each time."""

    def __init__(self, spark: Any, broker: Any, world: World, place: Path, **options: Any) -> None:
        self.sink = Collected()
        self._make = (spark, broker, world, place, options)
        self.running: Any = None

    def start(self) -> None:
        spark, broker, world, place, options = self._make
        stream = read_stream(
            spark,
            broker,
            "",
            subscribe=None,
            subscribePattern=world.prefix + ".*",
            **(world.chance.choice(BOUNDS) | options),
        )
        writer = stream.writeStream.foreachBatch(self.sink)
        self.running = writer.option("checkpointLocation", str(place)).start()

    def stop(self) -> None:
        if self.running is not None:
            self.running.stop()
            self.running = None


def steps(world: World, query: Query, kinds: list[str]) -> Iterator[None]:
    query.start()
    for _ in range(STEPS):
        kind = world.chance.choice(kinds)
        if kind == "restart":
            query.stop()
            world.append()
            query.start()
        else:
            getattr(world, kind)()
        yield


@pytest.mark.parametrize("seed", [3])
def test_every_row_comes_once(
    spark: Any, broker: Any, client: Any, tmp_path: Path, seed: int
) -> None:
    """As "stress test with multiple topics and partitions" in KafkaSourceStressSuite."""
    world = World(client, random.Random(seed))
    query = Query(spark, broker, world, tmp_path)
    try:
        for _ in steps(world, query, ["append"] * 6 + ["create", "grow", "restart"]):
            pass
        wait_for(lambda: len(query.sink.ids) >= world.next_id, query.running)
    finally:
        query.stop()
    assert query.sink.ids == list(range(world.next_id))


@pytest.mark.parametrize("seed", [5])
def test_losses_neither_stop_a_query_nor_double_a_row(
    spark: Any, broker: Any, client: Any, tmp_path: Path, seed: int
) -> None:
    """As "stress test for failOnDataLoss=false": topics come, go and are made anew meanwhile."""
    world = World(client, random.Random(seed))
    query = Query(spark, broker, world, tmp_path, failOnDataLoss="false")
    kinds = ["append"] * 6 + ["create", "grow", "delete", "recreate", "trim", "restart"]
    try:
        for _ in steps(world, query, kinds):
            pass
        world.create()
        last, first = max(world.partitions), world.next_id
        produce(client, last, first, 10)
        wait_for(lambda: set(range(first, first + 10)) <= set(query.sink.ids), query.running)
    finally:
        query.stop()
    assert [i for i, count in Counter(query.sink.ids).items() if count > 1] == []
    assert set(query.sink.ids) <= set(range(first + 10))
