"""What is logged of waits: after two seconds, once for each thing that is waited for."""

from __future__ import annotations

import logging
import threading
import time

import pytest

from quiverlog.cli.console import waiting
from quiverlog.cli.console.waiting import shown_waits
from quiverlog.client.base.commands import Call, Sleep
from quiverlog.client.base.deadline import within
from quiverlog.client.base.results import Address
from quiverlog.client.base.waits import LOG_AFTER_S, Wait, Waits
from quiverlog.client.cluster.routing import Cluster, Settings
from quiverlog.errors import (
    ConnectionFailed,
    DiskFull,
    NotController,
    QuiverlogError,
    RequestTimedOut,
)
from quiverlog.wire import messages as m
from tests.support.until import until

ONE = Address("one", 9292)


class World:
    def __init__(self) -> None:
        self.now_s = 100.0
        self.cluster = Cluster([ONE], Settings(), clock=lambda: self.now_s, jitter=lambda: 0.5)


def failing(world: World, errors: list[tuple[float, Exception]]) -> None:
    """Run an operation whose tries fail with these errors after these seconds, until one
    succeeds."""
    left = list(errors)

    def attempt():
        if not left:
            return "done"
            yield
        seconds, error = left.pop(0)
        world.now_s += seconds
        raise error

    operation = world.cluster.retrying(attempt)
    command = next(operation)
    while True:
        assert isinstance(command, Sleep)
        try:
            command = operation.send(None)
        except StopIteration:
            return


@pytest.mark.parametrize(
    ("seconds", "is_logged"), [(LOG_AFTER_S - 0.01, False), (LOG_AFTER_S, True), (9.0, True)]
)
def test_a_program_is_warned_of_what_takes_long(
    caplog: pytest.LogCaptureFixture, seconds: float, is_logged: bool
) -> None:
    logging.getLogger("quiverlog.waiting").disabled = False
    failing(World(), [(seconds, DiskFull("no room"))])
    printed = [record.getMessage() for record in caplog.records]
    assert printed == (
        ["no room: trying again until %.0f s from now." % (30 - seconds)] * is_logged
    )


def test_it_is_warned_again_when_something_else_is_waited_for(
    caplog: pytest.LogCaptureFixture,
) -> None:
    logging.getLogger("quiverlog.waiting").disabled = False
    full, lost = DiskFull("no room"), NotController("no controller is known")
    failing(World(), [(3.0, full), (3.0, full), (3.0, lost), (3.0, full), (3.0, lost)])
    printed = [record.getMessage().partition(":")[0] for record in caplog.records]
    assert printed == ["no room", "no controller is known"]


@pytest.mark.parametrize("kind", [RequestTimedOut, ConnectionFailed])
@pytest.mark.parametrize("between", [[], [RequestTimedOut("No answer within 3 s.")]])
def test_the_reason_of_before_is_named_when_the_time_is_up(
    kind: type[QuiverlogError], between: list[QuiverlogError]
) -> None:
    world = World()
    tries = [DiskFull("no room"), *between, kind("No answer within 3 s.")]

    def attempt():
        world.now_s += 30.0 / len(left)
        raise tries.pop(0)
        yield

    left = tuple(tries)
    operation = world.cluster.retrying(attempt)
    next(operation)
    for _ in between:
        operation.send(None)
    with pytest.raises(kind, match=r"^No answer within 3 s\. Before: no room"):
        operation.send(None)


def test_a_failure_that_goes_on_is_logged_once() -> None:
    world = World()
    tries = [ConnectionFailed("gone"), ConnectionFailed("gone")]

    def attempt():
        world.now_s += 15.0
        raise tries.pop(0)
        yield

    operation = world.cluster.retrying(attempt)
    next(operation)
    with pytest.raises(ConnectionFailed) as caught:
        operation.send(None)
    assert caught.value.message == "gone"


def test_a_deadline_bounds_all_operations_together() -> None:
    world = World()
    world.cluster.patience_s = 5.0
    world.cluster.progressed()

    def attempt():
        yield Call(ONE, m.MetadataRequest(), 30.0)

    def timeout_of(seconds_later: float) -> float:
        world.now_s += seconds_later
        command = next(world.cluster.retrying(attempt))
        assert isinstance(command, Call)
        return command.timeout_s

    assert timeout_of(0.0) == 5.0
    assert timeout_of(4.0) == 1.0
    with pytest.raises(RequestTimedOut, match="time is up"):
        timeout_of(1.0)
    world.cluster.progressed()
    assert timeout_of(0.0) == 5.0


def test_what_ends_for_lack_of_time_names_the_silent_broker() -> None:
    """Also where the step that met it went on, and another one finds no time left."""
    world = World()

    def attempt():
        try:
            yield Call(ONE, m.MetadataRequest(), 30.0)
        except RequestTimedOut:
            yield Call(ONE, m.MetadataRequest(), 30.0)

    operation = world.cluster.retrying(attempt, timeout_s=5.0)
    next(operation)
    world.now_s += 5.0
    with pytest.raises(RequestTimedOut, match=r"No answer within 5 s\. one:9292 is silent\."):
        operation.throw(RequestTimedOut("one:9292 is silent."))


def test_a_step_that_is_not_begun_names_what_failed_before() -> None:
    world = World()
    world.cluster.patience_s = 5.0
    world.cluster.progressed()
    failing(world, [(1.0, NotController("no controller is known"))])
    world.now_s += 5.0
    with pytest.raises(RequestTimedOut, match=r"not begun\. no controller is known") as caught:
        next(world.cluster.retrying(lambda: iter_call()))
    assert "outcome is unknown" not in str(caught.value)


def test_longest_shows_what_is_asked_and_what_fails() -> None:
    world = World()
    waits = world.cluster.waits
    assert waits.longest() is None

    def attempt():
        yield Call(ONE, m.MetadataRequest(), 30.0)

    operation = world.cluster.retrying(attempt)
    next(operation)
    world.now_s += 1.0
    found = waits.longest()
    assert found is not None
    assert found.text_until("X") == "waiting for an answer of one:9292 (METADATA) until X."
    assert (found.since_s, found.until_s) == (100.0, 130.0)
    operation.throw(NotController("no controller is known"))
    found = waits.longest()
    assert found is not None
    assert found.text_until("X") == "no controller is known: trying again until X."
    operation.close()
    assert waits.longest() is None, "what was given up is not waited for"


def test_a_wait_without_a_deadline_of_its_own_is_none() -> None:
    operation = within(lambda: 0.0, 5.0, iter_call())
    assert isinstance(next(operation), Call)


def iter_call():
    yield Call(ONE, m.MetadataRequest(), 30.0)


class Other:
    """Waits for something that a test chooses."""

    def __init__(self, since_s: float) -> None:
        self.since_s = since_s
        self.reason = "a"

    def waiting(self) -> Wait | None:
        return Wait(self.since_s, self.since_s + 60.0, self.reason, self.reason)


def test_the_command_line_prints_a_wait_once_and_again_for_another(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting, "_POLL_S", 0.001)
    looked = threading.Semaphore(0)

    class Counted(Waits):
        def longest(self) -> Wait | None:
            looked.release()
            return super().longest()

    waits = Counted(time.monotonic)
    other = Other(time.monotonic() - 1.0)
    waits.others.add(other)
    printed: list[str] = []

    def looks(count: int) -> None:
        for _ in range(count):
            assert looked.acquire(timeout=10)

    def now_printed() -> list[str]:
        printed.extend(capfd.readouterr().err.splitlines())
        return [line.rpartition(" until ")[0] for line in printed]

    with shown_waits(waits, lambda: float("inf")):
        looks(3)
        assert now_printed() == [], "it has not taken two seconds"
        other.since_s -= 1.0
        until(lambda: now_printed() == ["quiverlog: waiting for a"], timeout_s=10)
        looks(5)
        other.reason = "b"
        until(lambda: len(now_printed()) == 2, timeout_s=10)
        other.reason = "a"
        looks(5)
    assert now_printed() == ["quiverlog: waiting for a", "quiverlog: waiting for b"]


def test_a_wait_without_an_end_is_printed_and_so_is_the_recovery(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting, "_POLL_S", 0.001)
    waits = Waits(time.monotonic)
    waits.are_endless = True
    other = Other(time.monotonic() - LOG_AFTER_S)
    waits.others.add(other)
    printed: list[str] = []

    def has_printed(count: int) -> bool:
        printed.extend(capfd.readouterr().err.splitlines())
        return len(printed) >= count

    with shown_waits(waits, lambda: float("inf")):
        until(lambda: has_printed(1), timeout_s=10)
        waits.others.remove(other)
        until(lambda: has_printed(2), timeout_s=10)
    assert printed == ["quiverlog: waiting for a.", "quiverlog: it answers again; reading on."]
