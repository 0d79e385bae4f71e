"""Three brokers in containers, in three racks: clients on both sides, and Spark beside faults.

The checks are those of a log: all rows that were acknowledged, each once, for every reader,
whichever broker is killed, frozen or without a network meanwhile.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import quiverlog
from tests.support.until import until

if TYPE_CHECKING:
    from quiverlog.client.client import Client
    from tests.support.containers import ContainerCluster

pytestmark = [pytest.mark.containers, pytest.mark.timeout(300)]

COPIES = 3
NUMBERS = pa.schema({"n": pa.int64()})
ROWS_PER_FAULT = 5_000
ROWS_PER_SEND = 500


@pytest.fixture(scope="module")
def client(cluster: ContainerCluster) -> Iterator[Client]:
    with quiverlog.connect(cluster.bootstrap) as connected:
        until(lambda: len(connected.describe_cluster().voters) == COPIES, "all three vote")
        yield connected


def is_whole(client: Client, topic: str) -> bool:
    """Is every replica in sync and led?"""
    partitions = client.metadata([topic]).topics[topic].partitions
    return all(p.leader >= 0 and len(p.in_sync_replicas) == COPIES for p in partitions)


def leader_of(client: Client, topic: str) -> int:
    return client.metadata([topic]).topics[topic].partitions[0].leader


def test_brokers_are_in_three_racks_under_their_outer_addresses(
    cluster: ContainerCluster, client: Client
) -> None:
    found = {one.node_id: one for one in client.describe_cluster().brokers}
    assert {node_id: one.rack for node_id, one in found.items()} == {1: "a", 2: "b", 3: "c"}
    seen = {node_id: f"{a.host}:{a.port}" for node_id, a in client.metadata().brokers.items()}
    assert seen == {node_id: cluster.outside(node_id) for node_id in found}


def test_clients_inside_of_the_network_and_outside_share_rows(
    cluster: ContainerCluster, client: Client
) -> None:
    """Inside, 127.0.0.1 is the client's own container: only `internal` leads to a broker."""
    client.create_topic("both", NUMBERS, replication_factor=COPIES)
    with client.producer("both", durability="replicated") as producer:
        producer.send([{"n": 1}])
    cluster.run_inside("produce", "-t", "both", "--input-format", "json", "-", stdin='{"n": 2}\n')
    with cluster.cut_off(leader_of(client, "both")):
        output = cluster.run_inside(
            *("consume", "-t", "both", "--from", "earliest", "--max-rows", "2", "--format", "json")
        )
    assert [json.loads(line)["n"] for line in output.splitlines()] == [1, 2]
    until(lambda: is_whole(client, "both"), "the broker is back")


class Stream:
    """A streaming query that keeps, for each micro-batch, the numbers it brought."""

    def __init__(self, spark: Any, cluster: ContainerCluster, topic: str, checkpoint: Path) -> None:
        self.batches: dict[int, list[int]] = {}
        source = spark.readStream.format("quiverlog").options(
            **{"bootstrap.servers": cluster.bootstrap, "subscribe": topic},
            startingOffsets="earliest",
        )
        writer = source.load().writeStream.foreachBatch(self._keep)
        self._query = writer.option("checkpointLocation", str(checkpoint)).start()

    def _keep(self, frame: Any, batch_id: int) -> None:
        self.batches[batch_id] = [row.n for row in frame.select("n").collect()]

    def wait_for(self, rows: int) -> None:
        """Return when this many rows have come, if the query lives."""

        def have_come() -> bool:
            assert self._query.isActive, self._query.exception()
            return sum(map(len, list(self.batches.values()))) >= rows

        until(have_come, f"Spark has read {rows} rows")

    def stop(self) -> list[int]:
        """All numbers, in order."""
        self._query.stop()
        return sorted(n for batch in self.batches.values() for n in batch)


@contextmanager
def streaming(*args: Any) -> Iterator[Stream]:
    stream = Stream(*args)
    try:
        yield stream
    finally:
        stream.stop()


@pytest.mark.long
def test_spark_loses_and_repeats_nothing_while_leaders_fail(
    cluster: ContainerCluster, client: Client, spark: Any, tmp_path: Path
) -> None:
    """Each time it is the leader of the first partition, while rows are written and read."""
    client.create_topic("read", NUMBERS, partitions=2, replication_factor=COPIES)
    faults: list[Callable[[int], AbstractContextManager[None]]] = [
        cluster.killed,
        cluster.paused,
        cluster.cut_off,
    ]
    sent = 0
    with streaming(spark, cluster, "read", tmp_path / "checkpoint") as stream:
        for fault in faults:
            sent = send(client, sent)
            victim = leader_of(client, "read")
            with fault(victim):
                sent = send(client, sent)
                assert leader_of(client, "read") != victim
                stream.wait_for(sent)  # without the broker
            until(lambda: is_whole(client, "read"), "the broker is back and in sync")
        stream.wait_for(sent)
        seen = stream.stop()
    assert seen == list(range(sent))
    stored = [n for b in client.consumer("read") for n in b.data.column("n").to_pylist()]
    assert sorted(stored) == seen


def send(client: Client, first: int) -> int:
    """Acknowledged rows; the number after the last."""
    last = first + ROWS_PER_FAULT
    with client.producer("read", durability="replicated") as producer:
        for start in range(first, last, ROWS_PER_SEND):
            rows = pa.table({"n": range(start, start + ROWS_PER_SEND)}, schema=NUMBERS)
            producer.send(rows).result(timeout=60)
    return last
