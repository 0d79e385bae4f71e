"""Partitions whose members all restarted without a clean stop: the longest log leads (adr/0037)."""

from __future__ import annotations

import pytest

from quiverlog.batch.schema import serialize_schema
from quiverlog.core.controller import elections
from quiverlog.core.controller.eligible import logs_needed
from quiverlog.core.controller.image import Image
from quiverlog.core.controller.log_ends import MISSING, UNREADABLE, LogEnd, LogEndReport, LogEnds
from quiverlog.core.controller.records import (
    LEADER_GONE,
    NO_LEADER,
    BrokerChangeRecord,
    BrokerRecord,
    ConfigRecord,
    PartitionChangeRecord,
    PartitionRecord,
    Record,
    SchemaRecord,
    TopicRecord,
)
from quiverlog.core.controller.registrations import Registrations
from quiverlog.core.controller.topic_image import PartitionImage
from quiverlog.errors import StaleBrokerEpoch
from tests.support.node import SCHEMA

TOPIC = bytes(range(16))
KEY = (TOPIC, 0)
EPOCH = 4
"""The leader epoch under which the partition awaits logs."""


def cluster(replicas: tuple[int, ...] = (0, 1, 2), min_in_sync: int = 2) -> Image:
    """Live brokers, and one partition without a trusted replica."""
    image = Image({})
    image.replay_entry([BrokerRecord(n, b"i", broker_epoch=10 + n) for n in replicas])
    image.replay_entry(
        [
            TopicRecord(TOPIC, "t", 1, len(replicas)),
            ConfigRecord(TOPIC, "min.insync.replicas", str(min_in_sync)),
            SchemaRecord(TOPIC, 1, 1, serialize_schema(SCHEMA)),
            PartitionRecord(TOPIC, 0, replicas, (), NO_LEADER, EPOCH),
        ]
    )
    return image


def partition(image: Image) -> PartitionImage:
    return image.topics_by_id[TOPIC].partitions[0]


def elected(image: Image, ends: dict[int, LogEnd], *with_session: int) -> int:
    """The leader by these logs; NO_LEADER: none yet."""
    records = elections.longest_log(image, *KEY, ends, lambda node_id: node_id in with_session)
    image.replay_entry(records or [BrokerChangeRecord(0, 10, in_shutdown=False)])
    assert partition(image).awaits_logs == (not records)
    return partition(image).leader_id


def report(end: int, last_epoch: int = 3, leader_epoch: int = EPOCH) -> LogEndReport:
    return LogEndReport(*KEY, leader_epoch, LogEnd(last_epoch, end))


# --- who leads ----------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("replicas", "minimum", "needed"),
    [((0,), 1, 1), ((0, 1), 2, 1), ((0, 1), 1, 2), ((0, 1, 2), 2, 2), ((0, 1, 2), 1, 3),
     ((0, 1, 2), 3, 1), ((0, 1, 2, 3, 4), 3, 3)],
)  # fmt: skip
def test_how_many_logs_are_enough(replicas: tuple[int, ...], minimum: int, needed: int) -> None:
    image = cluster(replicas, minimum)
    assert logs_needed(image.topics["t"], partition(image)) == needed
    for count in range(1, len(replicas) + 1):
        ends = {n: LogEnd(3, 100) for n in replicas[:count]}
        assert (elected(cluster(replicas, minimum), ends) != NO_LEADER) == (count >= needed)


def test_the_smallest_minimum_there_was_sets_how_many_logs_are_needed() -> None:
    """Rows that were acknowledged under it lie on so few disks."""
    image = cluster(min_in_sync=2)
    for value in ("1", "3"):
        image.replay_entry([ConfigRecord(TOPIC, "min.insync.replicas", value)])
    assert logs_needed(image.topics["t"], partition(image)) == 3
    again = Image({})
    again.replay_entry(image.snapshot_records())
    assert logs_needed(again.topics["t"], partition(again)) == 3
    assert again.topics["t"].record() == image.topics["t"].copy().record()


@pytest.mark.parametrize(
    ("ends", "leader"),
    [
        ({0: LogEnd(3, 90), 1: LogEnd(3, 100), 2: LogEnd(3, 95)}, 1),
        ({0: LogEnd(2, 200), 1: LogEnd(1, 300), 2: LogEnd(3, 50)}, 2),
        ({0: LogEnd(3, 90), 1: LogEnd(3, 100), 2: LogEnd(3, 100)}, 1),
        ({0: LogEnd(-1, 0), 1: LogEnd(-1, 0)}, 0),
        ({1: LogEnd(3, 7), 2: LogEnd(3, 8)}, 2),
    ],
    ids=["offset", "epoch first", "order of the replicas", "empty", "without the first"],
)
def test_the_longest_log_leads_alone(ends: dict[int, LogEnd], leader: int) -> None:
    """Rule 10 of docs/replication-rules.md."""
    image = cluster()
    assert elected(image, ends) == leader
    assert partition(image).in_sync_replicas == (leader,)
    assert partition(image).eligible_leader_replicas == ()
    assert partition(image).leader_epoch == EPOCH + 1
    assert KEY not in image.leaderless


def test_it_is_no_unclean_election() -> None:
    (record,) = elections.longest_log(
        cluster(), *KEY, {0: LogEnd(3, 1), 1: LogEnd(3, 2)}, lambda _: False
    )
    assert isinstance(record, PartitionChangeRecord)
    assert (record.leader_id, record.unclean) == (1, False)


def test_a_fenced_or_stopping_broker_does_not_count() -> None:
    for states in ({"fenced": True}, {"in_shutdown": True}):
        image = cluster()
        image.replay_entry([BrokerChangeRecord(1, 11, **states)])
        two = {0: LogEnd(3, 5), 1: LogEnd(3, 9)}
        assert elected(image, two) == NO_LEADER
        assert elected(image, {**two, 1: LogEnd(3, 7), 2: LogEnd(3, 7)}) == 2


def test_a_broker_with_a_session_is_waited_for() -> None:
    """Rows that only one has may be those of a producer that was promised less."""
    image, two = cluster(), {0: LogEnd(3, 5), 1: LogEnd(3, 9)}
    assert elected(image, two, 0, 1, 2) == NO_LEADER
    assert elected(image, {**two, 2: LogEnd(3, 10)}, 0, 1, 2) == 2
    assert elected(cluster(), two, 0, 1) == 1, "a silent broker is not"


def test_a_log_that_cannot_be_read_does_not_count_and_is_not_waited_for() -> None:
    damaged = LogEnd(-1, UNREADABLE)
    assert elected(cluster(), {0: LogEnd(3, 5), 1: damaged}, 0, 1) == NO_LEADER
    assert elected(cluster(), {0: LogEnd(3, 5), 1: damaged, 2: LogEnd(3, 4)}, 0, 1, 2) == 0
    both = {0: LogEnd(3, 5), 1: damaged, 2: damaged}
    assert elected(cluster(), both) == NO_LEADER, "their rows are unknown"


def test_a_log_that_is_not_there_counts_when_all_disks_were_asked() -> None:
    """A topic was created, and the power failed before its directories were made everywhere."""
    missing = LogEnd(-1, MISSING)
    assert elected(cluster(), {0: missing, 1: LogEnd(-1, 0)}) == NO_LEADER
    assert elected(cluster(), {0: missing, 1: LogEnd(-1, 0), 2: missing}) == 1


@pytest.mark.parametrize(
    ("ends", "replaced", "leader"),
    [
        ({0: MISSING, 1: MISSING, 2: MISSING}, (), 0),
        ({0: MISSING, 1: 0, 2: MISSING}, (), 1),
        ({1: MISSING, 2: 0}, (0,), 2),
        ({1: MISSING, 2: MISSING}, (0,), 1),
        ({2: MISSING}, (0, 1), NO_LEADER),
        ({0: MISSING, 1: MISSING}, (), NO_LEADER),
        ({1: 0, 2: MISSING}, (), NO_LEADER),
        ({2: UNREADABLE}, (0, 1), NO_LEADER),
        ({2: 7}, (0, 1), NO_LEADER),
        ({0: 0, 1: 0}, (0, 1, 2), NO_LEADER),
    ],
    ids=[
        "none was made", "one was", "one was, and one is lost", "one is lost",
        "a row may lie on those that are lost", "not all have reported", "one may have rows",
        "one may have had rows", "one has rows", "no disk is the one it was",
    ],
)  # fmt: skip
@pytest.mark.parametrize("minimum", [1, 2])
def test_where_no_disk_has_ever_had_a_row_a_replica_leads(
    ends: dict[int, int], replaced: tuple[int, ...], leader: int, minimum: int
) -> None:
    """Nothing is to be found (docs/adr/0047): the power went before the directories were made."""
    image = cluster(min_in_sync=minimum)
    partition(image).replaced_disks = replaced
    reported = {n: LogEnd(-1, end) for n, end in ends.items()}
    if len(replaced) >= minimum:
        leader = NO_LEADER  # These may have been the disks that a row was promised to lie on.
    assert elected(image, reported) == leader
    assert partition(image).begins_anew == (leader >= 0 and ends[leader] == MISSING)


def test_where_the_last_trusted_replica_is_gone_no_empty_log_leads() -> None:
    """The one that was trusted last may have had rows alone."""
    image, reported = cluster(min_in_sync=2), {1: LogEnd(-1, 0), 2: LogEnd(-1, MISSING)}
    partition(image).replaced_disks, partition(image).last_trusted = (0,), 0
    assert elected(image, reported) == NO_LEADER
    partition(image).last_trusted = 1
    assert elected(image, reported) == 1


def test_a_partition_with_a_trusted_replica_awaits_nothing() -> None:
    image = cluster()
    ends = {n: LogEnd(3, n) for n in range(3)}
    change = PartitionChangeRecord(TOPIC, 0, eligible_leader_replicas=(0,))
    image.replay_entry([change])
    assert not partition(image).awaits_logs
    assert elections.longest_log(image, *KEY, ends, lambda _: False) == []


# --- how it comes to that -----------------------------------------------------------------------
def restarted(image: Image, node_id: int, *, disk: str = "", clean: bool = False) -> None:
    """A broker registers anew, by what the controller decides."""
    before = image.brokers[node_id]
    life = BrokerRecord(node_id, b"n%d" % image.version, directory_id=disk or before.directory_id)
    decide = Registrations(9, b"controller", 2_000_000)
    records = decide.register(image, life, before.incarnation if clean else b"", 10_000_000)
    image.replay_entry(records, version=image.version + 1)


def led(min_in_sync: int = 2, replicas: tuple[int, ...] = (0, 1, 2)) -> Image:
    image = Image({})
    brokers = [BrokerRecord(n, b"i", broker_epoch=1, directory_id=f"d{n}") for n in replicas]
    image.replay_entry([*brokers], version=1)
    image.replay_entry(
        [
            TopicRecord(TOPIC, "t", 1, len(replicas)),
            ConfigRecord(TOPIC, "min.insync.replicas", str(min_in_sync)),
            SchemaRecord(TOPIC, 1, 1, serialize_schema(SCHEMA)),
            PartitionRecord(TOPIC, 0, replicas, replicas, replicas[0], 3),
        ],
        version=2,
    )
    return image


def test_when_the_last_one_comes_back_no_replica_is_trusted() -> None:
    image = led()
    for node_id in (1, 2):
        restarted(image, node_id)
        assert not partition(image).awaits_logs, "one has its rows in memory, perhaps"
    restarted(image, 0)
    assert partition(image).awaits_logs
    assert partition(image).leader_epoch == 4, "the earlier leader leads no more"
    again = Image({})
    again.replay_entry(image.snapshot_records())
    assert partition(again).awaits_logs, "another controller knows it"


def test_the_last_trusted_replica_is_waited_for_in_any_case() -> None:
    """A process that ended has lost nothing: it alone may have rows that were `replicated`."""
    image = led()
    for node_id in (1, 2, 0):
        restarted(image, node_id)
    again = Image({})
    again.replay_entry(image.snapshot_records(), version=image.version)
    assert partition(again).last_trusted == 0
    for node_id in (0, 1, 2):
        epoch = again.brokers[node_id].broker_epoch
        again.replay_entry([BrokerChangeRecord(node_id, epoch, fenced=False)])
    ends = {1: LogEnd(3, 5), 2: LogEnd(3, 9)}
    assert elections.longest_log(again, *KEY, ends, lambda _: False) == []
    unreadable = {**ends, 0: LogEnd(-1, UNREADABLE)}
    assert elections.longest_log(again, *KEY, unreadable, lambda _: False)
    ends[0] = LogEnd(3, 4)
    again.replay_entry(elections.longest_log(again, *KEY, ends, lambda _: False))
    assert (partition(again).leader_id, partition(again).last_trusted) == (2, NO_LEADER)


def test_a_broker_that_stopped_cleanly_is_trusted() -> None:
    image = led()
    for node_id in (1, 2):
        restarted(image, node_id)
    restarted(image, 0, clean=True)
    assert not partition(image).awaits_logs
    assert partition(image).eligible_leader_replicas == (0,)


def test_a_lone_replica_is_the_log() -> None:
    image = led(1, (0,))
    restarted(image, 0)
    assert not partition(image).awaits_logs
    assert partition(image).eligible_leader_replicas == (0,)


def test_a_disk_that_was_replaced_counts_when_it_is_in_sync_again() -> None:
    image = led()
    restarted(image, 1, disk="another")
    assert partition(image).replaced_disks == (1,)
    restarted(image, 1)
    assert partition(image).replaced_disks == (1,), "what it had is still gone"
    for node_id in (2, 0):
        restarted(image, node_id)
    again = Image({})
    again.replay_entry(image.snapshot_records(), version=image.version)
    for node_id in (0, 1, 2):
        epoch = again.brokers[node_id].broker_epoch
        again.replay_entry([BrokerChangeRecord(node_id, epoch, fenced=False)])
    ends = {0: LogEnd(3, 5), 1: LogEnd(3, 9)}
    assert elections.longest_log(again, *KEY, ends, lambda _: False) == []
    ends[2] = LogEnd(3, 4)
    again.replay_entry(elections.longest_log(again, *KEY, ends, lambda _: False))
    assert partition(again).leader_id == 0
    again.replay_entry([PartitionChangeRecord(TOPIC, 0, in_sync_replicas=(0, 1))])
    assert partition(again).replaced_disks == ()


# --- which reports count ------------------------------------------------------------------------
def test_a_report_counts_for_one_registration() -> None:
    image, ends = cluster(), LogEnds()
    assert ends.take(image, 0, 10, [report(5)]) == [KEY]
    assert ends.of(image, *KEY) == {0: LogEnd(3, 5)}
    restarted(image, 0)
    assert ends.of(image, *KEY) == {}, "what it had not flushed is gone, perhaps"
    with pytest.raises(StaleBrokerEpoch):
        ends.take(image, 0, 10, [report(5)])
    ends.take(image, 0, image.version, [report(4)])
    assert ends.of(image, *KEY) == {0: LogEnd(3, 4)}


def test_reports_of_a_registration_that_is_not_committed_are_refused() -> None:
    image, ends = cluster(), LogEnds()
    image.replay_entry([BrokerRecord(0, b"another")])
    with pytest.raises(StaleBrokerEpoch):
        ends.take(image, 0, -1, [report(5)])


def test_a_report_counts_for_one_leader_epoch() -> None:
    """Under another one the log was written to, or cut."""
    image, ends = cluster(), LogEnds()
    assert ends.take(image, 0, 10, [report(5, leader_epoch=EPOCH - 1)]) == []
    ends.take(image, 0, 10, [report(5)])
    image.replay_entry([PartitionChangeRecord(TOPIC, 0, 1, EPOCH + 1, (1,))])
    image.replay_entry([PartitionChangeRecord(TOPIC, 0, LEADER_GONE, EPOCH + 2, ())])
    assert partition(image).awaits_logs
    assert ends.of(image, *KEY) == {}


def test_only_of_replicas_and_of_partitions_without_a_leader() -> None:
    image, ends = cluster(), LogEnds()
    image.replay_entry([BrokerRecord(7, b"i", broker_epoch=17)])
    assert ends.take(image, 7, 17, [report(5)]) == []
    assert (
        ends.take(image, 0, 10, [LogEndReport(b"no such topic   ", 0, EPOCH, LogEnd(3, 5))]) == []
    )
    assert ends.take(image, 0, 10, [LogEndReport(TOPIC, 1, EPOCH, LogEnd(3, 5))]) == []
    image.replay_entry([PartitionChangeRecord(TOPIC, 0, 1, EPOCH + 1, (1,))])
    assert ends.take(image, 0, 10, [report(5, leader_epoch=EPOCH + 1)]) == []
    assert len(ends) == 0


def test_reports_of_partitions_with_a_leader_are_dropped() -> None:
    image, ends = cluster(), LogEnds()
    ends.take(image, 0, 10, [report(5)])
    assert len(ends) == 1
    image.replay_entry([PartitionChangeRecord(TOPIC, 0, 1, EPOCH + 1, (1,))])
    ends.take(image, 0, 10, [])
    assert len(ends) == 0
    ends.clear()


# --- the way out --------------------------------------------------------------------------------
def unclean(image: Image, ends: dict[int, LogEnd]) -> int:
    records: list[Record] = elections.unclean_leader(image, *KEY, ends)
    assert all(isinstance(one, PartitionChangeRecord) and one.unclean for one in records)
    image.replay_entry(records)
    return partition(image).leader_id


def test_an_unclean_election_takes_the_longest_log_that_is_known() -> None:
    """Rule 11 of docs/replication-rules.md."""
    assert unclean(cluster(), {}) == 0
    assert unclean(cluster(), {2: LogEnd(1, 4)}) == 2
    assert unclean(cluster(), {0: LogEnd(3, 4), 1: LogEnd(3, 5), 2: LogEnd(2, 9)}) == 1
    assert unclean(cluster(), {0: LogEnd(-1, MISSING), 1: LogEnd(-1, UNREADABLE)}) == 1
    image = cluster()
    image.replay_entry([BrokerChangeRecord(1, 11, fenced=True)])
    assert unclean(image, {0: LogEnd(3, 4), 1: LogEnd(3, 5)}) == 0


def test_a_topic_that_prefers_to_lose_rows_awaits_nothing() -> None:
    """Rule 11 of docs/replication-rules.md."""
    image = cluster()
    topic = image.topics["t"]
    image.replay_entry([ConfigRecord(TOPIC, "unclean.leader.election.enable", "true")])
    image.replay_entry(elections.settings_changed(image, topic, topic.config))
    assert partition(image).leader_id == 0
