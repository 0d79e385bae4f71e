"""When a produce is answered, at each level of a topic with several replicas; what copies flush."""

from __future__ import annotations

from pathlib import Path

import pytest

from quiverlog.errors import NotEnoughReplicas, NotEnoughReplicasAfterAppend
from quiverlog.limits import REPLICA_LAG_MS_MAX, UNFLUSHED_MS_MAX
from quiverlog.node.partitions.replica import Replica
from quiverlog.node.runtime.events import Tick
from quiverlog.types import Durability
from quiverlog.wire.replica_messages import ReplicaFetchResult
from tests.support.node import NodeDriver, batch_of
from tests.unit.node.apis.test_replica_fetch import change
from tests.unit.node.replication.test_in_sync import COPY, LEADER, OTHER, Cluster


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    return Cluster(tmp_path)


def test_memory_is_acknowledged_at_once_and_readable_by_no_consumer(cluster: Cluster) -> None:
    assert cluster.code(cluster.write(1, level=Durability.MEMORY)) == 0
    assert cluster.state.high_watermark == 0
    assert cluster.node.fetched(cluster.topic)[1] == b""


def test_flushed_is_answered_when_the_leader_has_flushed(cluster: Cluster) -> None:
    asked = cluster.write(1, level=Durability.FLUSHED)
    assert cluster.node.answer(asked) is None
    cluster.node.flush()
    assert cluster.code(asked) == 0
    assert cluster.state.high_watermark == 0


def test_replicated_is_answered_at_the_high_watermark(cluster: Cluster) -> None:
    asked = cluster.write(1, level=Durability.REPLICATED)
    cluster.fetch(COPY, 1, flushed=1)
    assert cluster.node.answer(asked) is None
    cluster.fetch(OTHER, 1)
    assert cluster.state.high_watermark == 1
    assert cluster.code(asked) == 0
    assert cluster.state.flushed_offset == 0


def test_replicated_flushed_is_answered_when_enough_disks_have_it(cluster: Cluster) -> None:
    """Rule 12 of docs/replication-rules.md."""
    asked = cluster.write(1, level=Durability.REPLICATED_FLUSHED)
    for one in (COPY, OTHER):
        cluster.fetch(one, 1)
    assert cluster.state.high_watermark == 1
    assert cluster.node.answer(asked) is None
    cluster.fetch(COPY, 1, flushed=1)
    assert cluster.node.answer(asked) is None, "one disk"
    cluster.node.flush()
    assert cluster.code(asked) == 0, "two, which is the minimum"


def test_disks_of_followers_are_enough(cluster: Cluster) -> None:
    asked = cluster.write(1, level=Durability.REPLICATED_FLUSHED)
    cluster.fetch(COPY, 1, flushed=1)
    cluster.fetch(OTHER, 1)
    assert cluster.node.answer(asked) is None
    cluster.fetch(OTHER, 1, flushed=1)
    assert cluster.code(asked) == 0


def test_flushed_on_enough_disks_is_not_enough_below_the_high_watermark(cluster: Cluster) -> None:
    """An acknowledged row is never without a reader: the third has to have the rows as well."""
    asked = cluster.write(1, level=Durability.REPLICATED_FLUSHED)
    cluster.fetch(COPY, 1, flushed=1)
    cluster.node.flush()
    assert cluster.node.answer(asked) is None
    assert cluster.node.fetched(cluster.topic)[1] == b""
    cluster.fetch(OTHER, 1)
    assert cluster.code(asked) == 0


@pytest.mark.parametrize("level", [Durability.REPLICATED, Durability.REPLICATED_FLUSHED])
def test_with_too_few_in_sync_rows_are_refused_or_of_unknown_fate(
    cluster: Cluster, level: Durability
) -> None:
    waiting = cluster.write(1, level=level)
    cluster.node.flush()
    cluster.node.advance(REPLICA_LAG_MS_MAX + 1)
    assert cluster.in_sync == (LEADER,)
    assert cluster.code(waiting) == NotEnoughReplicasAfterAppend.code
    end = cluster.state.log_end_offset
    assert cluster.code(cluster.write(2, level=level)) == NotEnoughReplicas.code
    assert cluster.state.log_end_offset == end, "before it is stored"
    for one in (COPY, OTHER):
        cluster.fetch(one, end, flushed=end)
    again = cluster.write(3, level=level)
    cluster.node.flush()
    for one in (COPY, OTHER):
        cluster.fetch(one, end + 1, flushed=end + 1)
    assert cluster.code(again) == 0


def test_a_repetition_of_rows_of_unknown_fate_is_answered_when_they_are_safe(
    cluster: Cluster,
) -> None:
    cluster.node.give_out(0, 0)
    batch = batch_of([1], producer=(0, 0, 0))
    first = cluster.node.produce(cluster.topic, batch, durability=Durability.REPLICATED)
    cluster.node.advance(REPLICA_LAG_MS_MAX + 1)
    assert cluster.code(first) == NotEnoughReplicasAfterAppend.code
    again = cluster.node.produce(cluster.topic, batch, durability=Durability.REPLICATED)
    assert cluster.code(again) == NotEnoughReplicas.code
    for one in (COPY, OTHER):
        cluster.fetch(one, 1)
    third = cluster.node.produce(cluster.topic, batch, durability=Durability.REPLICATED)
    assert cluster.code(third) == 0
    answer = cluster.node.answer(third)
    assert answer is not None
    assert answer[0].partitions[0].duplicate
    assert cluster.state.log_end_offset == 1


# --- what copies flush ---------------------------------------------------------------------------
def test_followers_get_the_offset_that_a_producer_waits_for(cluster: Cluster) -> None:
    cluster.write(1)
    (result,) = cluster.fetch(COPY, 0).partitions
    assert result.flush_offset == 0
    cluster.write(2, level=Durability.REPLICATED_FLUSHED)
    cluster.write(3)
    (result,) = cluster.fetch(COPY, 1).partitions
    assert result.flush_offset == 2


class Copy:
    """A node that copies; the leader's answers are this test's."""

    def __init__(self, tmp_path: Path, level: str) -> None:
        self.node = NodeDriver(tmp_path, node_id=COPY)
        self.topic = self.node.create(durability="memory")
        both = (LEADER, COPY)
        change(
            self.node,
            self.topic,
            replicas=both,
            in_sync_replicas=both,
            leader_id=LEADER,
            leader_epoch=3,
        )
        broker = self.node.node.broker
        found = broker.assignment.find((self.topic, 0))
        assert found is not None
        self.replica: Replica = found
        self.replica.state.set_durability(Durability[level.upper()])
        self.copy = broker.replication._copies[self.topic, 0]

    def take(self, *values: int, flush_offset: int = 0) -> None:
        leader = NodeDriver(self.node._root / f"leader-{self.replica.log.log_end_offset}")
        topic = leader.create()
        for _ in range(self.replica.log.log_end_offset):
            leader.produced(topic, batch_of([0]))
        leader.produced(topic, batch_of(values))
        offset = self.replica.log.log_end_offset
        rows = memoryview(bytearray(leader.fetched(topic, offset)[1]))
        result = ReplicaFetchResult(self.topic, 0, flush_offset=flush_offset, high_watermark=0)
        self.node.node.broker.replication._take(self.copy, result, rows, self.node.now)
        self.node.send(Tick())


def test_copies_of_replicated_flushed_topics_flush_at_once(tmp_path: Path) -> None:
    copy = Copy(tmp_path, "replicated_flushed")
    copy.take(1)
    assert len(copy.node.syncs) == 1
    copy.node.flush()
    assert copy.replica.log.flushed_offset == 1


def test_copies_flush_at_once_what_a_producer_waits_for(tmp_path: Path) -> None:
    copy = Copy(tmp_path, "replicated")
    copy.take(1)
    assert not copy.node.syncs
    copy.take(2, flush_offset=2)
    assert len(copy.node.syncs) == 1
    replication = copy.node.node.broker.replication
    assert replication._flushing
    copy.node.flush()
    assert not replication._flushing, "the next fetch waits as long as others"


def test_copies_of_every_level_are_flushed_in_the_background(tmp_path: Path) -> None:
    copy = Copy(tmp_path, "memory")
    copy.take(1)
    copy.node.advance(UNFLUSHED_MS_MAX - 1)
    assert not copy.node.syncs
    copy.node.advance(2)
    copy.node.flush()
    assert copy.replica.log.flushed_offset == 1
