"""Appends of the broker's own, for which no connection waits, beside produces of the partition."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from quiverlog.batch.codec import split_batches
from quiverlog.core.controller.records import PartitionChangeRecord
from quiverlog.errors import (
    BatchTooLarge,
    BrokerShuttingDown,
    DiskFull,
    FencedLeaderEpoch,
    NotEnoughReplicasAfterAppend,
    NotLeader,
    OutcomeUnknown,
    QuiverlogError,
    RequestTimedOut,
    StorageFault,
    ThrottledBroker,
    UnknownTopicId,
    UnsupportedDurability,
)
from quiverlog.limits import REPLICA_LAG_MS_MAX
from quiverlog.node.partitions import replica as replicas
from quiverlog.node.partitions.acknowledgements import Answers, Append, AppendEntry
from quiverlog.node.partitions.appends import Appends, OwnAppend
from quiverlog.node.partitions.replica import Replica
from quiverlog.node.runtime.events import Tick
from quiverlog.node.runtime.outbox import Outbox
from quiverlog.storage.log.log import Log
from quiverlog.types import Durability, Now
from quiverlog.wire import messages as m
from tests.support.node import NodeDriver, batch_of
from tests.unit.node.controller.test_leader_lease import World
from tests.unit.node.replication.test_in_sync import COPY, OTHER, Cluster

MEMORY, FLUSHED = Durability.MEMORY, Durability.FLUSHED
OWN = -1
"""In the place of a correlation id."""
REPLICATED, REPLICATED_FLUSHED = Durability.REPLICATED, Durability.REPLICATED_FLUSHED


class Rows(Append):
    """`outcomes`: of each call, the bug or the entries' errors; `waits`: calls of `on_wait`."""

    def __init__(self, node: NodeDriver) -> None:
        super().__init__()
        self._node = node
        self.outcomes: list[Exception | list[QuiverlogError | None]] = []
        self.waits = 0
        self.on_call: Callable[[], None] = lambda: None
        node.node.broker.appends.begin(self)

    def admit(self, topic: bytes, *values: int, partition: int = 0, level: int = FLUSHED) -> int:
        broker = self._node.node.broker
        replica = broker.replicas[topic, partition]
        batches = list(split_batches(memoryview(batch_of(values))))
        base_offset = broker.appends.admit(replica, batches, self._node.now)
        self.entries.append(AppendEntry(replica, level, base_offset + len(values)))
        return base_offset

    def then(self, bug: Exception | None, now: object) -> None:
        self.outcomes.append(bug or [entry.error for entry in self.entries])
        self.on_call()

    def on_wait(self, now: object) -> None:
        self.waits += 1


def rows(node: NodeDriver, topic: bytes, *values: int, level: int = FLUSHED) -> Rows:
    """Appended to partition 0."""
    append = Rows(node)
    append.admit(topic, *values, level=level)
    node.send(Tick())
    return append


def error_of(append: Rows) -> type | None:
    """The kind of its only entry's error, after one call."""
    (outcome,) = append.outcomes
    assert isinstance(outcome, list)
    (error,) = outcome
    return None if error is None else type(error)


@pytest.fixture
def node(tmp_path: Path) -> NodeDriver:
    return NodeDriver(tmp_path)


@pytest.fixture
def topic(node: NodeDriver) -> bytes:
    return node.create(durability="memory", partitions=2)


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    return Cluster(tmp_path)


def test_nothing_is_in_the_log_before_finish(node: NodeDriver, topic: bytes) -> None:
    append = Rows(node)
    assert append.admit(topic, 1, 2) == 0
    assert append.admit(topic, 3) == 2
    assert node.broker_end(topic) == 0
    assert not append.outcomes
    node.send(Tick())
    assert node.broker_end(topic) == 3


def test_rows_in_memory_are_safe_at_once(node: NodeDriver, topic: bytes) -> None:
    append = rows(node, topic, 1, level=MEMORY)
    assert error_of(append) is None
    assert append.waits == 0


def test_rows_wait_for_the_flush(node: NodeDriver, topic: bytes) -> None:
    append = rows(node, topic, 1)
    assert append.waits == 1
    assert not append.outcomes
    node.flush()
    assert error_of(append) is None
    assert append.waits == 1


def test_rows_wait_for_the_high_watermark(cluster: Cluster) -> None:
    append = rows(cluster.node, cluster.topic, 1, level=REPLICATED)
    cluster.node.flush()
    cluster.fetch(COPY, 1)
    assert not append.outcomes
    cluster.fetch(OTHER, 1)
    assert error_of(append) is None


def test_rows_wait_for_the_disks_of_enough_replicas(cluster: Cluster) -> None:
    append = rows(cluster.node, cluster.topic, 1, level=REPLICATED_FLUSHED)
    for one in (COPY, OTHER):
        cluster.fetch(one, 1)
    cluster.node.flush()
    assert not append.outcomes
    cluster.fetch(COPY, 1, flushed=1)
    assert error_of(append) is None


def test_copies_flush_what_an_append_waits_for(cluster: Cluster) -> None:
    rows(cluster.node, cluster.topic, 1, level=REPLICATED)
    assert cluster.fetch(COPY, 0).partitions[0].flush_offset == 0
    rows(cluster.node, cluster.topic, 2, level=REPLICATED_FLUSHED)
    assert cluster.fetch(COPY, 0).partitions[0].flush_offset == 2


def test_it_ends_between_the_produces_before_and_behind_it(node: NodeDriver, topic: bytes) -> None:
    before = node.produce(topic, batch_of([0]), durability=FLUSHED)
    append = rows(node, topic, 1, level=MEMORY)
    behind = node.produce(topic, batch_of([2]), durability=MEMORY)
    assert not append.outcomes, "safe, but a produce before it is not"
    assert node.answer(behind) is None
    order: list[int] = []
    append.on_call = lambda: order.append(OWN)
    respond = Outbox.respond

    def record(outbox: Outbox, connection_id: int, correlation_id: int, *answer: Any) -> None:
        order.append(correlation_id)
        respond(outbox, connection_id, correlation_id, *answer)

    with mock.patch.object(Outbox, "respond", record):
        node.flush()
    assert order == [before, OWN, behind]
    assert error_of(append) is None


def test_an_append_to_two_partitions_ends_once_and_holds_up_what_is_behind(
    node: NodeDriver, topic: bytes
) -> None:
    both = Rows(node)
    both.admit(topic, 1)
    both.admit(topic, 2, partition=1)
    node.send(Tick())
    behind = rows(node, topic, 3, level=MEMORY)
    assert len(node.syncs) == 2
    node.flush(only=0)
    assert not both.outcomes
    assert not behind.outcomes, "its rows are safe, those before it in the partition too"
    node.flush()
    assert both.outcomes == [[None, None]]
    assert both.waits == 1
    assert error_of(behind) is None


def test_an_append_that_is_held_ends_with_its_last_part(node: NodeDriver, topic: bytes) -> None:
    append = Rows(node)
    append.hold()
    append.admit(topic, 1, level=MEMORY)
    node.send(Tick())
    behind = rows(node, topic, 2, level=MEMORY)
    assert not append.outcomes
    assert not behind.outcomes
    node.node.broker.appends.begin(append)
    append.admit(topic, 3, partition=1, level=MEMORY)
    node.send(Tick())
    assert not append.outcomes
    append.release(node.now)
    assert append.outcomes == [[None, None]]
    assert error_of(behind) is None


def test_an_append_without_entries_ends_at_once(node: NodeDriver) -> None:
    append = Rows(node)
    node.send(Tick())
    assert append.outcomes == [[]]


# --- errors ------------------------------------------------------------------------------------
def test_too_few_in_sync(cluster: Cluster) -> None:
    waiting = rows(cluster.node, cluster.topic, 1, level=REPLICATED)
    own = rows(cluster.node, cluster.topic, 2, level=FLUSHED)
    cluster.node.advance(REPLICA_LAG_MS_MAX + 1)
    assert error_of(waiting) is NotEnoughReplicasAfterAppend
    assert not own.outcomes, "the leader's disk is enough"
    cluster.node.flush()
    assert error_of(own) is None
    assert cluster.state.log_end_offset == 2


@pytest.mark.parametrize("level", [FLUSHED, REPLICATED, REPLICATED_FLUSHED])
def test_another_broker_leads(cluster: Cluster, level: int) -> None:
    append = rows(cluster.node, cluster.topic, 1, level=level)
    cluster.decide(PartitionChangeRecord(cluster.topic, 0, leader_id=COPY, leader_epoch=9))
    assert error_of(append) is NotEnoughReplicasAfterAppend
    cluster.node.flush()
    assert len(append.outcomes) == 1


def test_the_topic_is_deleted(node: NodeDriver, topic: bytes) -> None:
    append = rows(node, topic, 1)
    node.call(m.DeleteTopicsRequest(names=["t"]))
    assert error_of(append) is UnknownTopicId


def test_the_flush_fails(node: NodeDriver, topic: bytes) -> None:
    append = rows(node, topic, 1)
    in_memory = rows(node, topic, 2, level=MEMORY)
    node.flush(OSError(errno.EIO, "bad disk"))
    assert error_of(append) is OutcomeUnknown
    assert len(in_memory.outcomes) == 1


@pytest.mark.parametrize(
    ("failure", "kind"),
    [
        (DiskFull(), DiskFull),
        (ThrottledBroker(), ThrottledBroker),
        (OSError(errno.EIO, "bad disk"), StorageFault),
        (RuntimeError("a bug"), QuiverlogError),
    ],
    ids=lambda value: type(value).__name__,
)
def test_the_write_fails(
    node: NodeDriver, topic: bytes, failure: Exception, kind: type[Exception]
) -> None:
    before = rows(node, topic, 1)
    append = Rows(node)
    append.admit(topic, 2)
    with mock.patch.object(Log, "append", side_effect=failure):
        node.send(Tick())
    outcome = OutcomeUnknown if kind is StorageFault else None
    if outcome is None:
        assert not append.outcomes, "in the order of the partition"
        node.flush()
    assert error_of(before) is outcome
    assert error_of(append) is kind
    assert node.broker_end(topic) == 1
    if kind is not StorageFault:
        assert rows(node, topic, 3, level=MEMORY).outcomes == [[None]]


def test_a_fault_that_is_met_after_the_write(node: NodeDriver, topic: bytes) -> None:
    replica = node.node.broker.replicas[topic, 0]
    append = Rows(node)
    append.admit(topic, 1)
    with mock.patch.object(
        node.node.broker.flushes.__class__,
        "appended",
        lambda flushes, replica: flushes.declare_fault(replica, "bad disk", node.now),
    ):
        node.send(Tick())
    assert replica.fault is not None
    assert append.outcomes == [[replica.fault]]


def test_rows_of_one_write_are_bounded(
    node: NodeDriver, topic: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows(node, topic, 0, level=MEMORY)
    monkeypatch.setattr(replicas, "ADMITTED_ROWS_MAX", 5)
    append = Rows(node)
    append.admit(topic, 1, 2, level=MEMORY)
    with pytest.raises(BatchTooLarge):
        append.admit(topic, 3, 4, 5, 6, level=MEMORY)
    assert append.admit(topic, 3, 4, 5, level=MEMORY) == 3
    with pytest.raises(BatchTooLarge):
        append.admit(topic, 6, level=MEMORY)
    node.send(Tick())
    assert append.outcomes == [[None, None]]
    assert node.broker_end(topic) == 6
    assert rows(node, topic, 6, level=MEMORY).outcomes == [[None]]


def test_giving_up_fails_what_is_not_known_to_be_safe(node: NodeDriver, topic: bytes) -> None:
    both = Rows(node)
    both.admit(topic, 1)
    both.admit(topic, 2, partition=1)
    node.send(Tick())
    behind = rows(node, topic, 3, level=MEMORY)
    node.flush(only=0)
    late = RequestTimedOut()
    both.give_up(late, node.now)
    assert both.outcomes == [[None, late]]
    assert error_of(behind) is None
    node.flush()
    assert len(both.outcomes) == 1


def test_giving_up_acknowledges_nothing_before_an_earlier_append(
    node: NodeDriver, topic: bytes
) -> None:
    first = Rows(node)
    first.admit(topic, 1)
    first.admit(topic, 2, partition=1)
    second = Rows(node)
    second.admit(topic, 3, level=MEMORY)
    node.send(Tick())
    node.flush(only=0)
    late = RequestTimedOut()
    second.give_up(late, node.now)
    assert second.outcomes == [[late]]
    assert not first.outcomes
    node.flush()
    assert first.outcomes == [[None, None]]


# --- bugs --------------------------------------------------------------------------------------
@pytest.mark.parametrize("level", [MEMORY, FLUSHED])
def test_a_caller_that_raises_is_called_again_with_its_error(
    node: NodeDriver, topic: bytes, level: int
) -> None:
    append = Rows(node)
    append.admit(topic, 1, level=level)
    bug = RuntimeError("a bug")

    def raise_once() -> None:
        append.on_call = lambda: None
        raise bug

    append.on_call = raise_once
    behind = Rows(node)
    behind.admit(topic, 2, level=level)
    node.send(Tick())
    node.flush()
    assert append.outcomes == [[None], bug]
    assert error_of(behind) is None


def test_a_bug_before_the_write_fails_all_and_stores_nothing(
    node: NodeDriver, topic: bytes
) -> None:
    append = Rows(node)
    append.admit(topic, 1)
    bug = RuntimeError("a bug")
    with mock.patch.object(Appends, "_append", side_effect=bug):
        node.send(Tick())
    assert append.outcomes == [bug]
    assert rows(node, topic, 2, level=MEMORY).outcomes == [[None]]
    assert node.broker_end(topic) == 1


def test_a_bug_of_finish_itself_leaves_nothing_admitted(node: NodeDriver, topic: bytes) -> None:
    append = Rows(node)
    with mock.patch.object(Appends, "finish", side_effect=RuntimeError("a bug")):
        append.admit(topic, 1)
        node.send(Tick())
    (outcome,) = append.outcomes
    assert isinstance(outcome, RuntimeError)
    replica: Replica = node.node.broker.replicas[topic, 0]
    assert not replica.admitted
    assert rows(node, topic, 2, level=MEMORY).outcomes == [[None]]
    assert node.broker_end(topic) == 1


def test_a_bug_in_the_order_fails_its_append_and_frees_those_behind(
    node: NodeDriver, topic: bytes
) -> None:
    both = Rows(node)
    both.admit(topic, 1)
    both.admit(topic, 2, partition=1)
    node.send(Tick())
    behind = rows(node, topic, 3, level=MEMORY)
    node.flush(only=0)
    assert not behind.outcomes
    confirm, bug = Answers._confirm, RuntimeError("a bug")

    def broken(answers: Answers, entry: AppendEntry, append: Append, now: Now) -> None:
        if append is both:
            raise bug
        confirm(answers, entry, append, now)

    with mock.patch.object(Answers, "_confirm", broken):
        node.flush()
    assert both.outcomes == [bug]
    assert error_of(behind) is None


# --- rows of the broker's own --------------------------------------------------------------------
class Own(OwnAppend):
    """Each put: topic, partition, level, values; under the leader epoch of now."""

    def __init__(self, node: NodeDriver, *puts: tuple[bytes, int, int, list[int]]) -> None:
        super().__init__()
        self._appends = node.node.broker.appends
        self._replicas = [node.node.broker.replicas[put[:2]] for put in puts]
        self._epochs = [replica.state.leader_epoch for replica in self._replicas]
        self._puts = puts
        self.offsets: list[int] = []
        self.outcomes: list[Exception | list[QuiverlogError | None]] = []
        self.on_call: Callable[[], None] = lambda: None

    def add(self) -> Own:
        self._appends.add(self)
        return self

    def admit(self, appends: Appends, now: Now) -> None:
        for replica, epoch, put in zip(self._replicas, self._epochs, self._puts, strict=True):
            batches = list(split_batches(memoryview(batch_of(put[3])))) if put[3] else []
            self.offsets.append(appends.put(self, replica, epoch, put[2], batches, now))

    def then(self, bug: Exception | None, now: Now) -> None:
        self.outcomes.append(bug or [entry.error for entry in self.entries])
        self.on_call()


def own(node: NodeDriver, topic: bytes, *values: int, level: int = MEMORY) -> Own:
    append = Own(node, (topic, 0, level, list(values))).add()
    node.send(Tick())
    return append


def refusal(append: Own) -> type:
    assert append.offsets == [-1]
    (outcome,) = append.outcomes
    assert isinstance(outcome, list)
    (error,) = outcome
    assert error is not None
    assert error.__traceback__ is None, "it would hold the rows"
    return type(error)


def test_own_rows_are_written_behind_those_of_clients_in_the_same_call(
    node: NodeDriver, topic: bytes
) -> None:
    append = Own(node, (topic, 0, MEMORY, [1, 2]), (topic, 1, FLUSHED, [3])).add()
    assert node.produced(topic, batch_of([0]), durability=MEMORY).base_offset == 0
    assert append.offsets == [1, 0]
    assert node.broker_end(topic) == 3
    assert not append.outcomes
    node.flush()
    assert append.outcomes == [[None, None]]


def test_rows_added_while_another_append_ends_are_written(node: NodeDriver, topic: bytes) -> None:
    first = Own(node, (topic, 0, MEMORY, [1]), (topic, 1, MEMORY, [2])).add()
    behind = Own(node, (topic, 0, MEMORY, [3])).add()
    late = Own(node, (topic, 0, MEMORY, [4]))
    first.on_call = lambda: late.add()
    node.handle(Tick())
    assert behind.outcomes == [[None]]
    assert not late.outcomes
    assert node.node.next_deadline_us() == 0, "at once"
    node.handle(Tick())
    assert late.offsets == [2]
    assert late.outcomes == [[None]]
    assert node.node.next_deadline_us() != 0


def test_rows_added_while_decisions_are_applied_meet_what_they_decided(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, partitions=2)
    first = own(cluster.node, cluster.topic, 1, level=REPLICATED)
    second = Own(cluster.node, (cluster.topic, 1, MEMORY, [2]))
    first.on_call = lambda: second.add()
    cluster.decide(
        *(PartitionChangeRecord(cluster.topic, n, leader_id=COPY, leader_epoch=9) for n in (0, 1))
    )
    (outcome,) = first.outcomes
    assert isinstance(outcome, list)
    assert isinstance(outcome[0], NotEnoughReplicasAfterAppend)
    assert refusal(second) is NotLeader


def test_own_rows_of_an_epoch_that_is_over_are_refused(cluster: Cluster) -> None:
    append = Own(cluster.node, (cluster.topic, 0, MEMORY, [1]))
    cluster.change(leader_epoch=9)
    append.add()
    cluster.node.send(Tick())
    assert refusal(append) is FencedLeaderEpoch
    assert own(cluster.node, cluster.topic, 2).offsets == [0]


def test_own_rows_without_room_are_refused(tmp_path: Path) -> None:
    node = NodeDriver(tmp_path, disk_reserve_bytes=100)
    topic = node.create(durability="memory")
    node.disk_space(99)
    assert refusal(own(node, topic, 1)) is DiskFull
    node.disk_space(100)
    assert own(node, topic, 1).outcomes == [[None]]


def test_own_rows_behind_a_fault_are_refused(node: NodeDriver, topic: bytes) -> None:
    own(node, topic, 1, level=FLUSHED)
    node.flush(OSError(errno.EIO, "bad disk"))
    assert refusal(own(node, topic, 2)) is StorageFault


def test_own_rows_of_a_replica_that_was_closed_are_refused(node: NodeDriver, topic: bytes) -> None:
    append = Own(node, (topic, 0, MEMORY, [1]))
    node.call(m.DeleteTopicsRequest(names=["t"]))
    append.add()
    node.send(Tick())
    assert refusal(append) is UnknownTopicId


def test_own_rows_get_the_level_of_the_topic_at_least(node: NodeDriver) -> None:
    topic = node.create(durability="flushed")
    assert refusal(own(node, topic, 1, level=MEMORY)) is UnsupportedDurability
    append = own(node, topic, 1, level=Durability.TOPIC_DEFAULT)
    assert not append.outcomes
    node.flush()
    assert append.outcomes == [[None]]


def test_own_rows_under_a_lease_that_is_over_are_refused(tmp_path: Path) -> None:
    world = World(tmp_path)
    assert world.settled(world.write(world.wide, 1, REPLICATED)) == 0
    world.step_down()
    assert refusal(own(world.two, world.wide, 2)) is NotLeader
    assert world.two.broker_end(world.wide) == 1
    level = Durability.TOPIC_DEFAULT
    assert own(world.two, world.lone, 3, level=level).offsets == [0], "no other may lead it"


def test_own_rows_added_while_the_broker_stops_are_refused(node: NodeDriver, topic: bytes) -> None:
    waiting = own(node, topic, 1, level=FLUSHED)
    late = Own(node, (topic, 0, MEMORY, [2]))
    waiting.on_call = lambda: late.add()
    node.stop()
    assert waiting.outcomes == [[None]]
    assert refusal(late) is BrokerShuttingDown


def test_a_bug_while_own_rows_are_admitted_fails_them_alone(node: NodeDriver, topic: bytes) -> None:
    broken, behind = (Own(node, (topic, 0, MEMORY, [value])) for value in (1, 2))
    bug = RuntimeError("a bug")
    with mock.patch.object(Own, "admit", side_effect=bug):
        broken.add()
        node.handle(Tick())
    behind.add()
    node.handle(Tick())
    assert broken.outcomes == [bug]
    assert behind.outcomes == [[None]]


def test_a_caller_that_raises_is_called_again_and_not_the_append_that_called_it(
    node: NodeDriver, topic: bytes
) -> None:
    first = Rows(node)
    first.admit(topic, 1)
    first.admit(topic, 2, partition=1)
    node.send(Tick())
    behind = rows(node, topic, 3, level=MEMORY)
    bug = RuntimeError("a bug")
    behind.on_call = mock.Mock(side_effect=[bug, None])
    node.flush()
    assert first.outcomes == [[None, None]]
    assert behind.outcomes == [[None], bug]


def test_an_append_without_batches_waits_for_all_that_is_in_the_log(
    node: NodeDriver, topic: bytes
) -> None:
    own(node, topic, 1, 2)
    barrier = Own(node, (topic, 0, FLUSHED, [])).add()
    node.send(Tick())
    assert barrier.offsets == [2]
    assert not barrier.outcomes
    node.flush()
    assert barrier.outcomes == [[None]]
    assert node.broker_end(topic) == 2


def test_an_append_without_batches_to_an_empty_log_ends_at_once(
    node: NodeDriver, topic: bytes
) -> None:
    barrier = Own(node, (topic, 0, FLUSHED, [])).add()
    node.send(Tick())
    assert barrier.offsets == [0]
    assert barrier.outcomes == [[None]]


# --- what is in the log, though not safe ------------------------------------------------------
def test_a_watcher_is_called_when_the_rows_are_in_the_log_and_before_they_are_safe(
    node: NodeDriver,
) -> None:
    topic = node.create(durability="flushed")
    replica = node.node.broker.replicas[topic, 0]
    seen: list[object] = []
    append = Rows(node)
    append.on_call = lambda: seen.append("safe")
    append.admit(topic, 1, 2, level=FLUSHED)
    watch = node.node.broker.appends.watch
    watch(replica, lambda now: seen.append(replica.log.log_end_offset))
    assert seen == []
    node.send(Tick())
    assert seen == [2]
    node.flush()
    assert seen == [2, "safe"]


def test_a_watcher_of_rows_that_are_not_stored_is_not_called(node: NodeDriver) -> None:
    topic = node.create(durability="flushed")
    replica = node.node.broker.replicas[topic, 0]
    seen: list[object] = []
    append = Rows(node)
    append.admit(topic, 1)
    node.node.broker.appends.watch(replica, seen.append)
    with mock.patch.object(Log, "append", side_effect=DiskFull("a test")):
        node.send(Tick())
    assert error_of(append) is DiskFull
    rows(node, topic, 2)
    assert seen == []


def test_the_bug_of_a_watcher_fails_no_append(node: NodeDriver) -> None:
    topic = node.create(durability="memory")
    append = Rows(node)
    append.admit(topic, 1, level=MEMORY)
    broken = mock.Mock(side_effect=RuntimeError("a test"))
    node.node.broker.appends.watch(node.node.broker.replicas[topic, 0], broken)
    node.send(Tick())
    assert error_of(append) is None
    assert [line.level for line in node.lines].count("error") == 1
