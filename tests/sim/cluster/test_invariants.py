"""The rules of a simulated cluster on broken histories: each is red at least once."""

from __future__ import annotations

from collections import Counter
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from quiverlog.core.controller.image import Image
from quiverlog.core.controller.records import PartitionChangeRecord
from quiverlog.storage.log.log import Log, LogConfig
from quiverlog.types import Durability, Now, TopicPartition
from tests.model.test_log_model import make_batch
from tests.sim.checker import Violation
from tests.sim.disk import SimDisk
from tests.support.logs import trim

from .invariants import Invariants, _Copy
from .losses import Losses
from .promises import ClusterChecker, ClusterTopicModel

KEY = (bytes(16), 0)
NAME = TopicPartition("t", 0)


def in_sync(
    members: tuple[int, ...], *, eligible: tuple[int, ...] = (), leader_id: int = 0
) -> None:
    Invariants.check_in_sync("t-0", (0, 1, 2), members, eligible, leader_id)


def test_one_leader_in_an_epoch() -> None:
    rules = Invariants()
    rules.check_one_leader(KEY, 3, 0)
    rules.check_one_leader(KEY, 3, 0)
    rules.check_one_leader(KEY, 4, 1)
    with pytest.raises(Violation, match="under epoch 3"):
        rules.check_one_leader(KEY, 3, 1)


def test_a_high_watermark_does_not_fall() -> None:
    Invariants.check_monotonic("t-0", 5, 5)
    with pytest.raises(Violation, match="fell from 5 to 4"):
        Invariants.check_monotonic("t-0", 5, 4)


def test_in_sync_brokers_are_replicas_and_the_leader_is_in_sync() -> None:
    in_sync((0, 1))
    in_sync((), eligible=(2,), leader_id=-1)
    with pytest.raises(Violation, match=r"of \(0, 1, 2\)"):
        in_sync((0, 3))
    with pytest.raises(Violation, match=r"of \(0, 1, 2\)"):
        in_sync((0, 1), eligible=(4,))
    with pytest.raises(Violation, match="are in sync"):
        in_sync((0, 1), eligible=(1,))
    with pytest.raises(Violation, match="2 leads"):
        in_sync((0, 1), leader_id=2)


def test_committed_bytes_are_the_same_everywhere() -> None:
    rules = Invariants()
    rules.committed(KEY, "a", 0, 5, 111)
    rules.committed(KEY, "b", 0, 5, 111)
    rules.committed(KEY, "b", 5, 9, 222)
    assert rules.partitions[KEY].end == 9
    with pytest.raises(Violation, match="other bytes at 5"):
        rules.committed(KEY, "a", 5, 9, 333)
    with pytest.raises(Violation, match="other bytes at 0"):
        rules.committed(KEY, "a", 0, 4, 111)


def test_a_new_leader_has_all_that_was_committed() -> None:
    Invariants.check_complete("t-0", 9, 9)
    with pytest.raises(Violation, match="up to 8, committed was 9"):
        Invariants.check_complete("t-0", 8, 9)


def test_a_leader_that_learns_late_of_its_election_has_what_was_committed_before_the_next() -> None:
    rules = Invariants()
    rules.committed(KEY, "a", 0, 9, 111)
    assert rules.begins(KEY, 3) == 9
    assert rules.begins(KEY, 5) == 9
    rules.committed(KEY, "a", 9, 11, 222)
    assert rules.begins(KEY, 4) == 9, "the leader of 5 has committed the rest"
    assert rules.begins(KEY, 5) == rules.begins(KEY, 6) == 11
    with pytest.raises(Violation, match="up to 8, committed was 9"):
        Invariants.check_complete("t-0", 8, rules.begins(KEY, 4))
    with pytest.raises(Violation, match="up to 10, committed was 11"):
        Invariants.check_complete("t-0", 10, rules.begins(KEY, 6))
    rules.forgive(KEY, 0)
    assert rules.begins(KEY, 4) == 0


def test_what_a_fault_had_the_right_to_take_is_not_missed() -> None:
    rules = Invariants()
    rules.committed(KEY, "a", 0, 5, 111)
    rules.committed(KEY, "a", 5, 9, 222)
    rules.forgive(KEY, 5)
    assert rules.partitions[KEY].end == 5
    rules.committed(KEY, "a", 5, 7, 333)
    with pytest.raises(Violation, match="other bytes at 0"):
        rules.committed(KEY, "a", 0, 5, 999)


def test_equal_versions_of_the_metadata_are_the_same_image() -> None:
    rules = Invariants()
    rules.check_image("a", 7, b"x")
    rules.check_image("b", 7, b"x")
    rules.check_image("b", 8, b"y")
    with pytest.raises(Violation, match="version 7"):
        rules.check_image("c", 7, b"z")


def test_metadata_that_a_snapshot_is_made_of_are_looked_at_too() -> None:
    """The counted replicas were taken from the version before, while readers' rows were those of
    this one.
    """
    rules, image = Invariants(), Image({})
    image.version, image.frozen = 7, True
    node = SimpleNamespace(broker=SimpleNamespace(metadata=SimpleNamespace(image=image)))
    world = SimpleNamespace(mono_us=1)
    host: Any = SimpleNamespace(node=node, life=1, node_id=0, name="a", real_world=world)
    rules._look_at_image(host)
    assert rules.counted.version == 7
    assert rules.versions_us == {7: 1}


def test_one_leader_of_the_quorum_in_a_term() -> None:
    rules = Invariants()
    rules.check_term(1, 0)
    rules.check_term(2, 1)
    with pytest.raises(Violation, match="nodes 0 and 2"):
        rules.check_term(1, 2)


# --- rows -----------------------------------------------------------------------------------------
@pytest.fixture
def rows() -> ClusterChecker:
    """Six rows of one producer were sent."""
    checker = ClusterChecker()
    model = ClusterTopicModel("t", KEY[0], {"durability": "replicated"})
    checker.add(model, 1)
    checker.sent(KEY, list(range(1, 7)))
    return checker


def test_an_acknowledged_row_is_there_at_the_end(rows: ClusterChecker) -> None:
    rows.acked(KEY, 0, [1, 2], 0, flushed=True)
    rows.read(KEY, 0, [1])
    with pytest.raises(Violation, match="acknowledged rows are missing"):
        rows.finish(KEY, 0, 1)


def test_the_log_does_not_end_before_what_was_acknowledged(rows: ClusterChecker) -> None:
    rows.acked(KEY, 0, [1, 2], 0, flushed=True)
    with pytest.raises(Violation, match="the log ends at 1"):
        rows.log_end(KEY, 1)


def test_offsets_are_dense(rows: ClusterChecker) -> None:
    rows.read(KEY, 0, [1])
    rows.read(KEY, 2, [2])
    with pytest.raises(Violation, match=r"offsets \[1\]"):
        rows.finish(KEY, 0, 3)


def test_no_row_lies_at_two_offsets(rows: ClusterChecker) -> None:
    rows.read(KEY, 0, [1])
    with pytest.raises(Violation, match="lies at offsets 0 and 4"):
        rows.read(KEY, 4, [1])


def test_no_offset_holds_two_rows(rows: ClusterChecker) -> None:
    rows.read(KEY, 0, [1])
    with pytest.raises(Violation, match="changed from 1 to 2"):
        rows.read(KEY, 0, [2])
    rows.acked(KEY, 1, [3], 0, flushed=True)
    with pytest.raises(Violation, match="acknowledged was 3"):
        rows.read(KEY, 1, [4])


def test_rows_of_a_producer_keep_their_order(rows: ClusterChecker) -> None:
    with pytest.raises(Violation, match="out of order"):
        rows.read(KEY, 0, [2, 1])


def test_no_reader_gets_rows_that_no_producer_sent(rows: ClusterChecker) -> None:
    with pytest.raises(Violation, match="never sent"):
        rows.read(KEY, 0, [77])


def test_two_acknowledgements_are_of_two_places(rows: ClusterChecker) -> None:
    rows.acked(KEY, 0, [1], 0, flushed=True)
    with pytest.raises(Violation, match="was acknowledged for 1 and for 2"):
        rows.acked(KEY, 0, [2], 0, flushed=True)


def test_a_power_failure_of_all_takes_only_what_it_may(rows: ClusterChecker) -> None:
    rows.acked(KEY, 0, [1], 0, flushed=True)
    rows.read(KEY, 0, [1])
    rows.all_lost_power(is_flushed_kept=True, at_us=0)
    rows.read(KEY, 0, [2])
    rows.finish(KEY, 0, 1)
    strict = ClusterChecker()
    strict.add(ClusterTopicModel("t", KEY[0], {"durability": "replicated_flushed"}), 1)
    strict.sent(KEY, [1, 2])
    strict.acked(KEY, 0, [1], 0, flushed=True)
    strict.all_lost_power(is_flushed_kept=True, at_us=0)
    with pytest.raises(Violation, match="acknowledged was 1"):
        strict.read(KEY, 0, [2])


def test_an_answer_from_before_all_lost_their_power_promises_nothing(rows: ClusterChecker) -> None:
    before = dict(rows.partitions[KEY].acknowledged), dict(rows.partitions[KEY].seen)
    rows.all_are_down = lambda: True
    rows.acked_at(KEY, 90, [0], 0, Durability.REPLICATED)
    rows.read(KEY, 90, [0])
    assert (rows.partitions[KEY].acknowledged, rows.partitions[KEY].seen) == before
    rows.all_are_down = lambda: False
    with pytest.raises(Violation):
        rows.read(KEY, 90, [0])


def test_rows_in_the_memory_of_a_client_may_be_older_than_a_fault(rows: ClusterChecker) -> None:
    """Seed 50000127: a consumer handed out what it had fetched before all lost their power."""
    ends = {KEY: 9}
    rows.committed_end = ends.__getitem__
    assert not rows.are_from_before(KEY, 10), "nothing was lost"
    rows.all_lost_power(is_flushed_kept=True, at_us=0)
    ends[KEY] = 5
    assert rows.are_from_before(KEY, 9)
    assert not rows.are_from_before(KEY, 10), "no answer has ever shown it"
    assert not rows.are_from_before(KEY, 5), "it is there, and looked at as ever"


def test_a_log_start_inside_of_a_batch_hides_none_of_the_rest() -> None:
    """What is shown may end inside of a batch where rows were deleted up to there."""
    disk, now = SimDisk(1), Now(0, 1_000_000_000_000_000)
    disk.make_dir("data/t-0")
    config = LogConfig(segment_bytes=700, index_interval_bytes=100)
    log = Log.open(disk, "data/t-0", config=config, clean=False, now=now)
    for number in range(9):
        log.append([make_batch(5, now.wall_us, 1, number + 1)], 0, now)
    assert [one.base_offset for one in log.reader.segments] == [0, 20, 40]
    rules, copy = Invariants(), _Copy(1)
    host = SimpleNamespace(name="node-0", disk=disk, is_rotten=False)
    replica = SimpleNamespace(topic=SimpleNamespace(topic_id=bytes(16)), log=log, name=NAME)
    look = partial(rules.compare, host, replica, copy)  # type: ignore[arg-type]
    look(7)
    assert (copy.offset, rules.compared) == (5, 1)
    trim(log, 7)
    look(10)
    assert (copy.offset, rules.compared) == (10, 2)
    job = log.begin_trim(27)
    assert job is not None
    assert log.complete_trim(job, job.run()) is not None, "files that go are there still"
    look(45)
    assert (copy.offset, rules.compared) == (45, 6)
    assert {25, 40} <= rules.partitions[KEY].batches.keys()


def test_an_unclean_election_counts_though_only_a_broker_that_starts_applies_it() -> None:
    """Such a broker logs nothing then. Simulated seed 900709688 had one, and its lost rows were
    complained of."""
    rules = Invariants()
    rules.look = Mock()  # type: ignore[method-assign]
    rules.committed(KEY, "t-0 on node-1", 0, 7, 1)
    host = SimpleNamespace()
    cluster: Any = SimpleNamespace(
        invariants=rules,
        on_all_power=[],
        world=SimpleNamespace(on_died=[], faults=Counter()),
        hosts=[host],
        aimed=Mock(),
        rights=Mock(),
        logins=Mock(),
    )
    Losses(cluster, ClusterChecker(), keeps_flushed=False)
    metadata = SimpleNamespace(_on_applied=Mock(), _on_replayed=Mock())
    host.made(SimpleNamespace(broker=SimpleNamespace(metadata=metadata)))
    elected = partial(PartitionChangeRecord, *KEY, leader_id=0, in_sync_replicas=(0,))
    metadata._on_replayed([elected(leader_epoch=3)], 11)
    host.looked(host)
    assert rules.committed_end(KEY) == 7
    metadata._on_replayed([elected(leader_epoch=4, unclean=True)], 12)
    host.looked(host)
    assert rules.committed_end(KEY) == 0
    assert cluster.world.faults == {"unclean election": 1}
