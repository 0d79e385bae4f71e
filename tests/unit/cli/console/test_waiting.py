"""How commands wait: the pace, what they pass over, and when they give up."""

from __future__ import annotations

import itertools

import pytest

from quiverlog.cli.console import waiting
from quiverlog.cli.console.waiting import Patience, polls
from quiverlog.errors import InvalidRequest, NotController, QuiverlogError


class Clock:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 100.0
        monkeypatch.setattr(waiting.time, "monotonic", lambda: self.now_s)
        monkeypatch.setattr(waiting.time, "sleep", self.advance)

    def advance(self, seconds: float) -> None:
        assert seconds >= 0
        self.now_s += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


@pytest.mark.parametrize(("wait_s", "times"), [(0.0, 1), (0.1, 2), (0.25, 2), (1.0, 5)])
def test_polls_go_round_until_the_time_is_over_and_mark_the_last(
    clock: Clock, wait_s: float, times: int
) -> None:
    seen = list(polls(wait_s))
    assert seen == [False] * (times - 1) + [True]
    assert clock.now_s == pytest.approx(100.0 + wait_s), "not longer"


def test_polls_without_a_bound_do_not_end(clock: Clock) -> None:
    assert not any(itertools.islice(polls(), 10_000))


def fails(error: QuiverlogError) -> object:
    raise error


def test_retriable_errors_are_passed_over_until_the_silence_is_too_long(clock: Clock) -> None:
    patience = Patience(silence_s=60.0)
    assert patience.ask(lambda: "there") == "there"
    clock.advance(4.0)
    assert patience.ask(lambda: fails(NotController())) is None
    assert patience.note == ""
    clock.advance(2.0)
    assert patience.note == "; no controller answers"
    clock.advance(54.0)
    assert patience.ask(lambda: fails(NotController())) is None, "after a minute, just about"
    clock.advance(0.1)
    with pytest.raises(NotController):
        patience.ask(lambda: fails(NotController()))
    assert patience.ask(lambda: "back") == "back"
    assert patience.ask(lambda: fails(NotController())) is None, "an answer begins the silence anew"


def test_a_refusal_is_raised_at_once(clock: Clock) -> None:
    with pytest.raises(InvalidRequest):
        Patience().ask(lambda: fails(InvalidRequest("no.")))
