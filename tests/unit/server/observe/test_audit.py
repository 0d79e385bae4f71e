"""The audit log: what is alike is counted, and what is not written is counted too."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from quiverlog.server.observe import audit as module
from quiverlog.server.observe.audit import WINDOW_S, AuditLog

DENIED = {"event": "denied", "principal": "user:alice", "resource": "topic t", "result": "denied"}
CHANGE = {"event": "change", "resource": "topic t", "result": "ok"}


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


def open_log(path: Path, clock: Clock) -> AuditLog:
    moment = datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC)
    return AuditLog(7, str(path), clock_s=clock, now=lambda: moment)


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_line_has_its_time_its_broker_and_its_fields(tmp_path: Path, clock: Clock) -> None:
    path = tmp_path / "audit.jsonl"
    log = open_log(path, clock)
    log.take(CHANGE)
    log.close()
    assert lines(path) == [
        {"time": "2026-01-02T03:04:05.000006+00:00", "broker": 7, **CHANGE},
    ]
    assert os.stat(path).st_mode & 0o777 == 0o600
    assert log.lost_total == 0


def test_denials_that_are_alike_are_one_line_and_then_a_count(tmp_path: Path, clock: Clock) -> None:
    path = tmp_path / "audit.jsonl"
    log = open_log(path, clock)
    for _ in range(5):
        log.take({**DENIED, "count": 2})
    log.take({**DENIED, "resource": "topic u"})
    clock.now_s += WINDOW_S - 1
    log.tick()
    clock.now_s += 1
    log.tick()
    log.take(DENIED)
    log.close()
    found = [(one["resource"], one.get("count", 1)) for one in lines(path)]
    assert found == [("topic t", 2), ("topic u", 1), ("topic t", 8), ("topic t", 1)]


def test_changes_and_logins_are_each_a_line_and_failed_logins_are_counted(
    tmp_path: Path, clock: Clock
) -> None:
    path = tmp_path / "audit.jsonl"
    log = open_log(path, clock)
    for _ in range(3):
        log.take(CHANGE)
        log.take({"event": "login", "result": "ok"})
        log.take({"event": "login", "result": "AUTHENTICATION_FAILED"})
    log.close()
    found = [(one["event"], one["result"], one.get("count", 1)) for one in lines(path)]
    assert found.count(("change", "ok", 1)) == 3
    assert found.count(("login", "ok", 1)) == 3
    assert found[-1] == ("login", "AUTHENTICATION_FAILED", 2)


def test_more_kinds_than_there_is_room_for_are_counted(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "KINDS_MAX", 3)
    path = tmp_path / "audit.jsonl"
    log = open_log(path, clock)
    for number in range(10):
        log.take({**DENIED, "resource": f"topic {number}"})
    assert log.lost_total == 7
    log.tick()
    log.close()
    assert lines(path)[-1] == {
        "time": "2026-01-02T03:04:05.000006+00:00",
        "broker": 7,
        "event": "lost",
        "count": 7,
    }


def test_reads_that_are_alike_are_counted_and_take_no_place_of_denials(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "KINDS_MAX", 2)
    path = tmp_path / "audit.jsonl"
    log = open_log(path, clock)
    read = {"event": "allowed", "result": "ok", "principal": "user:alice"}
    for name in ("a", "b", "b", "c"):
        log.take({**read, "resource": f"topic {name}"})
    log.take(DENIED)
    assert log.lost_total == 1
    clock.now_s += WINDOW_S
    log.tick()
    log.close()
    found = [(one["event"], one.get("resource"), one.get("count", 1)) for one in lines(path)]
    assert found == [
        ("allowed", "topic a", 1),
        ("allowed", "topic b", 1),
        ("lost", None, 1),
        ("denied", "topic t", 1),
        ("allowed", "topic b", 1),
    ]


def test_changes_that_fail_are_counted_and_take_no_place_of_those_that_are_made(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "KINDS_MAX", 2)
    path = tmp_path / "audit.jsonl"
    log = open_log(path, clock)
    for name in ("a", "a", "b", "c", "d"):
        log.take({**CHANGE, "resource": f"topic {name}", "result": "UNKNOWN_TOPIC"})
    log.take(CHANGE)
    log.take(DENIED)
    log.close()
    found = [(one["event"], one.get("result"), one.get("count", 1)) for one in lines(path)]
    assert found == [
        ("change", "UNKNOWN_TOPIC", 1),
        ("change", "UNKNOWN_TOPIC", 1),
        ("lost", None, 2),
        ("change", "ok", 1),
        ("denied", "denied", 1),
        ("change", "UNKNOWN_TOPIC", 1),
    ]


def test_a_pipe_that_is_not_read_holds_up_no_end(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CLOSE_S", 0.1)
    path = tmp_path / "pipe"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    log = open_log(path, clock)
    for _ in range(100):
        log.take({**CHANGE, "resource": "x" * 10_000})
    log.close()
    assert log._thread.is_alive(), "it is stuck in a write"
    os.close(reader)
    log._thread.join(10)
    assert not log._thread.is_alive()
    os.close(log._descriptor)


def test_lines_that_cannot_be_written_are_counted_and_reported_later(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "audit.jsonl"
    log = open_log(path, clock)
    write = AuditLog._write
    failing = [True]

    def fail(self: AuditLog, line: bytes) -> None:
        if failing[0]:
            raise OSError(28, "no room")
        write(self, line)

    monkeypatch.setattr(AuditLog, "_write", fail)
    log.take(CHANGE)
    while log.lost_total < 1:
        pass
    failing[0] = False
    log.take(CHANGE)
    log.close()
    assert [one["event"] for one in lines(path)] == ["lost", "change"]
    assert log.lost_total == 1


def test_a_full_queue_loses_lines_and_counts_them(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LINES_WAITING_MAX", 2)
    monkeypatch.setattr(AuditLog, "_write_all", lambda self: None)
    log = open_log(tmp_path / "audit.jsonl", clock)
    for _ in range(5):
        log.take(CHANGE)
    assert log.lost_total == 3


def test_a_file_that_was_moved_away_is_opened_anew(tmp_path: Path, clock: Clock) -> None:
    path, old = tmp_path / "audit.jsonl", tmp_path / "audit.1"
    log = open_log(path, clock)
    log.take(CHANGE)
    while not path.read_text():
        pass
    path.rename(old)
    log.take(CHANGE)
    log.close()
    assert (len(lines(old)), len(lines(path))) == (1, 1)


def test_a_file_that_cannot_be_opened_is_refused_at_once(tmp_path: Path, clock: Clock) -> None:
    with pytest.raises(OSError, match="No such file"):
        open_log(tmp_path / "missing" / "audit.jsonl", clock)
