"""Spark's tasks read the replica of their rack, and report rows that were lost with a leader."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from pyspark_quiverlog import pool
from pyspark_quiverlog.options import Use, parse_read_options
from pyspark_quiverlog.planning.losses import DataLoss
from pyspark_quiverlog.planning.ranges import Range
from pyspark_quiverlog.reader import RACK, LogSplit, SplitReader, rack
from quiverlog.errors import InvalidOption
from tests.support.follower_copies import View
from tests.support.follower_world import TOPIC, World
from tests.support.node import SCHEMA


class Client:
    """As much of a blocking client as a task needs."""

    def __init__(self, world: World) -> None:
        self.cluster = world.cluster
        self.run = world.run


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """Brokers with rows, all in sync; the leader is in rack a, the others are in b."""
    world = World(1)
    world.faults = False
    while world.now_s < 10:
        world.step()
    world.calm = True
    while world.now_s < 12:
        world.step()
    monkeypatch.setattr(pool, "client", lambda endpoint: Client(world))
    monkeypatch.setattr("pyspark_quiverlog.reader.to_arrow_schema", lambda schema: schema)
    monkeypatch.delenv(RACK, raising=False)
    return world


def options(**given: str) -> Any:
    raw = {"bootstrap.servers": "a:1", "subscribe": "t", **given}
    return parse_read_options(raw, Use.BATCH_READ)


def read(world: World, *, start: int = 0, epoch: int = -1, end: int = 0, **given: str) -> list[int]:
    end = end or len(world.partitions[0].committed)
    split = LogSplit([Range("t", TOPIC.hex(), 0, start, end, epoch)])
    reader = SplitReader(options(**given), SCHEMA)
    batches = list(reader.read(split))
    return pa.Table.from_batches(batches, SCHEMA).column(0).to_pylist()


@pytest.mark.parametrize(
    ("given", "environment", "followers"),
    [
        ({}, "b", False),
        ({"fetchFrom": "leader"}, "b", False),
        ({"fetchFrom": "nearest"}, "b", True),
        ({"fetchFrom": "nearest"}, "a", False),
        ({"fetchFrom": "Nearest", "client.rack": "b"}, "a", True),
        ({"fetchFrom": "follower"}, "", True),
        ({"fetchFrom": "nearest", "client.rack": "c"}, "", False),
    ],
)
def test_a_task_reads_the_replica_of_its_rack(
    world: World,
    monkeypatch: pytest.MonkeyPatch,
    given: dict[str, str],
    environment: str,
    followers: bool,
) -> None:
    monkeypatch.setenv(RACK, environment)
    assert read(world, **given) == world.partitions[0].committed != []
    assert {follower for _, follower in world.asked} == {followers}


def test_a_task_without_a_rack_has_no_nearest_replica(world: World) -> None:
    with pytest.raises(
        InvalidOption, match=f"is nearest, and this executor has no rack.*spark.executorEnv.{RACK}"
    ):
        read(world, fetchFrom="nearest")
    assert rack(options(fetchFrom="nearest", **{"client.rack": "b"})) == "b"


def test_rows_lost_with_an_unclean_election_are_a_loss(world: World) -> None:
    """The offset of the query carries the epoch of the row before it. (Rule 4.)"""
    partition = world.partitions[0]
    end = len(partition.committed)
    world.unclean = True
    short = partition.copies[3].log
    short.cut(0)
    short.high_watermark = 0
    partition.truth = View(3, 1, (3,))
    while world.now_s < 20:
        world.step()
    for _ in range(end):
        world.produce(0)
        for _ in range(5):
            world.step()
    assert len(partition.committed) > end
    assert partition.truth.in_sync == (1, 2, 3), "all agree on the new rows"
    for fetch_from in ("leader", "follower"):
        with pytest.raises(DataLoss, match="were truncated"):
            read(world, start=end, end=end + 1, epoch=0, fetchFrom=fetch_from)
    assert read(world, start=end, end=end + 1, epoch=1) == partition.committed[end : end + 1]
