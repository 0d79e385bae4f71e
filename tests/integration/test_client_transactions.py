"""The clients' transactions on real brokers, one and three, whose coordinators are killed."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

import quiverlog
import quiverlog.testing
from quiverlog.batch.checksum import crc32c
from quiverlog.local.cluster import LocalCluster
from quiverlog.types import TRANSACTIONS_TOPIC, Durability
from tests.support.client_kinds import CLIENT_KINDS, connect
from tests.support.until import until

pytestmark = pytest.mark.process

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False)])
WAIT_S = 60.0


@pytest.fixture(scope="module", params=[1, 3], ids=["one broker", "three brokers"])
def cluster(request: pytest.FixtureRequest) -> Iterator[LocalCluster]:
    with quiverlog.testing.cluster(request.param) as cluster:
        with cluster.client() as client:
            for topic in ("a", "b"):
                count = len(cluster.brokers)
                client.create_topic(topic, SCHEMA, partitions=4, replication_factor=count)
        yield cluster


@pytest.fixture(params=CLIENT_KINDS)
def client(request: pytest.FixtureRequest, cluster: LocalCluster) -> Iterator[Any]:
    with connect(request.param, cluster.bootstrap) as client:
        yield client


def new_name() -> str:
    return "app-" + os.urandom(4).hex()


def new_ids() -> int:
    """Where the ids of a test's rows begin."""
    return int.from_bytes(os.urandom(4), "big") << 16


def rows_of(cluster: LocalCluster, first: int, topic: str) -> list[int]:
    with cluster.client() as client:
        found = client.read(topic).to_arrow().column("id").to_pylist()
    return sorted(number - first for number in found if first <= number < first + 2**16)


def table(ids: range) -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64())}, schema=SCHEMA)


def test_two_topics_at_once_or_not_at_all(cluster: LocalCluster, client: Any) -> None:
    name, first = new_name(), new_ids()
    with client.transaction(name) as tx:
        tx.send("a", table(range(first, first + 1000)), partition=3)
        for number in range(first, first + 100):
            tx.send("b", {"id": number})
    assert (tx.result.sequence, tx.result.rows, tx.result.is_published) == (0, 1100, True)
    is_replicated = len(cluster.brokers) > 1
    assert tx.result.durability == (Durability.REPLICATED if is_replicated else Durability.FLUSHED)
    assert rows_of(cluster, first, "a") == [*range(1000)]
    assert rows_of(cluster, first, "b") == [*range(100)]
    with pytest.raises(ZeroDivisionError), client.transaction(name) as tx:
        fail_with_staged_rows(tx, first + 1000)
    with client.transaction(name) as tx:
        tx.send("a", {"id": first + 1001})
    assert rows_of(cluster, first, "a") == [*range(1000), 1001]
    assert client.transactional_id(name).last_sequence == tx.sequence == 1


def fail_with_staged_rows(tx: Any, number: int) -> None:
    assert tx.send("a", {"id": number}).result(WAIT_S) == 1
    raise ZeroDivisionError


def test_the_next_life_of_a_program_goes_on(cluster: LocalCluster, client: Any) -> None:
    name, first = new_name(), new_ids()
    with client.transaction(name, wait="decided") as tx:
        tx.send("a", {"id": first})
    late = client.transaction(name).__enter__()
    late.send("a", {"id": first + 1}).result(WAIT_S)
    with cluster.client() as second, second.transaction(name) as tx:
        assert tx.sequence == 1
        tx.send("a", {"id": first + 2})
    with pytest.raises(quiverlog.TransactionFenced):
        late.commit()
    assert rows_of(cluster, first, "a") == [0, 2]


def test_a_large_transaction_with_another_level(cluster: LocalCluster, client: Any) -> None:
    name, first = new_name(), new_ids()
    with client.transaction(name, durability="replicated_flushed", compression="zstd") as tx:
        if len(cluster.brokers) > 1:
            tx.send("a", table(range(first, first + 60_000)))
    if tx.result.rows:
        assert tx.result.durability == Durability.REPLICATED_FLUSHED
        assert rows_of(cluster, first, "a") == [*range(60_000)]


class Program:
    """Writes each number to both topics, in one transaction, and notes what the client reported."""

    def __init__(self, kind: str, bootstrap: str, name: str, first: int) -> None:
        self.committed: list[int] = []
        self.undecided: int | None = None
        self.failure: BaseException | None = None
        self._arguments = kind, bootstrap, name, first
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def commit_some(self) -> None:
        count = len(self.committed) + 5
        until(lambda: len(self.committed) > count or self.failure)

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(WAIT_S)
        assert not self._thread.is_alive()
        if self.failure is not None:
            raise self.failure

    def _run(self) -> None:
        kind, bootstrap, name, first = self._arguments
        try:
            with connect(kind, bootstrap) as client:
                number = 0
                while not self._stop.is_set() or self.undecided is not None:
                    self._write(client, name, first, number)
                    number += 1
        except BaseException as error:
            self.failure = error

    def _write(self, client: Any, name: str, first: int, number: int) -> None:
        before = self.undecided
        try:
            with client.transaction(name, timeout=20.0) as tx:
                if before is not None and tx.previous == "committed":
                    self.committed.append(before)
                assert tx.previous != "unknown", "this program is the only holder"
                self.undecided = before = None
                tx.send("a", {"id": first + number}, partition=number % 4)
                tx.send("b", {"id": first + number}, partition=number % 4)
        except quiverlog.CommitUnknown:
            self.undecided = number if before is None else before
        except quiverlog.TransactionFenced:
            raise
        except quiverlog.QuiverlogError:
            pass  # Nothing of it is ever published.
        else:
            self.committed.append(number)


@pytest.mark.parametrize("kind", ["blocking", pytest.param("asyncio", marks=pytest.mark.long)])
def test_what_a_program_is_told_holds_while_coordinators_are_killed(
    cluster: LocalCluster, kind: str
) -> None:
    name, first = new_name(), new_ids()
    program = Program(kind, cluster.bootstrap, name, first)
    try:
        for _ in range(2):
            program.commit_some()
            coordinator = coordinator_of(cluster, name)
            cluster.brokers[coordinator].kill()
            cluster.start()
        program.commit_some()
    finally:
        program.stop()
    assert program.committed == sorted(set(program.committed))
    assert rows_of(cluster, first, "a") == program.committed
    assert rows_of(cluster, first, "b") == program.committed


def coordinator_of(cluster: LocalCluster, name: str) -> int:
    with cluster.client() as client:
        partitions = client.metadata([TRANSACTIONS_TOPIC]).topics[TRANSACTIONS_TOPIC].partitions
        return partitions[crc32c(name.encode()) % len(partitions)].leader
