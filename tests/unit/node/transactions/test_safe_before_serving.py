"""A leader of three replicas: it serves when all that it has replayed is safe at the level."""

from __future__ import annotations

import errno
from functools import partial
from pathlib import Path
from unittest import mock

import pytest

from quiverlog.core.controller.records import PartitionChangeRecord
from quiverlog.errors import (
    CoordinatorNotReady,
    NotEnoughReplicas,
    NotLeader,
    OutcomeUnknown,
)
from quiverlog.limits import REPLICA_LAG_MS_MAX
from quiverlog.node.controller.leader_lease import LeaderLease
from quiverlog.node.transactions.hosted import Hosted
from quiverlog.types import Durability
from quiverlog.wire.replica_messages import ReplicaFetchPartition, ReplicaFetchRequest
from tests.support.counters import Counter, CounterDriver, CounterKind, Outcomes
from tests.unit.node.replication import test_in_sync
from tests.unit.node.replication.test_in_sync import ALL, COPY, OTHER, Cluster, Slow


class Copied:
    """A partition with counters and three replicas; the followers are this test."""

    def __init__(self, tmp_path: Path, level: int = Durability.REPLICATED_FLUSHED) -> None:
        self.kind = CounterKind(level)
        make = partial(CounterDriver, kind=self.kind)
        with mock.patch.object(test_in_sync, "NodeDriver", make):
            self.cluster = Cluster(tmp_path)
        assert isinstance(self.cluster.node, CounterDriver)
        self.node = self.cluster.node
        self.outcomes = Outcomes(self.node)
        self.node.settle()

    @property
    def hosted(self) -> Hosted:
        return self.node.hosted(self.cluster.topic)

    @property
    def machine(self) -> Counter:
        return self.node.machine(self.cluster.topic)

    @property
    def is_served(self) -> bool:
        try:
            self.hosted.serve()
        except CoordinatorNotReady:
            return False
        return True

    def propose(self, *numbers: int, level: int | None = None) -> None:
        self.outcomes.propose(self.hosted, *numbers, level=level)
        self.node.settle()

    def copy(self, *brokers: int, end: int | None = None, flushed: int | None = None) -> None:
        """Followers have the rows below `end`, those below `flushed` on their disks."""
        state = self.cluster.state
        end = state.log_end_offset if end is None else end
        latest = self.node.node.broker.replicas[self.cluster.topic, 0].log.epochs.latest()[0]
        for one in brokers:
            entry = ReplicaFetchPartition(
                self.cluster.topic,
                0,
                state.leader_epoch,
                end,
                latest if end else -1,
                end if flushed is None else flushed,
                saved_epoch=state.leader_epoch,
            )
            request = ReplicaFetchRequest(
                replica_id=one,
                broker_epoch=self.cluster.epoch(one),
                max_wait_ms=0,
                partitions=[entry],
            )
            response, _ = self.node.call(request)
            assert not response.error_code, response

    def lead(self, epoch: int) -> None:
        self.cluster.decide(
            PartitionChangeRecord(self.cluster.topic, 0, leader_id=0, leader_epoch=epoch)
        )
        self.node.settle()


@pytest.fixture
def copied(tmp_path: Path) -> Copied:
    found = Copied(tmp_path)
    found.copy(COPY, OTHER)
    return found


def test_a_record_is_applied_when_it_is_on_enough_disks(copied: Copied) -> None:
    copied.propose(1)
    copied.copy(COPY, OTHER, flushed=0)
    assert copied.machine.numbers == []
    copied.copy(COPY)
    assert copied.machine.numbers == [1]
    assert copied.outcomes.of(1) == 0


def test_a_record_of_another_level(copied: Copied) -> None:
    copied.propose(1, level=Durability.REPLICATED)
    copied.copy(COPY, flushed=0)
    assert copied.machine.numbers == []
    copied.copy(OTHER, flushed=0)
    assert copied.machine.numbers == [1]


def test_an_append_has_the_strongest_level_of_its_records(copied: Copied) -> None:
    copied.outcomes.propose(copied.hosted, 1, level=Durability.REPLICATED_FLUSHED)
    copied.propose(2, level=Durability.REPLICATED)
    copied.copy(COPY, OTHER, flushed=0)
    assert not copied.outcomes.all
    copied.copy(OTHER)
    assert copied.outcomes.all == [((1,), 0), ((2,), 1)]


@pytest.mark.parametrize("level", [Durability.REPLICATED, Durability.REPLICATED_FLUSHED])
def test_rows_of_an_earlier_leader_are_safe_first(tmp_path: Path, level: int) -> None:
    """Else this leader would go on with records that the next one lacks; flushed whatever their
    level: one that a power failure of all brokers took would be decided on anew."""
    copied = Copied(tmp_path, level)
    copied.copy(COPY, OTHER)
    copied.propose(1, 2)
    copied.copy(COPY, OTHER, end=1)
    copied.lead(epoch=7)
    assert copied.outcomes.of(1, 2) is OutcomeUnknown
    assert not copied.is_served, "its own disk has them, and no other"
    copied.copy(COPY, flushed=0)
    assert not copied.is_served
    copied.copy(OTHER, flushed=0)
    assert not copied.is_served, "a power failure of all might take them"
    copied.copy(COPY, flushed=1)
    assert not copied.is_served
    copied.copy(COPY)
    assert copied.machine.numbers == [1, 2]
    assert copied.kind.serves[-1].leader_epoch == 7


def test_rows_above_the_high_watermark_are_replayed(copied: Copied) -> None:
    copied.propose(1)
    copied.copy(COPY, OTHER)
    copied.propose(2)
    assert copied.cluster.state.high_watermark == 1
    copied.lead(epoch=7)
    assert not copied.is_served
    copied.copy(COPY, OTHER)
    assert copied.machine.numbers == [1, 2]


def test_rows_that_become_safe_do_not_end_the_pause_behind_a_failed_read(copied: Copied) -> None:
    copied.propose(1)
    copied.node.holds_replays = True
    copied.lead(epoch=7)
    copied.node.replay(OSError(errno.EMFILE, "it fails"))
    copied.copy(COPY, OTHER)
    copied.node.settle()
    copied.node.advance(49)
    assert not copied.node.replays
    copied.node.advance(1)
    copied.node.replay()
    copied.node.settle()
    assert copied.machine.numbers == [1]


def test_too_few_in_sync(copied: Copied) -> None:
    machine = copied.machine
    copied.propose(1)
    copied.copy(COPY, OTHER)
    copied.propose(2)
    copied.node.advance(REPLICA_LAG_MS_MAX + 1)
    assert copied.cluster.in_sync == (0,)
    assert copied.outcomes.of(2) is OutcomeUnknown
    copied.node.settle()
    copied.node.advance(30_000)
    assert not copied.is_served
    copied.copy(COPY)
    copied.node.advance(3_000)
    assert copied.cluster.in_sync == (0, COPY)
    assert copied.machine.numbers == [1, 2]
    assert copied.machine is not machine


def test_too_few_in_sync_before_anything_is_pended(copied: Copied) -> None:
    Slow(copied.cluster)  # They would be back in sync at once.
    copied.cluster.decide(
        PartitionChangeRecord(copied.cluster.topic, 0, leader_id=0, in_sync_replicas=(0,))
    )
    with pytest.raises(NotEnoughReplicas):
        copied.propose(1)
    assert not copied.machine.pending
    copied.cluster.decide(
        PartitionChangeRecord(copied.cluster.topic, 0, leader_id=0, in_sync_replicas=ALL)
    )
    copied.propose(1)
    copied.copy(COPY, OTHER)
    assert copied.machine.numbers == [1]


def test_another_broker_leads(copied: Copied) -> None:
    hosted = copied.hosted
    copied.kind.stops.clear()
    copied.propose(1)
    copied.cluster.decide(
        PartitionChangeRecord(copied.cluster.topic, 0, leader_id=COPY, leader_epoch=7)
    )
    assert copied.outcomes.of(1) is OutcomeUnknown
    assert len(copied.kind.stops) == 1
    with pytest.raises(NotLeader):
        hosted.serve()
    with pytest.raises(NotLeader):
        assert copied.hosted


def test_without_the_lease(copied: Copied) -> None:
    hosted = copied.hosted
    assert hosted.serve(under_lease=True) is copied.machine
    lease = copied.node.node.broker.leader_lease
    with mock.patch.object(LeaderLease, "look"):
        lease.is_over = True
        assert hosted.serve()
        with pytest.raises(NotLeader):
            hosted.serve(under_lease=True)
        with pytest.raises(NotLeader):
            copied.propose(1)
        assert not copied.machine.pending
        copied.lead(epoch=7)
        copied.node.advance(5_000)
        assert not copied.is_served, "another broker may lead by now"
        lease.is_over = False
        copied.node.advance(3_000)
        assert copied.is_served
