"""How many requests of several steps are half way through their answers at the same time."""

from __future__ import annotations

from quiverlog.node.metrics import NodeMetrics
from quiverlog.node.outbox import Outbox
from quiverlog.node.tasks import COMPUTING_MAX, STEPS_PER_CALL, Call, Steps, Tasks
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
        tasks.start(Call(1, request, NOW), counting.steps())
    calls = 0
    while tasks.busy:
        tasks.run(NOW)
        calls += 1
        assert calls <= total * STEPS, "the tasks make no progress"
    assert counting.ended == total
    assert counting.half_made_most == COMPUTING_MAX
    answered = [effect.correlation_id for effect in outbox.take()]  # type: ignore[union-attr]
    assert answered == list(range(1, total + 1)), "who came first is answered first"


def test_long_requests_of_one_connection_hold_up_no_other() -> None:
    outbox = Outbox(NodeMetrics())
    tasks = Tasks(outbox, fail=lambda connection, request, error: None)
    counting = Counting()
    total = 10 * COMPUTING_MAX
    for number in range(1, total + 1):
        tasks.start(Call(1, m.MetadataRequest(correlation_id=number), NOW), counting.steps())
    tasks.run(NOW)

    def short() -> Steps:
        yield None
        return m.MetadataResponse()

    tasks.start(Call(2, m.MetadataRequest(correlation_id=9_999), NOW), short())
    calls = 0
    while not any(getattr(effect, "connection_id", 0) == 2 for effect in outbox.effects):
        tasks.run(NOW)
        calls += 1
        assert calls <= STEPS, "it waits for the others' answers"
    assert calls <= 2 * COMPUTING_MAX // STEPS_PER_CALL + 2
    while tasks.busy:
        tasks.run(NOW)
    assert counting.ended == total
