"""Leadership is announced to listeners: once for each leader epoch, in order."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quiverlog.batch.codec import split_batches
from quiverlog.core.controller.records import (
    LEADER_GONE,
    BrokerRecord,
    PartitionChangeRecord,
    Record,
)
from quiverlog.core.controller.topic_image import PartitionImage
from quiverlog.errors import ThrottledBroker
from quiverlog.node.partitions.appends import Appends, OwnAppend
from quiverlog.node.partitions.replica import Replica
from quiverlog.node.runtime.effects import Effect, StartJob
from quiverlog.node.runtime.events import Shutdown, Tick
from quiverlog.types import Durability, Now
from quiverlog.wire import messages as m
from tests.support.node import NodeDriver, batch_of, open_new_logs_by_jobs
from tests.unit.node.controller.test_leader_lease import World

HERE, COPY, OTHER = 0, 1, 2
NONE = LEADER_GONE
Key = tuple[bytes, int]
Call = tuple[str, int, int]
"""What, the partition, and the leader epoch (of a removal: 0)."""


class Listener:
    def __init__(self, node: NodeDriver) -> None:
        self._node = node
        self._calls: list[Call] = []
        self.led_now: dict[Key, int] = {}
        self._newest: dict[Key, int] = {}
        node.node.broker.assignment.listen(self)

    def led(self, replica: Replica, now: Now) -> None:
        key = (replica.topic.topic_id, replica.name.partition)
        epoch = replica.state.leader_epoch
        assert now == self._node.now
        assert self._node.node.broker.replicas[key] is replica
        assert replica.state.leads
        assert key not in self.led_now, "the one before has ended"
        assert epoch > self._newest.get(key, -1), "once for each leader epoch"
        self.led_now[key] = self._newest[key] = epoch
        self._calls.append(("led", key[1], epoch))

    def unled(self, key: Key, now: Now) -> None:
        self._calls.append(("unled", key[1], self.led_now.pop(key)))

    def removed(self, key: Key, now: Now) -> None:
        assert key not in self.led_now, "it ends before"
        self._calls.append(("removed", key[1], 0))

    def take(self) -> list[Call]:
        calls, self._calls = self._calls, []
        return calls


class SlowNode(NodeDriver):
    """`opens`: logs that are to be opened, as this test does."""

    def __init__(self, root: Path) -> None:
        self.opens: list[StartJob] = []
        super().__init__(root, node_id=HERE)

    def _perform(self, effects: list[Effect]) -> list[Effect]:
        performed = super()._perform(effects)
        self.opens += [start for start in self.jobs if start.job.kind == "open log"]
        self.jobs = [start for start in self.jobs if start.job.kind != "open log"]
        return performed

    def open(self) -> None:
        while self.opens:
            self._run(self.opens.pop(0))
            self.run_until_idle()


class Cluster:
    """A node that is the controller; a topic of two partitions with a replica on it alone."""

    def __init__(self, root: Path) -> None:
        self.node = SlowNode(root)
        self.listener = Listener(self.node)
        self.bugs = 0
        self.topic = self._create()
        self.decide(*(BrokerRecord(n, bytes([n])) for n in (COPY, OTHER)))

    def _create(self) -> bytes:
        with mock.patch.object(self.node, "run_until_idle", self._run_and_open):
            return self.node.create(partitions=2, durability="memory")

    def _run_and_open(self) -> list[Effect]:
        effects = NodeDriver.run_until_idle(self.node)
        while self.node.opens:
            effects += self.node._run(self.node.opens.pop(0))
            effects += NodeDriver.run_until_idle(self.node)
        return effects

    def decide(self, *records: Record) -> None:
        outcomes: list[BaseException | None] = []
        self.node.node.broker.propose(
            list(records), self.node.now, lambda _result, error, _now: outcomes.append(error)
        )
        self.node.send(Tick())
        assert outcomes == [None]

    @property
    def images(self) -> list[PartitionImage]:
        topic = self.node.node.broker.metadata.image.topics_by_id.get(self.topic)
        return [] if topic is None else topic.partitions

    def elected(self, number: int, leader_id: int, **fields: Any) -> PartitionChangeRecord:
        epoch = self.images[number].leader_epoch + 1
        return PartitionChangeRecord(self.topic, number, leader_id, epoch, **fields)

    def elect(self, number: int, leader_id: int) -> None:
        held = self.images[number].replicas
        fields: dict[str, Any] = {}
        if leader_id >= 0 and leader_id not in held:
            fields["replicas"] = (*held, leader_id)
        if leader_id >= 0:
            fields["in_sync_replicas"] = (leader_id,)
        self.decide(self.elected(number, leader_id, **fields))

    def move(self, number: int, replicas: tuple[int, ...], leader_id: int) -> None:
        fields = {"replicas": replicas, "in_sync_replicas": (leader_id,)}
        self.decide(self.elected(number, leader_id, **fields))

    def alter(self) -> None:
        """The controller answers once the logs that are being opened here are open."""
        self.node.request(m.AlterTopicRequest(name="t", set_configs={"retention.ms": "1000"}))

    def delete(self) -> None:
        self.node.request(m.DeleteTopicsRequest(names=["t"]))


@pytest.fixture(autouse=True)
def by_jobs() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        open_new_logs_by_jobs(patch)
        yield


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path)
    assert cluster.listener.take() == [("led", 0, 0), ("led", 1, 0)]
    yield cluster
    assert cluster.node.metrics.internal_errors == cluster.bugs, "what a listener asserts"


def test_a_leadership_ends_where_another_broker_is_elected(cluster: Cluster) -> None:
    cluster.elect(0, COPY)
    assert cluster.listener.take() == [("unled", 0, 0)]
    cluster.elect(0, OTHER)
    assert cluster.listener.take() == []
    cluster.elect(0, HERE)
    assert cluster.listener.take() == [("led", 0, 3)]
    cluster.elect(0, NONE)
    assert cluster.listener.take() == [("unled", 0, 3)]


def test_a_leader_that_is_elected_again_ends_the_epoch_before(cluster: Cluster) -> None:
    replica = cluster.node.node.broker.replicas[cluster.topic, 1]
    epochs: list[int] = []
    unled = cluster.listener.unled

    def look(key: Key, now: Now) -> None:
        epochs.append(replica.state.leader_epoch)
        unled(key, now)

    with mock.patch.object(cluster.listener, "unled", look):
        cluster.elect(1, HERE)
    assert cluster.listener.take() == [("unled", 1, 0), ("led", 1, 1)]
    assert epochs == [0], "nothing of the new one has begun"


def test_what_changes_under_one_leader_epoch_is_not_announced(cluster: Cluster) -> None:
    cluster.decide(PartitionChangeRecord(cluster.topic, 0, replicas=(HERE, COPY)))
    cluster.decide(PartitionChangeRecord(cluster.topic, 0, in_sync_replicas=(HERE, COPY)))
    cluster.alter()
    assert cluster.listener.take() == []


def test_partitions_of_one_decision_are_announced_each_in_its_order(cluster: Cluster) -> None:
    again, away = cluster.elected(0, HERE), cluster.elected(1, COPY, replicas=(COPY,))
    cluster.decide(again, away)
    assert cluster.listener.take() == [
        *(("unled", 0, 0), ("led", 0, 1)),
        *(("unled", 1, 0), ("removed", 1, 0)),
    ]


def test_a_topic_that_is_deleted_ends_and_is_removed(cluster: Cluster) -> None:
    cluster.elect(1, COPY)
    cluster.listener.take()
    cluster.delete()
    assert cluster.listener.take() == [("unled", 0, 0), ("removed", 0, 0), ("removed", 1, 0)]


def test_a_leadership_begins_when_its_log_is_open(cluster: Cluster) -> None:
    cluster.move(0, (COPY,), COPY)
    assert cluster.listener.take() == [("unled", 0, 0), ("removed", 0, 0)]
    cluster.move(0, (COPY, HERE), COPY)
    cluster.elect(0, HERE)
    cluster.elect(0, HERE)
    assert cluster.listener.take() == []
    cluster.node.open()
    assert cluster.listener.take() == [("led", 0, 4)], "of the epochs before it led nothing"


def test_a_partition_that_goes_before_it_is_open_is_removed_once(cluster: Cluster) -> None:
    cluster.move(0, (COPY,), COPY)
    cluster.move(0, (COPY, HERE), HERE)
    cluster.listener.take()
    cluster.delete()
    cluster.node.open()
    removals = [call for call in cluster.listener.take() if call[0] == "removed"]
    assert sorted(removals) == [("removed", 0, 0), ("removed", 1, 0)]


class Own(OwnAppend):
    def __init__(self, replica: Replica) -> None:
        super().__init__()
        self._replica = replica
        self._epoch = replica.state.leader_epoch
        self.errors: list[BaseException | None] = []

    def admit(self, appends: Appends, now: Now) -> None:
        batches = list(split_batches(memoryview(batch_of([1]))))
        appends.put(self, self._replica, self._epoch, Durability.MEMORY, batches, now)

    def then(self, bug: Exception | None, now: Now) -> None:
        self.errors += [bug] if bug else [entry.error for entry in self.entries]


def test_a_leader_can_append_from_the_moment_on(cluster: Cluster) -> None:
    led, owns = cluster.listener.led, []

    def begin(replica: Replica, now: Now) -> None:
        led(replica, now)
        owns.append(Own(replica))
        cluster.node.node.broker.appends.add(owns[-1])

    with mock.patch.object(cluster.listener, "led", begin):
        cluster.elect(0, HERE)
        cluster.move(1, (COPY,), COPY)
        cluster.move(1, (COPY, HERE), HERE)
        cluster.node.open()
    assert [own.errors for own in owns] == [[None], [None]]
    assert cluster.node.broker_end(cluster.topic) == 1


def test_a_bug_in_a_listener_keeps_nothing_from_the_others(cluster: Cluster) -> None:
    with mock.patch.object(cluster.listener, "unled", side_effect=RuntimeError("a bug")):
        both = (HERE, COPY)
        cluster.decide(*(cluster.elected(n, COPY, replicas=both) for n in (0, 1)))
    cluster.bugs = 2
    assert not cluster.node.node.broker.replicas


def test_a_stop_ends_every_leadership_and_announces_no_other(tmp_path: Path) -> None:
    node = NodeDriver(tmp_path)
    listener = Listener(node)
    topic = node.create(partitions=2)
    assert listener.take() == [("led", 0, 0), ("led", 1, 0)]
    node.produce(topic, batch_of([1]))
    node.send(Shutdown())
    assert not node.shut_down, "it waits for the flush"
    assert listener.take() == [("unled", 0, 0), ("unled", 1, 0)]
    broker = node.node.broker
    image = broker.metadata.image
    image.replay_entry([PartitionChangeRecord(topic, 0, leader_id=0, leader_epoch=1)])
    broker.assignment.reconcile(image, {topic: None}, node.now)
    assert broker.replicas[topic, 0].state.leader_epoch == 1
    node.stop()
    assert listener.take() == []


def test_a_start_announces_what_it_leads(tmp_path: Path) -> None:
    node = NodeDriver(tmp_path)
    node.create(partitions=2)
    start = node.node.__class__.start
    found: list[Listener] = []

    def listen(started: Any, now: Now) -> list[Effect]:
        node.node = started
        found.append(Listener(node))
        return start(started, now)

    with mock.patch.object(node.node.__class__, "start", listen):
        node.restart()
    assert found[0].take() == [("led", 0, 0), ("led", 1, 0)]


def test_a_lease_that_is_over_ends_no_leadership(tmp_path: Path) -> None:
    """The lease may come back under the same epoch; until then nothing is appended."""
    world = World(tmp_path)
    broker = world.two.node.broker
    with mock.patch.object(broker.assignment, "replicas", {}):
        listener = Listener(world.two)
    world.step_down()
    assert listener.take() == []
    own = Own(broker.replicas[world.wide, 0])
    broker.appends.add(own)
    world.two.send(Tick())
    assert [type(error).__name__ for error in own.errors] == ["NotLeader"]


# --- whatever is decided -------------------------------------------------------------------------
PARTITIONS = st.integers(0, 1)
STEPS = st.one_of(
    st.tuples(st.just("elect"), PARTITIONS, st.sampled_from((HERE, COPY, NONE))),
    st.tuples(st.just("move"), PARTITIONS, st.sampled_from(((COPY,), (COPY, HERE), (HERE,)))),
    st.tuples(st.just("open")),
    st.tuples(st.just("alter")),
    st.tuples(st.just("delete")),
)


@settings(max_examples=40)
@given(st.lists(STEPS, max_size=12))
def test_what_is_announced_is_what_is_led(steps: list[tuple[Any, ...]]) -> None:
    with TemporaryDirectory() as root:
        cluster = Cluster(Path(root))
        node, listener = cluster.node, cluster.listener
        held = {(cluster.topic, 0), (cluster.topic, 1)}
        for name, *values in steps:
            if name == "open":
                node.open()
            elif name == "alter" and cluster.images:
                cluster.alter()
            elif name == "delete" and cluster.images:
                cluster.delete()
            elif name in ("elect", "move") and cluster.images:
                number, value = values
                try:
                    if name == "elect":
                        cluster.elect(number, value)
                    else:
                        cluster.move(number, value, value[-1])
                except ThrottledBroker:
                    continue  # Its files are still in use.
            assert node.metrics.internal_errors == 0
            replicas = node.node.broker.replicas
            assert listener.led_now == {k: r.state.leader_epoch for k, r in replicas.items()}
            for what, number, _ in listener.take():
                key = (cluster.topic, number)
                if what == "removed":
                    assert key in held, "once"
                    held.discard(key)
            here = {
                (cluster.topic, one.partition) for one in cluster.images if HERE in one.replicas
            }
            held |= here
            assert held == here
        node.open()
        led = {(cluster.topic, one.partition) for one in cluster.images if one.leader_id == HERE}
        assert set(listener.led_now) == led
