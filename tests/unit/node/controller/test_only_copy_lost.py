"""A partition with one replica whose directory is gone: it waits, comes back, or begins anew."""

from __future__ import annotations

from pathlib import Path

import pytest

from quiverlog.batch.schema import serialize_schema
from quiverlog.core.controller.elections import longest_log, only_copy_lost, unclean_leader
from quiverlog.core.controller.image import Image
from quiverlog.core.controller.log_ends import MISSING, LogEnd, LogEndReport
from quiverlog.core.controller.records import (
    NO_LEADER,
    BrokerRecord,
    ConfigRecord,
    PartitionRecord,
    SchemaRecord,
    TopicRecord,
)
from quiverlog.errors import StorageFault
from quiverlog.wire.election_messages import ElectLeadersRequest
from tests.support.node import SCHEMA, NodeDriver, batch_of

TOPIC = bytes(range(16))
GONE = LogEnd(-1, MISSING)


# --- the decision --------------------------------------------------------------------------------
def image_of(replicas: tuple[int, ...] = (1,), unclean: str = "false") -> Image:
    image = Image({})
    image.replay_entry([BrokerRecord(n, b"i", broker_epoch=10 + n) for n in (1, 2)])
    image.replay_entry(
        [
            TopicRecord(TOPIC, "t", 1, len(replicas)),
            ConfigRecord(TOPIC, "unclean.leader.election.enable", unclean),
            SchemaRecord(TOPIC, 1, 1, serialize_schema(SCHEMA)),
            PartitionRecord(TOPIC, 0, replicas, (1,), 1, 4),
        ]
    )
    return image


def loses_leader(image: Image, broker: int = 1, epoch: int = 4, end: LogEnd = GONE) -> bool:
    records = only_copy_lost(image, broker, LogEndReport(TOPIC, 0, epoch, end))
    if records:
        image.replay_entry(records)
    return bool(records)


def elected(image: Image, end: LogEnd) -> int:
    records = longest_log(image, TOPIC, 0, {1: end}, lambda _: True)
    if records:
        image.replay_entry(records)
    return image.topics["t"].partitions[0].leader_id


def test_a_partition_without_a_log_has_no_leader() -> None:
    image = image_of()
    assert loses_leader(image)
    partition = image.topics["t"].partitions[0]
    assert (partition.leader_id, partition.leader_epoch, partition.last_trusted) == (-1, 5, 1)
    assert partition.awaits_logs
    assert not partition.replaced_disks, "a log that is brought back counts"
    assert not loses_leader(image, epoch=5)
    assert elected(image, GONE) == NO_LEADER, "no empty log without a word"


def test_only_a_leader_that_is_the_only_replica_reports_a_missing_log() -> None:
    assert not loses_leader(image_of(), broker=2)
    assert not loses_leader(image_of(), epoch=3), "it is of another epoch"
    assert not loses_leader(image_of(), end=LogEnd(-1, 0))
    assert not loses_leader(image_of((1, 2))), "others can be asked for their logs"
    image = image_of()
    assert not only_copy_lost(image, 1, LogEndReport(TOPIC, 1, 4, GONE))
    assert not only_copy_lost(image, 1, LogEndReport(b"?" * 16, 0, 4, GONE))


def test_the_log_that_is_brought_back_leads_by_itself() -> None:
    image = image_of()
    assert loses_leader(image)
    assert elected(image, LogEnd(3, 100)) == 1
    assert not image.topics["t"].partitions[0].begins_anew


def test_giving_the_rows_up_begins_the_partition_anew_once() -> None:
    image = image_of()
    assert loses_leader(image)
    image.replay_entry(unclean_leader(image, TOPIC, 0, {1: GONE}))
    partition = image.topics["t"].partitions[0]
    assert (partition.leader_id, partition.begins_anew) == (1, True)
    assert not loses_leader(image, epoch=6), "its directory is about to be made"


def test_a_topic_that_waits_for_no_replica_begins_anew() -> None:
    image = image_of(unclean="true")
    assert loses_leader(image)
    (record,) = longest_log(image, TOPIC, 0, {1: GONE}, lambda _: True)
    assert (record.unclean, record.begins_anew, record.leader_id) == (True, True, 1)  # type: ignore[union-attr]
    assert elected(image, GONE) == 1


# --- a broker that is alone ----------------------------------------------------------------------
class Alone:
    """A broker with one partition, of which it has lost the directory. `kept`: where that is."""

    def __init__(self, root: Path, **configs: str) -> None:
        self.node = NodeDriver(root / "broker")
        self.topic = self.node.create(**configs)
        self.node.produced(self.topic, bytes(batch_of([1, 2])))
        self.directory = next((root / "broker").rglob("t-0"))
        self.kept = root / "kept"
        self.node.stop()
        self.directory.rename(self.kept)
        self.node.start()
        self.node.advance(5_000)

    @property
    def leader_id(self) -> int:
        return self.node.node.broker.metadata.image.topics["t"].partitions[0].leader_id

    def wait(self, ms: int = 15_000) -> None:
        for _ in range(ms // 500):
            self.node.advance(500)


@pytest.fixture
def alone(tmp_path: Path) -> Alone:
    return Alone(tmp_path)


def test_it_waits_for_the_directory(alone: Alone) -> None:
    alone.wait()
    assert alone.leader_id == NO_LEADER
    assert not alone.directory.exists(), "nothing stands in for it"
    result, _ = alone.node.fetched(alone.topic)
    assert result.error_code == StorageFault.code, "the caller gets the error"
    alone.node.restart()
    alone.wait()
    assert alone.leader_id == NO_LEADER


@pytest.mark.parametrize("ms", [0, 15_000])
def test_a_directory_that_is_back_is_served_with_all_rows(alone: Alone, ms: int) -> None:
    alone.wait(ms)
    alone.kept.rename(alone.directory)
    alone.wait()
    assert alone.node.broker_end(alone.topic) == 2


def test_an_operator_that_gives_the_rows_up_begins_the_partition_anew(alone: Alone) -> None:
    alone.wait()
    response, _ = alone.node.call(ElectLeadersRequest(name="t", unclean=True))
    assert not response.error_code
    alone.wait(1_000)
    assert alone.node.broker_end(alone.topic) == 0
    assert alone.node.produced(alone.topic, bytes(batch_of([3]))).base_offset == 0


def test_it_begins_anew_by_itself_where_the_topic_allows_it(tmp_path: Path) -> None:
    alone = Alone(tmp_path, **{"unclean.leader.election.enable": "true"})
    alone.wait()
    assert alone.node.broker_end(alone.topic) == 0
