"""Transactions on real brokers, one and three, by single requests."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator

import pytest

import quiverlog.testing
from quiverlog.core.controller.internal_topics import STAGED, TRANSACTIONS
from quiverlog.errors import (
    InternalTopic,
    SequenceTaken,
    SequenceTooOld,
    StagedRowsLost,
    TransactionClosed,
    TransactionFenced,
)
from quiverlog.local.cluster import LocalCluster
from quiverlog.types import Durability
from quiverlog.wire.transaction_messages import CommittedPart
from tests.support.raw_transactions import RawTransactor, Staged
from tests.support.until import until

pytestmark = pytest.mark.process


@pytest.fixture(scope="module", params=[1, 3], ids=["one broker", "three brokers"])
def cluster(request: pytest.FixtureRequest) -> Iterator[LocalCluster]:
    with quiverlog.testing.cluster(request.param) as cluster:
        with RawTransactor(cluster.bootstrap) as client:
            client.create("a", 4, len(cluster.brokers))
            client.create("b", 2, len(cluster.brokers))
        yield cluster


@pytest.fixture
def client(cluster: LocalCluster) -> Iterator[RawTransactor]:
    with RawTransactor(cluster.bootstrap) as client:
        yield client


def name() -> str:
    return "app-" + os.urandom(4).hex()


def base() -> int:
    """Where the ids of a test's rows begin."""
    return int.from_bytes(os.urandom(4), "big") << 16


def rows_of(client: RawTransactor, first: int, topic: str = "a") -> list[list[int]]:
    """The rows of one test in each partition, in the order of the topic."""
    return [
        [one - first for one in ids if first <= one < first + 2**16]
        for ids in client.read_topic(topic)
    ]


def test_rows_of_a_transaction_are_there_once_it_has_committed(client: RawTransactor) -> None:
    tid, first = name(), base()
    epoch = client.open(tid, b"one").epoch
    targets = [("a", p, first + 10 * p, 10) for p in range(4)]
    staged = client.stage(tid, epoch, 0, [*targets, ("b", 1, first, 3)])
    assert rows_of(client, first) == [[], [], [], []]
    done = client.commit(tid, epoch, 0, staged)
    assert (done.outcome, done.row_count, done.is_published) == (0, 43, True)
    brokers = len({one.leader_id for one in client.topics["a"].partitions})
    level = Durability.REPLICATED if brokers > 1 else Durability.FLUSHED
    assert done.durability == level
    assert rows_of(client, first) == [[*range(10 * p, 10 * p + 10)] for p in range(4)]
    assert rows_of(client, first, "b") == [[], [0, 1, 2]]
    opened = client.open(tid, b"one")
    assert (opened.epoch, opened.last_sequence, opened.is_publishing) == (epoch, 0, False)


def test_transactions_of_one_id_lie_in_their_order(client: RawTransactor) -> None:
    tid, first = name(), base()
    epoch = client.open(tid, b"one").epoch
    for sequence in range(20):
        staged = client.stage(tid, epoch, sequence, [("a", 0, first + 2 * sequence, 2)])
        client.commit(tid, epoch, sequence, staged, wait=0)
    client.commit(tid, epoch, 20)
    assert rows_of(client, first)[0] == [*range(40)]


def test_only_winners_are_published(client: RawTransactor) -> None:
    tid, first = name(), base()
    epoch = client.open(tid, b"one").epoch
    winner = client.stage(tid, epoch, 0, [("a", 0, first, 5)])
    client.stage(tid, epoch, 0, [("a", 0, first + 5, 5), ("a", 1, first + 5, 5)])
    client.commit(tid, epoch, 0, winner)
    assert rows_of(client, first) == [[0, 1, 2, 3, 4], [], [], []]


def test_aborted_rows_never_appear(client: RawTransactor) -> None:
    tid, first = name(), base()
    epoch = client.open(tid, b"one").epoch
    staged = client.stage(tid, epoch, 0, [("a", 0, first, 5)])
    assert client.abort(tid, epoch, 0).outcome == 0
    assert client.abort(tid, epoch, 0).outcome == 0
    with pytest.raises(TransactionClosed):
        client.commit(tid, epoch, 0, staged)
    epoch = client.open(tid, b"one").epoch
    again = client.stage(tid, epoch, 0, [("a", 0, first + 5, 1)])
    with pytest.raises(StagedRowsLost):
        client.commit(tid, epoch, 0, staged)
    client.commit(tid, epoch, 0, again)
    assert rows_of(client, first)[0] == [5]
    assert client.abort(tid, epoch, 0).outcome == 1


def test_a_second_instance_fences_the_first(client: RawTransactor) -> None:
    tid, first = name(), base()
    old = client.open(tid, b"one").epoch
    staged = client.stage(tid, old, 0, [("a", 0, first, 5)])
    assert client.open(tid, b"two").epoch == old + 1
    with pytest.raises(TransactionFenced):
        client.commit(tid, old, 0, staged)
    with pytest.raises(TransactionFenced):
        client.open(tid, b"one")
    assert rows_of(client, first)[0] == []


def test_a_transaction_that_is_repeated_is_skipped(client: RawTransactor) -> None:
    tid, first = name(), base()
    epoch = client.open(tid, b"one").epoch
    staged = client.stage(tid, epoch, 5, [("a", 0, first, 5)])
    client.commit(tid, epoch, 5, staged)
    assert client.commit(tid, epoch, 5, staged).outcome == 1, "its answer was lost"
    other = client.stage(tid, epoch, 5, [("a", 0, first + 5, 5)])
    with pytest.raises(SequenceTaken):
        client.commit(tid, epoch, 5, other)
    epoch = client.open(tid, b"two").epoch
    replayed = client.stage(tid, epoch, 5, [("a", 0, first + 10, 7)])
    done = client.commit(tid, epoch, 5, replayed)
    assert (done.outcome, done.row_count, done.is_published) == (1, 5, True)
    with pytest.raises(SequenceTooOld):
        client.commit(tid, epoch, 4, replayed)
    assert rows_of(client, first)[0] == [0, 1, 2, 3, 4]


def test_what_was_never_staged_cannot_be_committed(client: RawTransactor) -> None:
    tid, first = name(), base()
    epoch = client.open(tid, b"one").epoch
    staged = client.stage(tid, epoch, 0, [("a", 0, first, 5)])
    (part,) = staged.parts
    invented = [
        Staged(os.urandom(16), staged.parts),
        Staged(
            staged.attempt,
            [CommittedPart(part.staged_partition, part.first_offset, part.next_offset, 6)],
        ),
        Staged(
            staged.attempt,
            [CommittedPart(part.staged_partition, part.first_offset, part.next_offset, 4)],
        ),
    ]
    for one in invented:
        with pytest.raises(StagedRowsLost):
            client.commit(tid, epoch, 0, one)
    with pytest.raises(StagedRowsLost):
        client.commit(tid, epoch, 1, staged)
    client.commit(tid, epoch, 0, staged)
    assert rows_of(client, first)[0] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("target", [STAGED, TRANSACTIONS])
def test_internal_topics_are_no_targets(client: RawTransactor, target: str) -> None:
    tid = name()
    epoch = client.open(tid, b"one").epoch
    with pytest.raises(InternalTopic):
        client.stage(tid, epoch, 0, [(target, 0, 0, 1)])


def test_many_at_once(cluster: LocalCluster) -> None:
    first = base()
    failures: list[BaseException] = []

    def work(number: int) -> None:
        try:
            with RawTransactor(cluster.bootstrap) as client:
                tid = name()
                epoch = client.open(tid, b"one").epoch
                for sequence in range(10):
                    at = first + 100 * number + 4 * sequence
                    targets = [("a", p, at + p, 1) for p in range(4)]
                    staged = client.stage(tid, epoch, sequence, targets)
                    client.commit(tid, epoch, sequence, staged, wait=sequence % 2)
                client.commit(tid, epoch, 10)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not failures, failures
    with RawTransactor(cluster.bootstrap) as client:
        found = rows_of(client, first)
    for partition, ids in enumerate(found):
        assert sorted(ids) == [100 * n + 4 * s + partition for n in range(8) for s in range(10)]
        for number in range(8):
            mine = [one for one in ids if one // 100 == number]
            assert mine == sorted(mine), "in the order of its transactions"


def test_a_decision_survives_its_coordinator(cluster: LocalCluster) -> None:
    """Killed right after the answer: another broker, or the next process, publishes."""
    first = base()
    with RawTransactor(cluster.bootstrap) as client:
        tid = name()
        epoch = client.open(tid, b"one").epoch
        staged = client.stage(tid, epoch, 0, [("a", p, first + p, 1) for p in range(4)])
        client.commit(tid, epoch, 0, staged, wait=0)
        coordinator = client.leader(TRANSACTIONS, client.coordinator_of(tid))
        cluster.brokers[coordinator].kill()
        if len(cluster.brokers) == 1:
            cluster.start()
        until(lambda: rows_of(client, first) == [[0], [1], [2], [3]])
        done = client.commit(tid, epoch, 0, staged)
        assert (done.outcome, done.row_count, done.is_published) == (1, 4, True)
        following = client.stage(tid, epoch, 1, [("a", p, first + 4 + p, 1) for p in range(4)])
        assert client.commit(tid, epoch, 1, following).outcome == 0
        assert rows_of(client, first) == [[0, 4], [1, 5], [2, 6], [3, 7]]
        cluster.start()
        assert client.open(tid, b"one").last_sequence == 1
