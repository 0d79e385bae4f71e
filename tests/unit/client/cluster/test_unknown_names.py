"""A name that a broker does not have: only the controller's answer counts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from quiverlog.client.admin import topics
from quiverlog.client.base.commands import Call, Operation, Reply, Sleep
from quiverlog.client.base.results import Address
from quiverlog.client.cluster.routing import Cluster, Settings
from quiverlog.client.cluster.topic_identity import topic_with_id
from quiverlog.errors import (
    ConnectionFailed,
    NotController,
    NotLeader,
    QuiverlogError,
    RequestTimedOut,
    UnknownTopic,
    UnknownTopicId,
)
from quiverlog.wire import messages as m

ONE, TWO, THREE = (Address(host, 9292) for host in ("one", "two", "three"))
ALL = (ONE, TWO, THREE)
TOPIC_ID = b"t" * 16


class World:
    """Brokers with different topics. `decides`: the controller's number."""

    def __init__(self, *addresses: Address) -> None:
        self.now_s = 0.0
        self.brokers = addresses
        self.decides = 3
        self.topics_of: dict[Address, set[str]] = {THREE: {"t"}}
        self.failures: dict[Address, QuiverlogError] = {}
        self.change: Callable[[Call, m.MetadataResponse], None] = lambda call, response: None
        self.asked: list[Address] = []
        self.cluster = Cluster(addresses, Settings(), clock=lambda: self.now_s, jitter=lambda: 0.5)

    def play(self, operation: Operation[Any]) -> Any:
        command, error = next(operation), None
        while True:
            result: Any = None
            try:
                if isinstance(command, Call):
                    result = self.answer(command)
                else:
                    assert isinstance(command, Sleep)
                    self.now_s += command.seconds
                error = None
            except QuiverlogError as failure:
                error = failure
            try:
                command = operation.send(result) if error is None else operation.throw(error)
            except StopIteration as end:
                return end.value

    def answer(self, call: Call) -> Reply:
        self.asked.append(call.address)
        assert isinstance(call.request, m.MetadataRequest)
        if call.address in self.failures:
            self.now_s += 0.01
            raise self.failures[call.address]
        known = self.topics_of.get(call.address, set())
        response = m.MetadataResponse(
            controller_id=self.decides,
            metadata_version=7,
            brokers=[m.BrokerEndpoint(n, *a) for n, a in enumerate(ALL, 1) if a in self.brokers],
            topics=[
                m.TopicMetadata(name, TOPIC_ID)
                if name in known
                else m.TopicMetadata(name, error_code=UnknownTopic.code)
                for name in call.request.topics or ()
            ],
        )
        self.change(call, response)
        return Reply(response, memoryview(b""))

    def topic(self, name: str) -> Any:
        return self.play(self.cluster.retrying(lambda: self.cluster.topic(name, fresh=True)))


@pytest.fixture
def world() -> World:
    return World(*ALL)


def test_a_name_that_one_broker_lacks_is_asked_of_the_controller(world: World) -> None:
    assert world.topic("t").topic_id == TOPIC_ID
    assert world.asked == [ONE, THREE]
    assert world.cluster.metadata.topics.keys() == {"t"}


def test_the_controllers_answer_counts_at_once(world: World) -> None:
    with pytest.raises(UnknownTopic):
        world.topic("nothing")
    assert world.asked[:2] == [ONE, THREE]
    assert world.now_s < 1, "nothing is waited for"
    assert len(world.asked) <= 4


def test_a_topic_that_all_brokers_have_costs_one_question(world: World) -> None:
    world.topics_of[ONE] = {"t"}
    assert world.topic("t").topic_id == TOPIC_ID
    assert world.asked == [ONE]


def test_a_single_broker_has_all_topics() -> None:
    world = World(ONE)
    world.decides = 1
    with pytest.raises(UnknownTopic):
        world.play(world.cluster.topic("t"))
    assert world.asked == [ONE]


@pytest.mark.parametrize("failure", [ConnectionFailed("gone"), RequestTimedOut("silent")])
def test_without_a_controller_no_topic_is_reported_as_missing(
    world: World, failure: QuiverlogError
) -> None:
    world.failures[THREE] = failure
    with pytest.raises(type(failure)):
        world.topic("t")
    assert world.now_s >= Settings().request_timeout_s * 0.9
    assert {ONE, TWO} <= set(world.asked), "each may be the first to apply it"


def test_another_broker_that_has_the_name_is_enough(world: World) -> None:
    world.failures[THREE] = ConnectionFailed("gone")
    world.topics_of[TWO] = {"t"}
    assert world.topic("t").topic_id == TOPIC_ID
    assert world.asked[:3] == [ONE, THREE, TWO]


def test_a_former_controller_or_one_that_is_behind_does_not_count(world: World) -> None:
    def deposed(call: Call, response: m.MetadataResponse) -> None:
        if call.address == THREE:
            response.controller_id = 2
            response.topics = [m.TopicMetadata("t", error_code=UnknownTopic.code)]

    world.change = deposed
    with pytest.raises(NotController):
        world.play(world.cluster.refresh(["t"]))

    def behind(call: Call, response: m.MetadataResponse) -> None:
        response.is_behind = call.address == THREE

    world.change = behind
    with pytest.raises(NotController):
        world.play(world.cluster.refresh(["t"]))

    def no_controller(call: Call, response: m.MetadataResponse) -> None:
        response.controller_id = -1

    world.topics_of = {}
    world.change = no_controller
    with pytest.raises(NotController):
        world.play(world.cluster.refresh(["t"]))


def test_a_broker_that_is_late_names_an_earlier_topic_of_the_name(world: World) -> None:
    """Seen in the cluster simulator: a producer ended, for another topic had its name."""
    world.topics_of[ONE] = {"t"}

    def earlier(call: Call, response: m.MetadataResponse) -> None:
        if call.address == ONE:
            response.topics = [m.TopicMetadata("t", b"e" * 16)]

    world.change = earlier
    found = world.play(topic_with_id(world.cluster, "t", TOPIC_ID, fresh=True))
    assert found.topic_id == TOPIC_ID
    assert world.asked[-1] == THREE
    with pytest.raises(UnknownTopicId, match="created again"):
        world.play(topic_with_id(world.cluster, "t", b"n" * 16, fresh=True))
    world.change = lambda call, response: None
    with pytest.raises(UnknownTopicId, match="gone"):
        world.play(topic_with_id(world.cluster, "u", TOPIC_ID))


def test_the_controller_is_asked_about_a_topic_that_another_broker_lacks(world: World) -> None:
    """A leader may apply a deletion before the broker that is asked for metadata."""
    world.topics_of = {ONE: {"t"}}
    assert world.play(topic_with_id(world.cluster, "t", TOPIC_ID, fresh=True)).topic_id == TOPIC_ID
    with pytest.raises(UnknownTopicId, match="gone"):
        world.play(topic_with_id(world.cluster, "t", TOPIC_ID, fresh=True, from_controller=True))
    assert world.asked[-1] == THREE


def test_of_several_names_those_that_are_missing_are_asked_for(world: World) -> None:
    world.topics_of[ONE] = {"a"}
    found = world.play(topics.metadata(world.cluster, ["a", "t", "none"]))
    assert found.topics.keys() == {"a", "t"}
    assert world.asked == [ONE, THREE]


def test_an_id_that_one_broker_lacks_is_asked_of_the_controller(
    world: World,
) -> None:
    """A leader of a new topic, cut off for long, ended its readers (98003050)."""
    unknown = UnknownTopicId("there is no topic with that id.")

    def resolved(name: str, topic_id: bytes) -> QuiverlogError:
        found: QuiverlogError = world.play(
            world.cluster.resolve_unknown_id(name, topic_id, unknown)
        )
        return found

    assert isinstance(resolved("t", TOPIC_ID), NotLeader)
    assert resolved("t", b"u" * 16) is unknown, "created anew"
    assert resolved("nothing", TOPIC_ID) is unknown
    world.failures[THREE] = ConnectionFailed("gone")
    with pytest.raises(ConnectionFailed):
        resolved("t", TOPIC_ID)
