"""The client's way to the controller, from the picture, from refusals, and past dead brokers.

The operations are driven by hand: a world of addresses answers their calls.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from quiverlog.client.admin import topics
from quiverlog.client.admin.cluster import change_voters
from quiverlog.client.base.commands import Call, Finish, FinishAny, Operation, Reply, Sleep, Start
from quiverlog.client.base.results import Address
from quiverlog.client.cluster.answers import check_answer
from quiverlog.client.cluster.routing import Cluster, Settings
from quiverlog.client.producer.runner import new_identity
from quiverlog.errors import (
    BrokerShuttingDown,
    ConnectionClosed,
    ConnectionFailed,
    InvalidReplicationFactor,
    InvalidVoterChange,
    NotController,
    OutcomeUnknown,
    QuiverlogError,
    RequestTimedOut,
    TopicExists,
    UnknownTopic,
    UnknownTopicId,
)
from quiverlog.wire import messages as m
from quiverlog.wire.voters_messages import ChangeVotersRequest, ChangeVotersResponse

ONE, TWO, THREE = (Address(host, 9292) for host in ("one", "two", "three"))
BROKERS = {1: ONE, 2: TWO, 3: THREE}


class Asked:
    """A request under way; `answer`: its reply, or how it failed."""

    def __init__(self, call: Call) -> None:
        self.call = call
        self.answer: Any = None


class World:
    """Three brokers. `controller` is the real one, `picture` the one that METADATA names."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.looks = 0
        self.controller = self.picture = 1
        self.down: set[Address] = set()
        self.starting: set[Address] = set()
        self.redirects = False
        self.topic_id = b"t" * 16
        self.deleted: list[bytes] = []
        self.asked: list[tuple[Address, str]] = []
        self.before: Callable[[Call], None] = lambda call: None
        bootstrap = [ONE, TWO, THREE]
        self.cluster = Cluster(bootstrap, Settings(), clock=lambda: self.now_s, jitter=lambda: 0.5)

    def play(self, operation: Operation[Any]) -> Any:
        """What a driver does."""
        command, error = next(operation), None
        while True:
            result: Any = None
            try:
                match command:
                    case Call():
                        result = self.answer(command)
                    case Start(call):
                        result = Asked(call)
                        try:
                            result.answer = self.answer(call)
                        except (ConnectionClosed, RequestTimedOut) as lost:
                            result.answer = lost  # It was sent.
                    case FinishAny(pending):
                        result = pending[0]
                    case Finish(Asked() as one):
                        result = one.answer
                        if isinstance(result, QuiverlogError):
                            raise result
                    case _:
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
        self.asked.append((call.address, call.request.API.name))
        self.before(call)
        if call.address in self.down:
            raise ConnectionFailed(f"{call.address} refuses.")
        response: m.Response
        if isinstance(call.request, m.MetadataRequest):
            response = m.MetadataResponse(controller_id=self.picture)
            self.looks += 1
            if call.request.topics and self.looks > 1:
                response.topics = [m.TopicMetadata(call.request.topics[0], self.topic_id)]
            elif call.request.topics:
                response.topics = [m.TopicMetadata(name="t", error_code=UnknownTopic.code)]
            response.brokers = [m.BrokerEndpoint(n, *where) for n, where in BROKERS.items()]
        elif isinstance(call.request, m.CreateTopicsRequest):
            result = m.TopicResult("t", topic_id=b"t" * 16)
            if self.asked_for("CREATE_TOPICS")[1:]:
                result.error_code = TopicExists.code
            response = m.CreateTopicsResponse(topics=[result])
        elif isinstance(call.request, ChangeVotersRequest):
            response = ChangeVotersResponse(leader_id=self.controller, term=5)
            if call.address in self.starting:
                response = ChangeVotersResponse(error_code=BrokerShuttingDown.code)
        elif isinstance(call.request, m.InitProducerIdRequest):
            response = m.InitProducerIdResponse(producer_id=7, producer_epoch=0)
            if call.address != BROKERS[self.controller]:
                response.error_code = NotController.code
        else:
            assert isinstance(call.request, m.DeleteTopicsRequest)
            result = m.TopicResult(call.request.names[0])
            response = m.DeleteTopicsResponse(topics=[result])
            if call.address != BROKERS[self.controller]:
                result.error_code = NotController.code
            elif [self.topic_id] != (call.request.topic_ids or [self.topic_id]):
                result.error_code = UnknownTopicId.code
            else:
                self.deleted.append(self.topic_id)
        decides = not isinstance(call.request, m.MetadataRequest)
        if self.redirects and decides and call.address != BROKERS[self.controller]:
            where = BROKERS[self.controller]
            response.controller = m.BrokerEndpoint(self.controller, *where)  # type: ignore[attr-defined]
        return Reply(response, memoryview(b""))

    def asked_for(self, api: str) -> list[Address]:
        return [address for address, name in self.asked if name == api]


@pytest.fixture
def world() -> World:
    found = World()
    found.play(found.cluster.first_contact())
    return found


def test_the_controller_is_asked_first(world: World) -> None:
    world.controller = world.picture = 3
    world.play(world.cluster.refresh([]))
    assert world.play(new_identity(world.cluster)).producer_id == 7
    world.play(topics.delete_topic(world.cluster, "t", if_exists=False))
    assert world.asked_for("INIT_PRODUCER_ID") == world.asked_for("DELETE_TOPICS") == [THREE]


@pytest.mark.parametrize("in_entry", [False, True])
def test_a_refusal_renews_the_picture_and_is_followed(world: World, *, in_entry: bool) -> None:
    world.controller = world.picture = 2
    if in_entry:
        world.play(topics.delete_topic(world.cluster, "t", if_exists=False))
        assert world.asked_for("DELETE_TOPICS") == [TWO], "the look at the topic renewed it"
    else:
        world.play(new_identity(world.cluster))
        assert world.asked_for("INIT_PRODUCER_ID") == [ONE, TWO]


@pytest.mark.parametrize("in_entry", [False, True])
def test_where_a_refusal_sends_it_the_client_goes_without_asking_for_the_picture(
    world: World, *, in_entry: bool
) -> None:
    world.controller, world.picture, world.redirects = 3, 1, True
    looks = world.looks
    if in_entry:
        world.play(topics.delete_topic(world.cluster, "t", if_exists=False))
        assert world.asked_for("DELETE_TOPICS") == [ONE, THREE]
        looks += 1  # Which topic is meant, before anything else.
    else:
        world.play(new_identity(world.cluster))
        assert world.asked_for("INIT_PRODUCER_ID") == [ONE, THREE]
    assert world.looks == looks
    world.play(new_identity(world.cluster))
    assert world.asked_for("INIT_PRODUCER_ID")[-1] == THREE


@pytest.mark.parametrize("how", [ConnectionFailed, NotController])
def test_a_refusal_that_leads_nowhere_is_followed_by_the_picture(
    world: World, how: type[QuiverlogError]
) -> None:
    """A refusal named broker 3 as the controller; it is gone, or refuses as well."""
    world.controller, world.picture, world.redirects = 3, 1, True

    def gone(call: Call) -> None:
        if call.address == THREE:
            world.controller = world.picture = 2
            if how is ConnectionFailed:
                raise how("it died")

    world.before = gone
    world.play(new_identity(world.cluster))
    assert world.asked_for("INIT_PRODUCER_ID") == [ONE, THREE, TWO]
    assert world.looks == 2


@pytest.mark.parametrize("is_done", [True, False])
def test_a_deletion_of_unknown_outcome_is_asked_for_again(world: World, *, is_done: bool) -> None:
    """Done, its absence is the answer; not done, it is done then. A new picture comes first."""
    world.play(world.cluster.refresh([]))
    plain = world.answer
    codes = [OutcomeUnknown.code, UnknownTopic.code if is_done else 0]

    def answer(call: Call) -> Reply:
        reply = plain(call)
        if isinstance(reply.response, m.DeleteTopicsResponse):
            reply.response.topics[0].error_code = codes.pop(0)
        return reply

    world.answer = answer  # type: ignore[method-assign]
    looks = world.looks
    world.play(topics.delete_topic(world.cluster, "t", if_exists=False))
    assert not codes
    assert world.looks > looks + 1


def test_an_outcome_that_stays_unknown_is_reported_as_that(world: World) -> None:
    plain = world.answer

    def answer(call: Call) -> Reply:
        reply = plain(call)
        if isinstance(reply.response, m.DeleteTopicsResponse):
            reply.response.topics[0].error_code = OutcomeUnknown.code
        return reply

    world.answer = answer  # type: ignore[method-assign]
    world.looks = 1
    with pytest.raises(OutcomeUnknown) as caught:
        world.play(topics.delete_topic(world.cluster, "t", if_exists=False))
    assert len(world.asked_for("DELETE_TOPICS")) > 1
    assert "may have been made" in caught.value.__notes__[0]


@pytest.mark.parametrize("endpoint", [(-1, "h", 1), (3, "", 1), (3, "h", 0), (3, "h", 70_000)])
def test_an_impossible_address_in_a_refusal_is_not_believed(
    world: World, endpoint: tuple[int, str, int]
) -> None:
    assert not world.cluster._follow_redirect(m.BrokerEndpoint(*endpoint))
    assert set(world.cluster.metadata.brokers) == {1, 2, 3}


@pytest.mark.parametrize("how", [ConnectionFailed, ConnectionClosed])
def test_a_dead_controller_is_given_up_for_the_next(
    world: World, how: type[QuiverlogError]
) -> None:
    world.controller = world.picture = 2

    def dies(call: Call) -> None:
        if call.address == ONE:
            raise how("it died")

    world.before = dies
    world.play(new_identity(world.cluster))
    assert world.asked_for("INIT_PRODUCER_ID") == [ONE, TWO]


def test_without_a_controller_the_request_is_retried_until_the_time_is_up(world: World) -> None:
    world.controller, world.picture = 3, -1
    world.play(world.cluster.refresh([]))
    began_s = world.now_s

    def elected(call: Call) -> None:
        if world.now_s > began_s + 2:
            world.picture = 3

    world.before = elected
    world.play(new_identity(world.cluster))
    assert world.asked_for("INIT_PRODUCER_ID")[-1] == THREE
    world.controller, world.picture = -1, 1
    BROKERS[-1] = Address("nowhere", 1)
    try:
        with pytest.raises(NotController):
            world.play(new_identity(world.cluster))
    finally:
        del BROKERS[-1]
    assert world.now_s < began_s + 2 * Settings().request_timeout_s + 5
    assert len(world.asked) < 500, "bounded"


def test_dead_bootstrap_addresses_are_passed_over() -> None:
    world = World()
    world.down = {ONE, TWO}
    world.controller = world.picture = 3
    world.play(world.cluster.first_contact())
    assert world.cluster.metadata.controller_id == 3
    world.play(new_identity(world.cluster))
    assert world.asked_for("INIT_PRODUCER_ID") == [THREE]


def test_a_topic_is_created_once_also_where_the_broker_asked_applies_it_later(
    world: World,
) -> None:
    """Seen with real brokers: UNKNOWN_TOPIC from one that was behind made it ask again."""
    world.looks = -3
    created = world.play(
        topics.create_topic(
            world.cluster, "t", pa.schema([("n", pa.int64())]), partitions=1, key=None, config=None,
            replication_factor=1, if_not_exists=False, validate_only=False,
        )
    )  # fmt: skip
    assert created.name == "t"
    assert world.asked_for("CREATE_TOPICS") == [ONE]
    assert len(world.asked_for("METADATA")) > 3


@pytest.mark.parametrize("how", [ConnectionFailed, ConnectionClosed, RequestTimedOut])
def test_a_topic_is_created_once_also_where_no_broker_answers_just_after(
    world: World, how: type[QuiverlogError]
) -> None:
    """Seen with real brokers: a look that failed made it ask again, and it raised TOPIC_EXISTS."""
    failed = 0

    def breaks(call: Call) -> None:
        nonlocal failed
        is_look = isinstance(call.request, m.MetadataRequest)
        if is_look and world.asked_for("CREATE_TOPICS") and failed < 5:
            failed += 1
            raise how("cut off")

    world.before = breaks
    created = world.play(
        topics.create_topic(
            world.cluster, "t", pa.schema([("n", pa.int64())]), partitions=1, key=None, config=None,
            replication_factor=1, if_not_exists=False, validate_only=False,
        )
    )  # fmt: skip
    assert created.name == "t"
    assert failed == 5
    assert world.asked_for("CREATE_TOPICS") == [ONE]


@pytest.mark.parametrize("lost", [True, False])
def test_a_refusal_after_a_lost_answer_has_a_note(world: World, *, lost: bool) -> None:
    """Seen with real brokers: refused for the brokers that were left, and created by the first."""

    def answers(call: Call) -> None:
        if not isinstance(call.request, m.CreateTopicsRequest):
            return
        if lost and not world.asked_for("CREATE_TOPICS")[1:]:
            raise ConnectionClosed("cut off")
        raise InvalidReplicationFactor("two are left.")

    world.before = answers
    with pytest.raises(InvalidReplicationFactor) as caught:
        world.play(
            topics.create_topic(
                world.cluster, "t", pa.schema([("n", pa.int64())]), partitions=1, key=None,
                config=None, replication_factor=3, if_not_exists=False, validate_only=False,
            )
        )  # fmt: skip
    notes = getattr(caught.value, "__notes__", [])
    assert [note for note in notes if "may have been made" in note] == notes
    assert bool(notes) == lost


@pytest.mark.parametrize("how", [ConnectionClosed, RequestTimedOut])
def test_a_deletion_whose_answer_was_lost_spares_a_later_topic_of_that_name(
    world: World, how: type[QuiverlogError]
) -> None:
    """Deleted, created anew by another client, and the repetition comes."""
    anew = b"n" * 16

    def lost(call: Call) -> None:
        if isinstance(call.request, m.DeleteTopicsRequest) and world.topic_id != anew:
            world.deleted.append(world.topic_id)
            world.topic_id = anew
            raise how("cut off")

    world.before = lost
    world.play(topics.delete_topic(world.cluster, "t", if_exists=False))
    assert world.deleted == [b"t" * 16]
    assert len(world.asked_for("DELETE_TOPICS")) == 2


def test_a_name_that_became_another_topics_before_the_deletion_is_looked_up_again(
    world: World,
) -> None:
    def changes(call: Call) -> None:
        if isinstance(call.request, m.DeleteTopicsRequest):
            world.topic_id = b"n" * 16

    world.before = changes
    world.play(topics.delete_topic(world.cluster, "t", if_exists=False))
    assert world.deleted == [b"n" * 16], "it is what the name stands for now"
    assert len(world.asked_for("DELETE_TOPICS")) == 2


def test_a_broker_that_lists_no_live_brokers_is_skipped(world: World) -> None:
    """As one does when it has just applied that all are fenced, itself among them."""

    def answer(call: Call) -> None:
        if call.address == ONE:
            assert isinstance(call.request, m.MetadataRequest)
            check_answer(call.request, m.MetadataResponse(), 0)

    world.before = answer
    picture = world.play(topics.metadata(world.cluster, []))
    assert set(picture.brokers) == set(BROKERS)
    assert [address for address, _ in world.asked[-2:]] == [ONE, TWO]


@pytest.mark.parametrize("is_lost", [True, False])
def test_a_change_of_voters_whose_answer_was_lost_is_looked_up(world: World, is_lost: bool) -> None:
    """Broker 1 has lost its vote when it is asked again; asked once only, it never had one."""
    lost = [ConnectionClosed("gone")] if is_lost else []

    def answer(call: Call) -> None:
        if isinstance(call.request, ChangeVotersRequest) and call.request.change:
            raise lost.pop() if lost else InvalidVoterChange("node 1 is no voter.")

    world.before = answer
    asked = change_voters(world.cluster, ChangeVotersRequest(change=2, node_id=1))
    if is_lost:
        assert world.play(asked).term == 5
    else:
        with pytest.raises(InvalidVoterChange):
            world.play(asked)


@pytest.mark.parametrize("change", [0, 2])
def test_a_broker_that_has_no_metadata_yet_hides_no_voters(world: World, change: int) -> None:
    world.starting = {ONE, TWO}
    found = world.play(change_voters(world.cluster, ChangeVotersRequest(change=change, node_id=1)))
    assert (found.term, found.leader_id) == (5, 1)
    assert world.asked_for("CHANGE_VOTERS") == [ONE, TWO, THREE]
    assert world.now_s == 0


@pytest.mark.parametrize("silent", [ONE, TWO, THREE])
@pytest.mark.parametrize("lost", [RequestTimedOut("silent"), ConnectionClosed("gone")])
def test_a_silent_broker_hides_no_voters(
    world: World, lost: QuiverlogError, silent: Address
) -> None:
    """As the leader of before does that is stopped: it costs a part of the time, once."""
    patience_s: dict[Address, float] = {}

    def answer(call: Call) -> None:
        if isinstance(call.request, ChangeVotersRequest):
            patience_s[call.address] = call.timeout_s
            if call.address == silent:
                raise lost

    world.before = answer
    found = world.play(change_voters(world.cluster, ChangeVotersRequest()))
    assert (found.term, found.leader_id) == (5, 1)
    assert world.asked_for("CHANGE_VOTERS") == [ONE, TWO, THREE]
    assert patience_s == dict.fromkeys([ONE, TWO, THREE], 2.0), "there is another answer"


def test_a_change_of_voters_is_not_asked_of_another_broker_where_one_is_silent(
    world: World,
) -> None:
    def answer(call: Call) -> None:
        if isinstance(call.request, ChangeVotersRequest) and call.address == ONE:
            world.now_s += call.timeout_s
            raise RequestTimedOut(f"{call.address} is silent")

    world.before = answer
    with pytest.raises(RequestTimedOut, match="one:9292 is silent"):
        world.play(change_voters(world.cluster, ChangeVotersRequest(change=2, node_id=1)))
    assert world.asked_for("CHANGE_VOTERS") == [ONE]
