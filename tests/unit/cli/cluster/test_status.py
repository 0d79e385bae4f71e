"""`cluster status` as a page and repeated, and what `cluster brokers` shows of each broker."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from unittest.mock import Mock

import pytest
from click.testing import CliRunner

from quiverlog.cli import main
from quiverlog.cli.cluster import status
from quiverlog.cli.cluster.detail import brokers_json, print_brokers
from quiverlog.cli.cluster.status import status_page
from quiverlog.cli.console import probes
from quiverlog.cli.console.cluster_health import findings
from quiverlog.cli.console.probes import Probe, Seen
from quiverlog.errors import ConnectionFailed
from tests.unit.cli.console.test_cluster_health import broker, cluster


def seen(**changes: Any) -> Seen:
    found = cluster(room_bytes=3 << 30, load=0.125, received_bytes_per_s=0, **changes)
    two = replace(found, reported_by=2, room_bytes=5, load=1.5, sent_bytes_per_s=2048)
    return Seen(found, [Probe("h:9001", found), Probe("h:9002", two), Probe("h:9003", None, "no")])


# --- each broker's own figures --------------------------------------------------------------------
def test_each_broker_s_own_answer_has_its_room_and_load(capsys: pytest.CaptureFixture[str]) -> None:
    print_brokers(seen())
    one, two, three = (line.split() for line in capsys.readouterr().out.splitlines()[-3:])
    assert one[-5:] == ["3.0", "GiB", "12%", "0", "B"]
    assert two[-7:] == ["5", "B", "150%", "0", "B", "2.0", "KiB"]
    assert three[-1] != "B", "it did not answer"
    figures = [
        (one["room_bytes"], one["load"], one["sent_bytes_per_s"]) for one in brokers_json(seen())
    ]
    assert figures == [(3 << 30, 0.125, None), (5, 1.5, 2048), (None, None, None)]


# --- the page -------------------------------------------------------------------------------------
@pytest.fixture
def looked_at(monkeypatch: pytest.MonkeyPatch) -> list[Seen | None]:
    """What `look_once` gives, the last for ever."""
    given: list[Seen | None] = []
    monkeypatch.setattr(probes, "look_once", lambda *_: given[-1])
    monkeypatch.setattr(status, "_look_at_topics", lambda _seen, _client: None)
    return given


def test_the_page_has_the_judgement_of_the_command(
    looked_at: list[Seen | None], capsys: pytest.CaptureFixture[str]
) -> None:
    looked_at.append(
        seen(brokers=tuple(replace(broker(n, fenced=n == 2), rack="<b>") for n in (1, 2, 3)))
    )
    page = status_page("h:9001", None, None, "")
    assert "<title>quiverlog: not healthy</title>" in page
    assert looked_at[-1] is not None
    for one in findings(looked_at[-1].found):
        assert one.text in page
    assert "<td>takes clients</td>" in page
    assert "&lt;b&gt;" in page
    assert "<b>" not in page


def test_a_healthy_cluster_has_nothing_to_do(looked_at: list[Seen | None]) -> None:
    looked_at.append(Seen(cluster()))
    page = status_page("h:9001", None, None, "fenced: no controller")
    assert "<title>quiverlog: healthy</title>" in page
    assert "<p>Nothing.</p>" in page
    assert "<td>fenced: no controller</td>" in page


def test_other_brokers_are_judged_by_the_controller(looked_at: list[Seen | None]) -> None:
    # Their addresses for clients need not lead to them from here: those of containers do not.
    looked_at.append(seen())
    page = status_page("h:9001", None, None, "")
    assert "<title>quiverlog: healthy</title>" in page
    assert "<td>3 of 3 live, 2 answer this machine</td>" in page
    assert "<p>Nothing.</p>" in page


def test_a_broker_that_starts_shows_why_it_takes_no_clients(looked_at: list[Seen | None]) -> None:
    assert "<p>This broker: recovering.</p>" in status_page("", None, None, "recovering")
    looked_at.append(None)
    assert "This broker: it does not answer itself" in status_page("h:9001", None, None, "")


# --- again and again ------------------------------------------------------------------------------
@pytest.fixture
def moments(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """What is found at each look; Ctrl-C comes after the last."""
    given: list[Any] = []

    def look(_bootstrap: str, _timeout_s: float) -> Seen:
        if isinstance(now := given.pop(0), Exception):
            raise now
        assert isinstance(now, Seen)
        return now

    def sleep(seconds: float) -> None:
        assert seconds in (0.5, 2.0)
        if not given:
            raise KeyboardInterrupt

    monkeypatch.setattr(status, "_seen", look)
    monkeypatch.setattr(status.time, "sleep", sleep)
    return given


def test_a_watch_goes_on_while_nothing_answers(
    moments: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    moments += [Seen(cluster()), ConnectionFailed("down"), Seen(cluster(offline=1))]
    assert main(["cluster", "status", "--watch", "500ms"]) == 130
    captured = capsys.readouterr()
    assert captured.out.count("every 0.5 s") == 2
    assert "Nothing to do." in captured.out
    assert "without a leader" in captured.out
    assert "quiverlog: down" in captured.err


def test_a_watch_ends_when_its_reader_does(
    moments: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    moments += [Seen(cluster()), Seen(cluster())]
    monkeypatch.setattr(status, "clear_screen", Mock(side_effect=BrokenPipeError))
    ended = CliRunner().invoke(status.status, ["--watch", "500ms"])
    assert isinstance(ended.exception, BrokenPipeError)
    assert len(moments) == 1


def test_a_watch_without_a_span_asks_every_two_seconds(
    moments: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    moments.append(Seen(cluster()))
    assert main(["cluster", "status", "--watch"]) == 130
    assert ", every 2 s" in capsys.readouterr().out


def test_a_watch_is_for_people(moments: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cluster", "status", "--watch", "1s", "--format", "json"]) == 2
    assert "--watch is for a table" in capsys.readouterr().err


def test_one_look_ends_with_the_judgement(
    moments: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    moments += [Seen(cluster()), Seen(cluster(offline=1))]
    assert main(["cluster", "status", "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["is_healthy"] is True
    assert main(["cluster", "status"]) == 1
