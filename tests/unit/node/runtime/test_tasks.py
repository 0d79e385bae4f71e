"""How many requests of several steps are half way through their answers at the same time."""

from __future__ import annotations

import pytest

from quiverlog.errors import BrokerShuttingDown, QuiverlogError
from quiverlog.node.runtime.effects import Respond
from quiverlog.node.runtime.metrics import NodeMetrics
from quiverlog.node.runtime.outbox import Outbox
from quiverlog.node.runtime.tasks import (
    COMPUTING_MAX,
    COMPUTING_PER_CONNECTION_MAX,
    STEPS_PER_CALL,
    Call,
    Future,
    Steps,
    Tasks,
)
from quiverlog.types import Now
from quiverlog.wire import messages as m

NOW = Now(1, 1)
STEPS = 2 * COMPUTING_MAX


class Counting:
    """Tasks of many steps that count how many of them have begun and not ended."""

    def __init__(self) -> None:
        self.half_made = self.half_made_most = self.ended = 0

    def steps(self) -> Steps:
        self.half_made += 1
        self.half_made_most = max(self.half_made_most, self.half_made)
        for _ in range(STEPS - 1):
            yield None
        self.half_made -= 1
        self.ended += 1
        return m.MetadataResponse()


def test_requests_that_come_together_are_not_all_half_answered_at_once() -> None:
    outbox = Outbox(NodeMetrics())
    tasks = Tasks(outbox, fail=lambda connection, request, error: None)
    counting = Counting()
    total = 10 * COMPUTING_MAX
    for number in range(1, total + 1):
        request = m.MetadataRequest(correlation_id=number)
        # Of as many connections as there are places, so that each has one.
        tasks.start(Call(number % COMPUTING_MAX, request, NOW), counting.steps())
    calls = 0
    while tasks.busy:
        tasks.run(NOW)
        calls += 1
        assert calls <= total * STEPS, "the tasks make no progress"
    assert counting.ended == total
    assert counting.half_made_most == COMPUTING_MAX
    answered = [effect.correlation_id for effect in outbox.take()]  # type: ignore[union-attr]
    assert answered == list(range(1, total + 1)), "the first request is answered first"


class Asked:
    """Tasks with what was answered and refused, by connection."""

    def __init__(self) -> None:
        self.outbox = Outbox(NodeMetrics())
        self.refused: list[tuple[int, QuiverlogError]] = []
        self.tasks = Tasks(self.outbox, lambda c, _request, error: self.refused.append((c, error)))
        self.number = 0

    def ask(self, connection: int, steps: Steps, *, bare: bool = True) -> None:
        self.number += 1
        request = m.MetadataRequest(correlation_id=self.number)
        self.tasks.start(Call(connection, request, NOW), steps, bare=bare)

    def run(self) -> list[int]:
        """One call of the node; the connections that were answered."""
        self.tasks.run(NOW)
        return [e.connection_id for e in self.outbox.take() if isinstance(e, Respond)]


def one_step() -> Steps:
    return m.MetadataResponse()
    yield None


def test_one_connection_does_not_keep_another_from_beginning() -> None:
    asked, counting = Asked(), Counting()
    for _ in range(100):
        asked.ask(1, counting.steps())
    asked.run()
    assert counting.half_made == COMPUTING_PER_CONNECTION_MAX
    asked.ask(2, one_step())
    assert asked.run() == [2], "in the very next call"


def test_connections_begin_in_turns() -> None:
    asked, counting = Asked(), Counting()
    for connection in range(1, 9):
        for _ in range(100):
            asked.ask(connection, counting.steps())
    asked.ask(9, one_step())
    answered: list[int] = []
    for _ in range(2 * COMPUTING_MAX * STEPS // STEPS_PER_CALL):
        answered += asked.run()
        if 9 in answered:
            break
    # All places may be taken by then: it waits for one of the first to end, not for all of them.
    assert answered.index(9) <= COMPUTING_MAX
    assert counting.half_made_most <= COMPUTING_MAX


def test_what_has_not_begun_ends_with_its_connection() -> None:
    asked, counting = Asked(), Counting()
    for _ in range(100):
        asked.ask(1, counting.steps())
    asked.run()
    asked.tasks.drop(1)
    assert asked.tasks.live == COMPUTING_PER_CONNECTION_MAX
    while asked.tasks.busy:
        asked.run()
    assert counting.ended == COMPUTING_PER_CONNECTION_MAX
    assert asked.tasks.live == 0


def test_tasks_that_others_hold_are_not_dropped() -> None:
    asked, counting = Asked(), Counting()
    for number in range(10):
        asked.ask(1, counting.steps(), bare=number % 2 == 0)
    asked.tasks.drop(1)
    assert asked.tasks.live == 5
    while asked.tasks.busy:
        asked.run()
    assert counting.ended == 5


def test_a_stop_refuses_what_has_not_begun() -> None:
    asked, counting = Asked(), Counting()
    for connection in (1, 2):
        for _ in range(50):
            asked.ask(connection, counting.steps())
    for _ in range(2):  # All that may be half way have made a step.
        asked.run()
    begun = counting.half_made
    asked.tasks.refuse(BrokerShuttingDown())
    assert len(asked.refused) == 100 - begun
    assert all(isinstance(error, BrokerShuttingDown) for _, error in asked.refused)
    while asked.tasks.busy:
        asked.run()
    assert counting.ended == begun
    assert asked.tasks.live == 0


def test_a_call_between_ticks_begins_what_is_new_and_goes_on_with_nothing() -> None:
    """A row and the flush that acknowledges it would each wait for a piece of a long answer."""
    tasks = Tasks(Outbox(NodeMetrics()), fail=lambda connection, request, error: None)
    made: list[str] = []

    def steps(name: str) -> Steps:
        for _ in range(STEPS):
            made.append(name)
            yield None
        return m.MetadataResponse()

    tasks.start(Call(1, m.MetadataRequest(correlation_id=1), NOW), steps("old"))
    tasks.begin(NOW)
    assert made == ["old"]
    tasks.start(Call(2, m.MetadataRequest(correlation_id=2), NOW), steps("new"))
    tasks.begin(NOW)
    tasks.begin(NOW)
    assert made == ["old", "new"]
    tasks.run(NOW)
    assert made.count("old") > 1


@pytest.mark.parametrize("waits", [1, STEPS_PER_CALL - 1, STEPS_PER_CALL, STEPS_PER_CALL + 1])
def test_what_is_there_already_is_not_waited_for(waits: int) -> None:
    asked = Asked()

    def steps() -> Steps:
        for number in range(waits):
            future = Future()
            future.set(number, None, NOW)
            assert (yield future.wait) == number
        return m.MetadataResponse()

    asked.ask(1, steps())
    asked.tasks.begin(NOW)
    is_answered = bool(asked.outbox.take())
    assert is_answered == (waits < STEPS_PER_CALL), "each is a step, and these are bounded"
    assert asked.run() == ([] if is_answered else [1])
    assert not asked.tasks.busy


def test_an_error_that_is_there_already_is_raised_in_the_task() -> None:
    asked = Asked()

    def steps() -> Steps:
        future = Future()
        future.set(None, BrokerShuttingDown(), NOW)
        yield future.wait

    asked.ask(1, steps())
    asked.tasks.begin(NOW)
    assert [connection for connection, _ in asked.refused] == [1]


def test_a_task_that_lets_others_have_their_turn_does_not_go_on() -> None:
    asked = Asked()

    def steps() -> Steps:
        yield None
        return m.MetadataResponse()

    asked.ask(1, steps())
    asked.tasks.begin(NOW)
    assert not asked.outbox.take()
    assert asked.run() == [1]
