"""An epoch of a producer is over, in all partitions, when the answer with the next one goes out."""

from __future__ import annotations

from pathlib import Path

import pytest

from quiverlog import errors
from quiverlog.batch.schema import serialize_schema
from quiverlog.core.controller.records import PartitionChangeRecord
from quiverlog.limits import BROKER_SESSION_MS_DEFAULT
from quiverlog.node.controller import registrar
from quiverlog.node.runtime.admission import Phase
from quiverlog.node.runtime.effects import SendToPeer
from quiverlog.node.runtime.events import Shutdown, Tick
from quiverlog.wire import messages as m
from quiverlog.wire.quorum_messages import QuorumRequest
from tests.support.members import Member, Members
from tests.support.node import SCHEMA, batch_of

SESSION_MS = BROKER_SESSION_MS_DEFAULT
LEADER = 2


def metadata_for(node_id: int, effect: SendToPeer) -> bool:
    return effect.peer.node_id == node_id and isinstance(effect.request, QuorumRequest)


class World:
    """Broker 1 decides; 2 leads `wide`, with a copy on 3, and `lone`, alone."""

    def __init__(self, root: Path) -> None:
        self.members = members = Members(root)
        self.one = members.add(1)
        self.two, self.three = (members.add(n, seeds=(1,)) for n in (2, 3))
        image = self.one.node.broker.metadata.image
        members.run_until(
            lambda: self.two.started and self.three.started and len(image.live_brokers()) == 3
        )
        for member in members.up:
            member.call(m.HelloRequest())
        self.topics = [self._create("wide", (2, 3)), self._create("lone", (2,))]
        members.run_until(lambda: len(self.two.node.broker.replicas) == 2)
        self.producer_id = self.introduced(-1, -1).producer_id
        members.run_until(
            lambda: self.two.node.broker.producer_ids.may_be_assigned(self.producer_id)
        )
        # What the controller has given out above is not to be asked for once more.
        for member in members.up:
            member.give_out = lambda *_: None  # type: ignore[method-assign]

    def _create(self, name: str, replicas: tuple[int, ...]) -> bytes:
        new = m.NewTopic(name, serialize_schema(SCHEMA), 1, len(replicas))
        answer = self.settled(self.one, self.one.request(m.CreateTopicsRequest(topics=[new])))
        topic_id = bytes(answer.topics[0].topic_id)
        held = self.one.node.broker.metadata.image.topics_by_id[topic_id].partitions[0]
        outcomes: list[BaseException | None] = []
        change = PartitionChangeRecord(
            topic_id, 0, leader_id=replicas[0], leader_epoch=held.leader_epoch + 1,
            replicas=replicas, in_sync_replicas=replicas,
        )  # fmt: skip
        self.one.node.broker.propose(
            [change], self.one.now, lambda _result, error, _now: outcomes.append(error)
        )
        self.one.send(Tick())
        self.members.run_until(lambda: outcomes == [None])
        return topic_id

    def settled(self, member: Member, asked: int) -> m.Response:
        self.members.run_until(lambda: member.answer(asked) is not None)
        answer = member.answer(asked)
        assert answer is not None
        return answer[0]

    def ask(self, producer_id: int, epoch: int) -> int:
        request = m.InitProducerIdRequest(producer_id=producer_id, producer_epoch=epoch)
        return self.one.request(request)

    def introduced(self, producer_id: int, epoch: int) -> m.InitProducerIdResponse:
        answer = self.settled(self.one, self.ask(producer_id, epoch))
        assert isinstance(answer, m.InitProducerIdResponse)
        return answer

    def write(self, topic_id: bytes, epoch: int, sequence: int) -> m.ProducePartitionResult:
        batch = batch_of([1], producer=(self.producer_id, epoch, sequence))
        answer = self.settled(self.two, self.two.produce(topic_id, batch))
        return answer.partitions[0]

    def keep_metadata(self, node_id: int = LEADER) -> None:
        self.members.late = lambda effect: metadata_for(node_id, effect)

    def give_metadata(self) -> None:
        self.members.late = lambda _: False

    def live(self) -> list[int]:
        return [one.node_id for one in self.one.node.broker.metadata.image.live_brokers()]


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_no_leader_takes_an_older_epoch_once_the_newer_one_is_answered(world: World) -> None:
    """The leader decides nothing, and what is decided comes to it late."""
    assert [world.write(t, 0, 0).error_code for t in world.topics] == [0, 0]
    world.keep_metadata()
    asked = world.ask(world.producer_id, 0)
    world.members.run(SESSION_MS // 2)
    assert world.one.answer(asked) is None, "the leader takes the older epoch still"
    assert [world.write(t, 0, 1).error_code for t in world.topics] == [0, 0]
    world.give_metadata()
    waited_ms = world.members.run_until(lambda: world.one.answer(asked) is not None)
    assert waited_ms <= 50, "a broker that has applied it does not wait for its next heartbeat"
    answer = world.settled(world.one, asked)
    assert isinstance(answer, m.InitProducerIdResponse)
    assert (answer.error_code, answer.producer_epoch) == (0, 1)
    for topic_id in world.topics:
        assert world.write(topic_id, 0, 2).error_code == errors.InvalidProducerEpoch.code
        assert world.write(topic_id, 1, 0).error_code == 0


def test_a_broker_that_stays_behind_is_fenced_and_takes_none_either(world: World) -> None:
    """A broker that lives and heartbeats, and whose metadata do not come."""
    assert [world.write(t, 0, 0).error_code for t in world.topics] == [0, 0]
    world.keep_metadata()
    asked = world.ask(world.producer_id, 0)
    waited_ms = world.members.run_until(lambda: world.one.answer(asked) is not None)
    assert SESSION_MS < waited_ms <= 2 * SESSION_MS
    assert world.live() == [1, 3]
    answer = world.settled(world.one, asked)
    assert isinstance(answer, m.InitProducerIdResponse)
    assert (answer.error_code, answer.producer_epoch) == (0, 1)
    for topic_id in world.topics:
        assert world.write(topic_id, 0, 1).error_code == errors.NotLeader.code
    assert "its metadata come too late" in str(list(world.one.lines))
    world.give_metadata()
    world.members.run_until(lambda: world.live() == [1, 2, 3])


def test_a_broker_that_is_cut_off_is_not_waited_for_beyond_its_session(world: World) -> None:
    world.members.cut |= {frozenset((1, 2)), frozenset((3, 2))}
    asked = world.ask(world.producer_id, 0)
    waited_ms = world.members.run_until(lambda: world.one.answer(asked) is not None)
    assert waited_ms <= SESSION_MS + 500
    for topic_id in world.topics:
        assert world.write(topic_id, 0, 0).error_code == errors.NotLeader.code


def test_a_retry_with_the_older_epoch_is_refused_once_the_newer_is_applied(
    world: World,
) -> None:
    """The answer was lost, or the asker has not waited for it."""
    world.keep_metadata()
    asked = [world.ask(world.producer_id, 0) for _ in "ab"]
    world.members.run(SESSION_MS // 2)
    again = world.ask(world.producer_id, 0)
    world.members.run(100)
    assert [world.one.answer(number) for number in (*asked, again)] == [None] * 3
    world.give_metadata()
    first, second, third = (world.settled(world.one, number) for number in (*asked, again))
    over = errors.InvalidProducerEpoch.code
    assert [one.error_code for one in (first, second, third)] == [0, over, over]
    for topic_id in world.topics:
        assert world.write(topic_id, 0, 0).error_code == over


def test_a_new_id_waits_for_nothing(world: World) -> None:
    world.keep_metadata()
    asked = world.ask(-1, -1)
    world.members.deliver()
    answer = world.one.answer(asked)
    assert answer is not None
    assert answer[0].error_code == 0


def test_the_last_epoch_is_over_too_when_a_new_id_follows_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("quiverlog.node.apis.producers._PRODUCER_EPOCH_MAX", 1)
    old = world.producer_id
    assert world.introduced(old, 0).producer_epoch == 1
    assert world.write(world.topics[0], 1, 0).error_code == 0
    answer = world.introduced(old, 1)
    assert (answer.error_code, answer.producer_epoch, answer.producer_id != old) == (0, 0, True)
    for topic_id in world.topics:
        assert world.write(topic_id, 1, 1).error_code == errors.InvalidProducerEpoch.code
    assert world.introduced(old, 1).error_code == errors.InvalidProducerEpoch.code
    assert world.introduced(old, 2).error_code == errors.UnknownProducerId.code, (
        "given to no producer"
    )


def test_many_epochs_cost_no_broker_its_lease(world: World) -> None:
    """A broker lacks what was decided a moment ago all the time."""
    for epoch in range(3 * SESSION_MS // 40):
        world.keep_metadata()
        asked = world.ask(world.producer_id, epoch)
        world.members.run(30)
        world.give_metadata()
        world.members.run(10)
        answer = world.settled(world.one, asked)
        assert answer.error_code == 0
    assert world.live() == [1, 2, 3]
    assert not world.two.node.broker.leader_lease.is_over


def test_waiting_callers_are_answered_when_the_controller_stops(world: World) -> None:
    world.keep_metadata()
    asked = world.ask(world.producer_id, 0)
    world.members.run(100)
    world.one.node.broker.membership.stop(world.one.now)
    world.one.send(Tick())
    assert world.settled(world.one, asked).error_code == errors.BrokerShuttingDown.code


def test_a_controller_stops_whose_decision_comes_after_the_stop_began(tmp_path: Path) -> None:
    """With a slow disk, and no other voter to hand over to."""
    members = Members(tmp_path)
    one, two = members.add(1), members.add(2, seeds=(1,))
    members.run_until(lambda: two.started and len(two.node.broker.metadata.image.brokers) == 2)
    one.call(m.HelloRequest())
    producer_id = one.call(m.InitProducerIdRequest())[0].producer_id
    one.send(Shutdown())
    one.hold_jobs = True
    asked = one.request(m.InitProducerIdRequest(producer_id=producer_id, producer_epoch=0))
    one.send(Shutdown())  # At once: without waiting until others lead.
    assert one.phase is Phase.CLOSING
    assert one.answer(asked) is None
    one.hold_jobs = False
    one.run_until_idle()
    members.run_until(lambda: one.shut_down)
    answer = one.answer(asked)
    assert answer is not None
    assert answer[0].error_code == errors.BrokerShuttingDown.code


def test_no_more_wait_than_are_allowed(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registrar, "EPOCH_WAITS_MAX", 2)
    others = [world.introduced(-1, -1).producer_id for _ in range(3)]
    world.keep_metadata()
    asked = [world.ask(producer_id, 0) for producer_id in others]
    refused = world.settled(world.one, asked[2])
    assert refused.error_code == errors.ThrottledBroker.code
    assert [world.one.answer(number) for number in asked[:2]] == [None, None]
    world.give_metadata()
    assert [world.settled(world.one, number).error_code for number in asked[:2]] == [0, 0]


# --- ids and epochs that were never given out ----------------------------------------------------
def codes_until_settled(world: World, producer: tuple[int, int]) -> tuple[list[int], int]:
    """The answers to a batch that is sent again and again, and how long that took."""
    codes: list[int] = []

    def is_settled() -> bool:
        batch = batch_of([1], producer=(*producer, 0))
        answer = world.settled(world.two, world.two.produce(world.topics[0], batch))
        codes.append(answer.partitions[0].error_code)
        return codes[-1] != errors.ThrottledBroker.code

    waited_ms = world.members.run_until(is_settled)
    return codes, waited_ms


@pytest.mark.parametrize(
    ("ids_ahead", "epoch", "error"),
    [(777_777, 0, errors.UnknownProducerId), (0, 9, errors.InvalidProducerEpoch)],
)
def test_a_producer_that_was_never_assigned_is_refused_once_all_assignments_are_applied(
    world: World, ids_ahead: int, epoch: int, error: type[errors.QuiverlogError]
) -> None:
    """By a broker that is not the controller, and may get an id late."""
    codes, waited_ms = codes_until_settled(world, (world.producer_id + ids_ahead, epoch))
    assert codes[0] == errors.ThrottledBroker.code, "it may have been given out a moment ago"
    assert codes[-1] == error.code
    assert waited_ms <= SESSION_MS // 5 + 50, "with the next heartbeat"


def test_an_id_that_comes_late_is_taken_when_it_is_known(world: World) -> None:
    world.keep_metadata()
    while (theirs := world.introduced(-1, -1).producer_id) < world.producer_id + 1_000:
        continue
    write = batch_of([1], producer=(theirs, 0, 0))
    for _ in range(8):
        answer = world.settled(world.two, world.two.produce(world.topics[0], write))
        assert answer.partitions[0].error_code == errors.ThrottledBroker.code
        world.members.run(100)
    world.give_metadata()
    codes, _ = codes_until_settled(world, (theirs, 0))
    assert codes[-1] == 0


@pytest.mark.parametrize("node_id", [1, 2])
def test_ids_that_no_producer_has_are_refused_at_once(world: World, node_id: int) -> None:
    member = world.members.by_id[node_id]
    for producer_id, code in ((2**62, errors.InvalidRequest.code), (2**63 - 1, 7)):
        batch = batch_of([1], producer=(producer_id, 0, 0))
        answer = world.settled(world.two, world.two.produce(world.topics[0], batch))
        assert answer.partitions[0].error_code == code
        request = m.InitProducerIdRequest(producer_id=producer_id, producer_epoch=0)
        got = world.settled(member, member.request(request)).error_code
        assert got == (code if node_id == 1 else errors.NotController.code)
    codes, _ = codes_until_settled(world, (2**62 - 1, 0))
    assert codes[-1] == errors.UnknownProducerId.code
