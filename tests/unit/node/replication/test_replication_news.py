"""A follower's news for which a request waits end the wait of its fetch: no clock is needed."""

from __future__ import annotations

from pathlib import Path

from quiverlog.core.controller.records import PartitionChangeRecord
from quiverlog.node.runtime.events import Tick
from quiverlog.types import Durability
from quiverlog.wire import messages as m
from quiverlog.wire.replica_messages import ReplicaFetchRequest
from tests.support.copies import BOTH, COPY, LEADER, Copies
from tests.support.node import batch_of


def asked(copies: Copies) -> list[ReplicaFetchRequest]:
    """What the follower has to report to its leader now."""
    requests = [one.request for one in copies.copy.asked]
    assert all(isinstance(one, ReplicaFetchRequest) for one in requests)
    return [one for one in requests if isinstance(one, ReplicaFetchRequest)]


def produce(copies: Copies, level: Durability, topic: bytes | None = None) -> int:
    batch = bytes(batch_of([1]))
    entry = m.ProducePartition(topic or copies.topic, 0, 3, len(batch))
    request = m.ProduceRequest(durability=level, timeout_ms=60_000, partitions=[entry])
    return copies.leader.request(request, batch)


def is_acknowledged(copies: Copies, correlation: int) -> bool:
    found = copies.leader.answer(correlation)
    if found is None:
        return False
    assert isinstance(found[0], m.ProduceResponse)
    assert not found[0].partitions[0].error_code
    return True


def test_a_flush_that_a_producer_waits_for_is_reported_at_once(tmp_path: Path) -> None:
    copies = Copies(tmp_path)
    copies.settle()
    waits = produce(copies, Durability.REPLICATED_FLUSHED)
    copies.settle()
    assert not is_acknowledged(copies, waits), "on no disk"
    copies.copy.flush()
    copies.settle()
    assert is_acknowledged(copies, waits)


def test_a_flush_without_waiting_producers_is_reported_with_the_next_fetch(tmp_path: Path) -> None:
    copies = Copies(tmp_path)
    copies.settle()
    waits = produce(copies, Durability.REPLICATED)
    copies.settle()
    assert is_acknowledged(copies, waits)
    copies.copy.advance(60_000)
    copies.copy.asked.clear()
    while copies.copy.syncs:
        copies.copy.flush()
    assert copies.replica.log.flushed_offset == 1, "in the background"
    assert not asked(copies)


def test_a_partition_that_is_new_to_a_leader_is_asked_for_at_once(tmp_path: Path) -> None:
    copies = Copies(tmp_path)
    copies.settle()
    topic = copies.leader.create("new", durability="memory")
    assert copies.copy.create("new", durability="memory") == topic
    for node in (copies.leader, copies.copy):
        change = PartitionChangeRecord(
            topic, 0, replicas=BOTH, in_sync_replicas=BOTH, leader_id=LEADER, leader_epoch=3
        )
        node.node.broker.propose([change], node.now, lambda _result, _error, _now: None)
        node.send(Tick())
    (wait,) = asked(copies)
    assert wait.ends_wait
    assert (wait.partitions, wait.forgotten) == ([], [])
    waits = produce(copies, Durability.REPLICATED, topic)
    copies.settle()
    assert is_acknowledged(copies, waits)


def test_an_acknowledged_batch_costs_each_follower_one_fetch(tmp_path: Path) -> None:
    """Another one for its high watermark would be as much work as the batch itself."""
    copies = Copies(tmp_path)
    copies.settle()
    fetches = 0
    for _ in range(20):
        waits = produce(copies, Durability.REPLICATED)
        while not is_acknowledged(copies, waits):
            fetches += len(copies.copy.asked)
            assert copies.carry(), "no broker sends anything, and no time passes"
        while copies.copy.asked:
            fetches += len(copies.copy.asked)
            copies.carry()
    assert fetches == 20
    assert copies.replica.state.high_watermark == 19, "it came with the rows of the next batch"


def test_the_end_of_a_wait_of_another_session_ends_nothing(tmp_path: Path) -> None:
    copies = Copies(tmp_path)
    copies.settle()
    purgatory = copies.leader.node.broker.purgatory
    (session,) = copies.leader.node.broker.copy_sessions._parked
    assert purgatory.parked == 1
    for broker_id, session_id, parked in (
        (COPY, session.session_id + 1, 1),
        (COPY + 1, session.session_id, 1),
        (COPY, session.session_id, 0),
        (COPY, session.session_id, 0),
    ):
        wait = ReplicaFetchRequest(
            replica_id=broker_id, broker_epoch=0, session_id=session_id, ends_wait=True
        )
        response, _ = copies.leader.call(wait)
        assert not response.error_code
        assert purgatory.parked == parked
