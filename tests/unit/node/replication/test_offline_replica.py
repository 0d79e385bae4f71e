"""A replica that takes no writes leaves the in-sync replicas, and one that leads hands over."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from quiverlog.core.controller.image import Image
from quiverlog.core.controller.records import BrokerChangeRecord
from quiverlog.core.controller.replica_offline import replica_offline
from quiverlog.core.controller.topic_image import PartitionImage
from quiverlog.core.replication.follower import Phase
from quiverlog.errors import (
    FencedLeaderEpoch,
    InvalidRequest,
    NotLeader,
    OutcomeUnknown,
    StaleBrokerEpoch,
    StorageFault,
    UnknownPartition,
)
from quiverlog.node.runtime.events import Tick
from quiverlog.storage.segment.segment_files import SEGMENT_HEADER_BYTES
from quiverlog.types import LATEST, Durability
from quiverlog.wire import messages as m
from quiverlog.wire.replica_messages import (
    AlterPartitionRequest,
    OfflineReplica,
    ReplicaFetchPartition,
    ReplicaFetchRequest,
)
from tests.support.node import NodeDriver, batch_of
from tests.unit.core.controller.test_alter_partition import EPOCHS, TOPIC, cluster, partition
from tests.unit.node.apis.test_replica_fetch import change

from .test_in_sync import ALL, COPY, LEADER, OTHER, Cluster


# --- the decision --------------------------------------------------------------------------------
def leave(
    image: Image, broker: int, *, epoch: int | None = None, number: int = 0, leader_epoch: int = -1
) -> int:
    records = replica_offline(
        image, broker, EPOCHS[broker] if epoch is None else epoch, TOPIC, number, leader_epoch
    )
    if records:
        image.replay_entry(records)
    return len(records)


def shape(one: PartitionImage) -> tuple[int, int, tuple[int, ...], tuple[int, ...]]:
    return one.leader_id, one.leader_epoch, one.in_sync_replicas, one.eligible_leader_replicas


def test_a_copy_leaves_and_the_leader_stays() -> None:
    image = cluster()
    assert leave(image, 1) == 1
    assert shape(partition(image)) == (0, 4, (0, 2), ()), "its earlier reports are over"
    assert leave(image, 1) == 0, "it has left"
    assert leave(image, 2) == 1
    assert shape(partition(image)) == (0, 5, (0,), ()), "a replica that lost rows is not eligible"


def test_a_leader_hands_over_to_a_live_in_sync_replica() -> None:
    image = cluster()
    image.replay_entry([BrokerChangeRecord(1, 11, fenced=True)])
    assert leave(image, 0) == 1
    assert shape(partition(image)) == (2, 4, (1, 2), ())


def test_one_that_is_to_be_made_anew_counts_for_nothing_from_then_on() -> None:
    """Also one that was in sync alone: its disk may be one of those that were promised."""
    image = cluster()
    assert leave(image, 1) == 1
    assert partition(image).replaced_disks == (), "its log stays"
    assert leave(image, 1, leader_epoch=3) == 1
    assert shape(partition(image)) == (0, 4, (0, 2), ()), (
        "no broker has counted on it in this epoch"
    )
    assert partition(image).replaced_disks == (1,)
    assert leave(image, 1, leader_epoch=3) == 0
    assert leave(image, 1, leader_epoch=4) == 1
    assert (partition(image).leader_epoch, partition(image).replaced_disks) == (5, (1,))
    assert leave(image, 0, leader_epoch=5) == 1
    assert shape(partition(image)) == (2, 6, (2,), ())
    assert partition(image).replaced_disks == (1, 0)


def test_nothing_is_noted_while_logs_are_asked_for() -> None:
    """A log that was never made is reported where all are asked, and would no longer count."""
    image = cluster(in_sync=())
    partition(image).leader_id = -1
    assert partition(image).awaits_logs
    assert leave(image, 1, leader_epoch=3) == 0


def test_a_leader_hands_over_to_an_eligible_replica_where_no_other_is_in_sync() -> None:
    image = cluster(in_sync=(0,))
    partition(image).eligible_leader_replicas = (1,)
    assert leave(image, 0) == 1
    assert shape(partition(image)) == (1, 4, (1,), ())


def test_a_leader_without_a_possible_successor_stays_for_readers() -> None:
    image = cluster(in_sync=(0,))
    assert leave(image, 0) == 0
    image = cluster(in_sync=(0, 1))
    image.replay_entry([BrokerChangeRecord(1, 11, fenced=True)])
    assert leave(image, 0) == 0
    assert shape(partition(image)) == (0, 3, (0, 1), ())


def test_a_replica_about_to_be_made_anew_gets_a_later_leader_epoch() -> None:
    """Or a proposal of the leader that has it in sync could still be taken."""
    image = cluster()
    assert leave(image, 1, leader_epoch=3) == 1
    assert shape(partition(image)) == (0, 4, (0, 2), ())
    assert leave(image, 1, leader_epoch=3) == 0, "a later one holds"
    assert leave(image, 1, leader_epoch=4) == 1
    assert shape(partition(image)) == (0, 5, (0, 2), ()), "also where it was out of sync"
    assert leave(image, 0, leader_epoch=5) == 1
    assert shape(partition(image)) == (2, 6, (2,), ())


def test_the_last_one_that_may_lead_stays() -> None:
    image = cluster(in_sync=())
    partition(image).leader_id = -1
    partition(image).eligible_leader_replicas = (1, 2)
    assert leave(image, 1, leader_epoch=3) == 1
    assert shape(partition(image))[2:] == ((), (2,))
    assert leave(image, 2, leader_epoch=4) == 0, "no other has the rows that were readable"
    assert shape(partition(image))[2:] == ((), (2,))


def test_invalid_offline_reports_are_refused() -> None:
    with pytest.raises(StaleBrokerEpoch):
        leave(cluster(), 1, epoch=10)
    with pytest.raises(UnknownPartition):
        leave(cluster(), 1, number=4)
    image = cluster(in_sync=(0, 1))
    partition(image).replicas = (0, 1)
    with pytest.raises(InvalidRequest):
        leave(image, 2)


# --- whole nodes ---------------------------------------------------------------------------------
def test_a_leader_whose_flush_fails_hands_over(tmp_path: Path) -> None:
    leading = Cluster(tmp_path)
    asked = leading.write(1, level=Durability.FLUSHED)
    leading.node.flush(OSError(5, "no such luck"))
    leading.node.send(Tick())
    assert leading.code(asked) == OutcomeUnknown.code
    image = leading.node.node.broker.metadata.image.topics["t"].partitions[0]
    assert image.leader_id == COPY
    assert image.in_sync_replicas == (COPY, OTHER)
    assert leading.code(leading.write(2)) == NotLeader.code
    copy = leading.node.node.broker.replication._copies[leading.topic, 0]
    assert copy.follower.phase is Phase.OFFLINE, "and copies nothing before a restart"


def test_a_leader_that_hands_over_reports_no_end_until_the_next_is_known(
    tmp_path: Path,
) -> None:
    """The controller does not wait for its session: another one may have shown more since."""
    leading = Cluster(tmp_path)
    node, topic = leading.node, leading.topic
    asked = leading.write(1, level=Durability.FLUSHED)
    for one in (COPY, OTHER):
        leading.fetch(one, 1)
    assert node.offset_of(topic, LATEST).offset == 1
    # It is reported, and the answer does not come.
    node.node.broker.offline_replicas._ask = lambda *_asked: None
    node.flush(OSError(5, "no such luck"))
    node.send(Tick())
    assert leading.code(asked) == OutcomeUnknown.code
    assert node.node.broker.metadata.image.topics["t"].partitions[0].leader_id == LEADER
    assert node.offset_of(topic, LATEST).error_code == NotLeader.code
    assert node.fetched(topic, 1)[0].error_code == NotLeader.code
    assert node.fetched(topic, 0)[0].error_code == 0, "what was shown stays shown"
    described, _ = node.call(m.DescribeTopicsRequest(names=["t"]))
    assert described.topics[0].partitions[0].high_watermark == -1


@pytest.mark.parametrize(
    ("eligible", "fenced", "code"),
    [((), (), 0), ((COPY,), (), NotLeader.code), ((COPY,), (COPY,), 0)],
    ids=["no replica is eligible", "one that lives is", "one that is dead is"],
)
def test_a_leader_without_a_possible_successor_reports_its_end(
    tmp_path: Path, eligible: tuple[int, ...], fenced: tuple[int, ...], code: int
) -> None:
    leading = Cluster(tmp_path)
    node, topic = leading.node, leading.topic
    leading.change(in_sync_replicas=(LEADER,), eligible_leader_replicas=eligible)
    for one in fenced:
        leading.decide(BrokerChangeRecord(one, leading.epoch(one), fenced=True))
    node.node.broker.offline_replicas._ask = lambda *_asked: None
    asked = leading.write(2, level=Durability.FLUSHED)
    node.flush(OSError(5, "no such luck"))
    node.send(Tick())
    assert leading.code(asked) == OutcomeUnknown.code
    assert node.offset_of(topic, LATEST).error_code == code
    assert node.fetched(topic, 0)[0].error_code == code, "at the end of what was shown"
    trim = m.DeleteRecordsPartition(topic, 0, 0)
    deleted, _ = node.call(m.DeleteRecordsRequest(partitions=[trim]))
    assert deleted.partitions[0].error_code == code


def test_a_leader_with_one_replica_goes_on_as_it_did(tmp_path: Path) -> None:
    node = NodeDriver(tmp_path)
    topic = node.create()
    node.produce(topic, batch_of([1]))
    node.flush(OSError(5, "no such luck"))
    broker = node.node.broker
    assert not broker.offline_replicas.is_needed
    assert broker.metadata.image.topics["t"].partitions[0].leader_id == 0
    answer = node.answer(node.produce(topic, batch_of([1])))
    assert answer is not None
    assert answer[0].partitions[0].error_code == StorageFault.code


def copying(tmp_path: Path) -> tuple[NodeDriver, bytes]:
    """A node with a copy that has rows which are not flushed."""
    node = NodeDriver(tmp_path, node_id=COPY)
    topic = node.create(durability="memory")
    node.produce(topic, batch_of([1]))
    both = (LEADER, COPY)
    change(node, topic, replicas=both, in_sync_replicas=both, leader_id=LEADER, leader_epoch=3)
    return node, topic


def test_a_copy_whose_flush_fails_leaves_at_once(tmp_path: Path) -> None:
    node, topic = copying(tmp_path)
    replica = node.node.broker.assignment.find((topic, 0))
    assert replica is not None
    node.node.broker.flushes.want(replica)
    node.send(Tick())
    node.flush(OSError(5, "no such luck"))
    node.send(Tick())
    assert node.node.broker.metadata.image.topics["t"].partitions[0].in_sync_replicas == (LEADER,)
    assert node.node.broker.replication._copies[topic, 0].follower.phase is Phase.OFFLINE
    node.advance(10_000)
    assert not node.node.broker.offline_replicas.is_needed


def test_a_copy_that_has_left_does_not_rejoin_by_its_earlier_reports(
    tmp_path: Path,
) -> None:
    """The last fetch of a copy waits at the leader, or is still to come, when its fsync fails."""
    leading = Cluster(tmp_path)
    leading.write(1, 2)
    for one in (COPY, OTHER):
        leading.fetch(one, 2)
    before = leading.state.leader_epoch
    request = AlterPartitionRequest(broker_id=COPY, broker_epoch=leading.epoch(COPY))
    request.offline = [OfflineReplica(leading.topic, 0)]
    leading.node.call(request)
    leading.node.send(Tick())
    assert leading.in_sync == (LEADER, OTHER)
    entry = ReplicaFetchPartition(leading.topic, 0, before, 2, before, 0, 0)
    late = ReplicaFetchRequest(
        replica_id=COPY, broker_epoch=leading.epoch(COPY), partitions=[entry]
    )
    assert leading.node.call(late)[0].partitions[0].error_code == FencedLeaderEpoch.code
    leading.fetch(OTHER, 2)
    assert leading.in_sync == (LEADER, OTHER)
    leading.fetch(COPY, 2)
    assert leading.in_sync == ALL, "opened again it asks in the new epoch"


def test_a_replica_that_cannot_be_opened_leaves_and_begins_anew(tmp_path: Path) -> None:
    node, topic = copying(tmp_path)
    node.stop()
    shutil.rmtree(Path(node.config.data_dir) / "data" / "t-0")
    node.start()
    node.send(Tick())
    partition = node.node.broker.metadata.image.topics["t"].partitions[0]
    assert partition.in_sync_replicas == (LEADER,)
    assert partition.leader_epoch == 4
    replica = node.node.broker.assignment.find((topic, 0))
    assert replica is not None
    assert replica.log.log_end_offset == 0


def damage(node: NodeDriver) -> None:
    """Break the second header; a later batch is whole, so it is no torn tail."""
    (path,) = (Path(node.config.data_dir) / "data" / "t-0").glob("*.log")
    data = bytearray(path.read_bytes())
    first = len(batch_of([0] * 50))
    data[SEGMENT_HEADER_BYTES + first : SEGMENT_HEADER_BYTES + first + 16] = bytes(16)
    path.write_bytes(data)


@pytest.mark.parametrize("is_read", [True, False])
def test_a_replica_with_damaged_rows_is_fenced_where_others_have_them(
    tmp_path: Path, is_read: bool
) -> None:
    """Rule 13 of docs/replication-rules.md."""
    leading = Cluster(tmp_path)
    node, topic = leading.node, leading.topic
    for number in range(3):
        node.produce(topic, batch_of([number] * 50))
    if is_read:
        damage(node)
        for offset in (0, 50):
            leading.fetch(COPY, offset, max_wait_ms=100)
    else:
        damage(node)
        for name in ("recovery-point", "flushed"):
            for path in (Path(node.config.data_dir) / "data" / "t-0").glob(f"{name}*"):
                path.unlink()
        node.crash()
    node.send(Tick())
    partition = node.node.broker.metadata.image.topics["t"].partitions[0]
    assert partition.leader_id in (COPY, OTHER)
    assert LEADER not in partition.in_sync_replicas


def test_the_controller_is_asked_until_it_answers(tmp_path: Path) -> None:
    leading = Cluster(tmp_path)
    broker = leading.node.node.broker
    asked: list[AlterPartitionRequest] = []
    decide = broker.offline_replicas._ask
    broker.offline_replicas._ask = lambda request, then, now: (
        asked.append(request),
        then(None, NotLeader("there is no controller"), now),
    )[0]
    leading.write(1, level=Durability.FLUSHED)
    leading.node.flush(OSError(5, "no such luck"))
    leading.node.advance(5_000)
    assert len(asked) == 3
    assert asked[0].offline == [OfflineReplica(leading.topic, 0)]
    broker.offline_replicas._ask = decide
    leading.node.advance(5_000)
    assert leading.in_sync == (COPY, OTHER)
    assert not broker.offline_replicas.is_needed
