"""Which broker a client asks first, and whose metadata it keeps."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from quiverlog.client.base.commands import Call, Operation, Reply, Sleep
from quiverlog.client.base.results import Address
from quiverlog.client.cluster.routing import Cluster, KnownBrokers, Settings
from quiverlog.errors import (
    AuthenticationFailed,
    BrokerShuttingDown,
    ConnectionClosed,
    ConnectionFailed,
    InvalidRequest,
    NotLeader,
    QuiverlogError,
    RequestTimedOut,
    ThrottledBroker,
    TooManyConnections,
)
from quiverlog.limits import LEADER_SILENCE_MS
from quiverlog.wire import messages as m

ONE, TWO, THREE = (Address(host, 9292) for host in ("one", "two", "three"))
ALL = (ONE, TWO, THREE)
SILENT = RequestTimedOut("silent")
GONE = ConnectionFailed("gone")
CLOSED = ConnectionClosed("closed")


class World:
    """Three brokers; `answers`: each one's METADATA, or its failure."""

    def __init__(self) -> None:
        self.cluster = Cluster(ALL, Settings(), clock=lambda: 0.0, jitter=lambda: 0.5)
        self.answers: dict[Address, Any] = dict.fromkeys(ALL, 10)
        self.calls: list[Call] = []

    @property
    def asked(self) -> list[Address]:
        return [call.address for call in self.calls]

    def answer(self, call: Call) -> Reply:
        self.calls.append(call)
        found_answer = self.answers[call.address]
        if isinstance(found_answer, QuiverlogError):
            raise found_answer
        if isinstance(found_answer, int):
            found_answer = picture(found_answer)
        return Reply(found_answer, memoryview(b""))

    def play(self, operation: Operation[Any]) -> Any:
        self.calls.clear()
        command, error = next(operation), None
        while True:
            result: Any = None
            try:
                assert isinstance(command, Call | Sleep)
                result, error = self.answer(command) if isinstance(command, Call) else None, None
            except QuiverlogError as failure:
                error = failure
            try:
                command = operation.send(result) if error is None else operation.throw(error)
            except StopIteration as end:
                return end.value

    def refresh(self) -> int:
        """The version that the picture has then."""
        self.play(self.cluster.refresh([]))
        return self.cluster.metadata.metadata_version


def picture(version: int, *, is_behind: bool = False, cluster_id: str = "c") -> m.MetadataResponse:
    return m.MetadataResponse(
        cluster_id=cluster_id,
        controller_id=1,
        metadata_version=version,
        brokers=[m.BrokerEndpoint(n, *where) for n, where in enumerate(ALL, start=1)],
        is_behind=is_behind,
    )


@pytest.fixture
def world() -> World:
    return World()


def test_the_broker_that_answered_last_is_asked_first(world: World) -> None:
    world.answers[ONE] = GONE
    assert world.refresh() == 10
    assert world.asked == [ONE, TWO]
    world.answers[ONE] = 10
    world.refresh()
    assert world.asked == [TWO]


@pytest.mark.parametrize("failure", [SILENT, GONE])
def test_a_broker_that_failed_goes_to_the_back(world: World, failure: QuiverlogError) -> None:
    world.answers[ONE] = failure
    world.refresh()
    assert world.asked == [ONE, TWO]
    world.answers[TWO] = failure
    world.refresh()
    assert world.asked == [TWO, THREE], "one failed before two"
    world.answers[THREE] = failure
    world.answers[ONE] = 10
    world.refresh()
    assert world.asked == [THREE, ONE]


def test_a_question_that_was_cut_off_is_asked_of_the_others(world: World) -> None:
    world.answers[ONE] = CLOSED
    assert world.refresh() == 10
    assert world.asked == [ONE, TWO]
    world.answers = dict.fromkeys(ALL, CLOSED)
    with pytest.raises(ConnectionClosed):
        world.refresh()
    assert world.asked == [TWO, THREE, ONE]
    with pytest.raises(ConnectionClosed):
        world.play(world.cluster.call_any(m.MetadataRequest(), is_read=False))
    assert len(world.asked) == 1, "a change may have been made"


def test_a_silent_broker_is_not_waited_for_all_the_time_there_is(world: World) -> None:
    world.answers[ONE] = world.answers[TWO] = SILENT
    world.refresh()
    whole_s = Settings().request_timeout_s
    silence_s = LEADER_SILENCE_MS / 1000
    assert silence_s < whole_s / 3
    assert [call.timeout_s for call in world.calls] == [silence_s, silence_s, whole_s]
    assert world.asked == [ONE, TWO, THREE]


@pytest.mark.parametrize(("failure", "kind"), [(SILENT, RequestTimedOut), (GONE, ConnectionFailed)])
def test_where_no_broker_answers_the_error_names_all(
    world: World, failure: QuiverlogError, kind: type[QuiverlogError]
) -> None:
    world.answers = {ONE: GONE, TWO: failure, THREE: ConnectionFailed("gone, too")}
    with pytest.raises(kind) as caught:
        world.refresh()
    messages = dict.fromkeys(["gone", failure.message, "gone, too"])
    assert caught.value.message == " ".join(messages), "each once"
    assert world.asked == [ONE, TWO, THREE]


def test_what_changes_something_is_not_asked_of_another_where_one_is_silent(world: World) -> None:
    world.answers[ONE] = SILENT
    with pytest.raises(RequestTimedOut):
        world.play(world.cluster.call_any(m.MetadataRequest(), is_read=False))
    assert world.asked == [ONE]


def test_a_broker_that_is_behind_does_not_count_over_others(world: World) -> None:
    world.answers[ONE] = picture(10, is_behind=True)
    world.answers[TWO] = 9
    assert world.refresh() == 9
    assert world.asked == [ONE, TWO]
    world.refresh()
    assert world.asked == [TWO], "the one that is cut off is not asked first again"


def test_an_older_version_than_one_that_was_seen_is_not_believed_over_others(world: World) -> None:
    assert world.refresh() == 10
    world.answers = {ONE: 9, TWO: 8, THREE: 11}
    assert world.refresh() == 11
    assert world.asked == [ONE, TWO, THREE]


def test_where_all_are_behind_the_newest_answer_counts(world: World) -> None:
    assert world.refresh() == 10
    world.answers = {ONE: picture(9, is_behind=True), TWO: 7, THREE: 8}
    assert world.refresh() == 8
    assert world.asked == [ONE, TWO, THREE]
    world.refresh()
    assert len(world.asked) <= 2, "what was believed once is not doubted again"


def test_another_cluster_is_another_count(world: World) -> None:
    assert world.refresh() == 10
    world.answers[ONE] = picture(2, cluster_id="another")
    assert world.refresh() == 2


def test_brokers_that_are_gone_are_dropped() -> None:
    known = KnownBrokers()
    known.failed(ONE, [ONE, TWO])
    known.failed(TWO, [TWO, THREE])
    assert known.order([ONE, TWO, THREE]) == [ONE, THREE, TWO]


def refusal(error: QuiverlogError) -> m.MetadataResponse:
    return m.MetadataResponse(error_code=error.code, error_message=error.message)


NOT_READY = (
    BrokerShuttingDown("it starts."),
    TooManyConnections("full."),
    ThrottledBroker("work."),
)


@pytest.mark.parametrize("error", NOT_READY, ids=lambda one: type(one).__name__)
def test_a_broker_that_is_not_ready_is_no_reason_to_ask_no_other(
    world: World, error: QuiverlogError
) -> None:
    """`cluster status` with all addresses ended with BROKER_SHUTTING_DOWN where the first one
    waited for the metadata: every other could have answered."""
    world.answers[ONE] = refusal(error)
    assert world.refresh() == 10
    assert world.asked == [ONE, TWO]
    world.refresh()
    assert world.asked == [TWO], "the one that was ready is asked first from now on"
    world.answers = dict.fromkeys(ALL, refusal(error))
    with pytest.raises(type(error)):
        world.refresh()
    assert sorted(world.asked) == sorted(ALL), "each was asked once"
    world.answers |= {TWO: GONE, THREE: SILENT}
    with pytest.raises(type(error)) as found:
        world.refresh()
    assert "gone" in str(found.value), "the others are kept"


@pytest.mark.parametrize("error", NOT_READY, ids=lambda one: type(one).__name__)
def test_a_connection_that_is_refused_so_is_none_either(
    world: World, error: QuiverlogError
) -> None:
    world.answers[ONE] = error
    assert world.refresh() == 10
    assert world.asked == [ONE, TWO]


def test_a_change_is_not_asked_of_another_broker_for_that(world: World) -> None:
    """What became of it is not known: only the caller asks again, and another broker then."""
    world.answers[ONE] = refusal(BrokerShuttingDown())
    asked = m.CreateTopicsRequest()
    with pytest.raises(BrokerShuttingDown):
        world.play(world.cluster.call_any(asked, is_read=False))
    assert world.asked == [ONE]
    world.play(world.cluster.call_any(asked, is_read=False))
    assert world.asked == [TWO]


def test_what_any_broker_would_answer_is_asked_once(world: World) -> None:
    world.answers[ONE] = refusal(InvalidRequest("too many names."))
    with pytest.raises(InvalidRequest):
        world.refresh()
    assert world.asked == [ONE]


# --- a stopped broker -----------------------------------------------------------------------------
class Stopped(World):
    """Broker 1 is silent, 2 is gone, 3 answers and reaches no controller."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0
        self.silent_s: list[float] = []
        self.answers = 0
        self.cluster = Cluster(ALL, Settings(), clock=lambda: self.now_s, jitter=lambda: 0.5)

    def answer(self, call: Call) -> Reply:
        if call.address == ONE:
            self.now_s += call.timeout_s
            self.silent_s.append(call.timeout_s)
            raise RequestTimedOut(f"{ONE} did not answer in time.")
        if call.address == TWO:
            raise ConnectionFailed(f"Cannot connect to {TWO}: Connection refused.")
        self.answers += 1
        return Reply(picture(10, is_behind=True), memoryview(b""))

    def play(self, operation: Operation[Any]) -> Any:
        command, error = next(operation), None
        while True:
            result: Any = None
            try:
                if isinstance(command, Sleep):
                    self.now_s += command.seconds
                else:
                    assert isinstance(command, Call)
                    result = self.answer(command)
                error = None
            except QuiverlogError as failure:
                error = failure
            try:
                command = operation.send(result) if error is None else operation.throw(error)
            except StopIteration as end:
                return end.value


def test_a_stopped_broker_costs_a_part_of_the_time_and_the_error_names_the_isolated_one() -> None:
    world = Stopped()
    cluster = world.cluster
    with pytest.raises(QuiverlogError) as caught:
        world.play(cluster.retrying(lambda: cluster.topic("t"), timeout_s=8.0))
    assert world.now_s <= 8.0
    assert world.answers >= 4
    assert all(seconds <= 0.5 for seconds in world.silent_s[1:]), "once silent, it gets less time"
    message = str(caught.value)
    assert f"{ONE} did not answer in time." in message
    assert f"{THREE} answers, but reaches no controller." in message
    assert "outcome is unknown" not in message, "nothing was to be changed"


def test_a_change_that_nothing_was_answered_to_may_hold() -> None:
    world = Stopped()
    with pytest.raises(RequestTimedOut, match=r"did not answer in time\. The outcome is unknown"):
        world.play(world.cluster.call_any(m.DeleteTopicsRequest(names=["t"]), is_read=False))


def test_silent_brokers_are_asked_after_those_that_failed_otherwise() -> None:
    known = KnownBrokers()
    known.failed(ONE, ALL, is_silent=True)
    known.failed(TWO, ALL)
    assert known.order(ALL) == [THREE, TWO, ONE]
    known.failed(THREE, ALL)
    assert known.order(ALL) == [TWO, THREE, ONE]
    known.answered(ONE)
    assert known.order(ALL) == [ONE, TWO, THREE]


def test_a_refused_login_is_tried_at_the_others_and_final_where_none_takes_it() -> None:
    world = World()
    refused = AuthenticationFailed("one refuses the login.")
    world.answers[ONE] = refused
    assert world.refresh() == 10
    assert world.asked == [ONE, TWO]
    assert world.refresh() == 10
    assert world.asked == [TWO], "not again while another answers"
    world.answers = {ONE: refused, TWO: GONE, THREE: refused}
    with pytest.raises(AuthenticationFailed, match="one refuses") as found:
        world.refresh()
    assert not found.value.retriable
    assert "gone" in found.value.message


def test_an_operation_without_time_for_a_second_try_drops_what_is_stale() -> None:
    """Such a one failed before, and so did each after it, at the same leader of before."""
    world = World()
    cluster = world.cluster
    cluster.metadata = replace(cluster.metadata, topics={"flights": None})
    tries = []

    def attempt() -> Operation[None]:
        tries.append(1)
        raise NotLeader("broker 3 leads it")
        yield Sleep(0)

    with pytest.raises(NotLeader):
        world.play(cluster.retrying(attempt, timeout_s=1e-9))
    assert (len(tries), cluster.metadata.topics) == (1, {})
