"""Warnings about rows of transactions that wait, and when they come."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

import quiverlog
from quiverlog.cli.app import cli
from quiverlog.cli.console.staged_rows import staging_rooms, staging_warnings
from quiverlog.cli.tools import doctor
from quiverlog.client.transactions import overview
from quiverlog.client.transactions.overview import StagingRoom, WaitingRows
from quiverlog.errors import RequestTimedOut
from tests.support.scripted_broker import ScriptedBroker

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def waiting(seconds: float, topic: str = "t", reason: str = "NotLeader") -> WaitingRows:
    return WaitingRows(topic, 3, 10, NOW - timedelta(seconds=seconds), reason, "why", 1)


def texts(*rooms: StagingRoom) -> list[str]:
    return [finding for finding, _ in staging_warnings(rooms, NOW)]


def test_nothing_is_said_of_rows_that_are_on_their_way() -> None:
    assert texts() == []
    assert texts(StagingRoom(1, 80, 100, 3_600.0, (waiting(60),))) == []
    assert texts(StagingRoom(1, 0, 0, 0.0, (waiting(60),))) == []


def test_a_publish_that_waits_for_longer_than_a_minute() -> None:
    room = StagingRoom(1, 0, 100, 0.0, (waiting(61), waiting(90, "u", ""), waiting(60, "v")))
    other = StagingRoom(2, 0, 100, 0.0, (waiting(75, ""),))
    (one,) = texts(room, other)
    assert one == "Committed rows wait for 3 partitions, the longest for 90 s for u-3."
    (one,) = texts(StagingRoom(1, 0, 0, 0.0, (waiting(61, ""),)))
    assert one.endswith("1 partition, the longest for 61 s for a deleted topic-3 (NotLeader: why).")


def test_an_internal_partition_that_a_broker_cannot_use() -> None:
    room = StagingRoom(3, 0, 0, 0.0, unserved=("__transactions-5: rows 7 to 7 are odd.",))
    ((finding, advice),) = staging_warnings([room], NOW)
    assert finding == "Broker 3 cannot use __transactions-5: rows 7 to 7 are odd."
    assert "operating.md" in advice


def test_room_that_is_nearly_full_and_rows_that_lie_for_an_hour() -> None:
    (one,) = texts(StagingRoom(1, 81, 100, 0.0), StagingRoom(2, 80, 100, 0.0))
    assert one == "The room for staged rows is nearly full: broker 1 (81 B of 100 B)."
    (one,) = texts(StagingRoom(1, 1, 100, 3_600.0), StagingRoom(2, 1, 100, 3_601.0))
    assert one == "Rows have been staged for more than an hour: broker 2 (3,601 s)."
    assert len(texts(StagingRoom(1, 81, 100, 4_000.0, (waiting(61),)))) == 3
    assert all(
        "quiverlog transaction list" in advice
        for _, advice in staging_warnings([StagingRoom(1, 81, 100, 4_000.0, (waiting(61),))], NOW)
    )


def test_brokers_are_asked_only_where_there_was_a_transaction() -> None:
    def run(_operation: object) -> Any:
        raise RequestTimedOut("silent")

    metadata = SimpleNamespace(brokers={2: None, 1: None})
    client: Any = SimpleNamespace(run=run, cluster=SimpleNamespace(metadata=metadata))
    assert staging_rooms(client, ["t"]) == ([], [])
    assert staging_rooms(client, ["t", "__staged"]) == ([], [1, 2])


# --- commands -------------------------------------------------------------------------------------
@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> Iterator[ScriptedBroker]:
    """A broker that has had a transaction, with rows that wait for longer than a minute."""
    wait = WaitingRows("t", 0, 10, datetime.now(UTC) - timedelta(seconds=100), "", "", 0)

    def describe_staging(_cluster: object) -> Any:
        yield from ()
        return [StagingRoom(0, 0, 100, 0.0, (wait,))], []

    with ScriptedBroker() as broker:
        with quiverlog.connect(broker.bootstrap) as client:
            client.create_topic("t", "id long")
            client.create_topic("u", "id long")
            with client.transaction("app") as tx:
                tx.send("t", {"id": 1})
        monkeypatch.setattr(overview, "describe_staging", describe_staging)
        yield broker


def command(broker: ScriptedBroker, *words: str) -> str:
    result = CliRunner().invoke(cli, [*words, "-b", broker.bootstrap])
    # 1: the scripted broker has not the address that it advertises.
    assert result.exit_code in (0, 1), result.output
    return result.stdout


def test_status_and_doctor_warn(broker: ScriptedBroker) -> None:
    expected = "Committed rows wait for 1 partition"
    assert expected in command(broker, "cluster", "status")
    found = json.loads(command(broker, "cluster", "status", "--format", "json"))
    (one,) = [one for one in found["findings"] if expected in one["text"]]
    assert one["severity"] == "warning"
    (one,) = [one for one in doctor._brokers(broker.bootstrap, 10.0) if one.check == "transactions"]
    assert (one.status, one.detail[: len(expected)]) == (doctor.WARNING, expected)


def test_a_topic_shows_the_rows_that_wait_for_it(broker: ScriptedBroker) -> None:
    assert "committed rows that wait to be published" in command(broker, "topic", "describe", "t")
    assert "wait to be published" not in command(broker, "topic", "describe", "u")
    t, u = json.loads(command(broker, "topic", "describe", "t", "u", "--format", "json"))
    assert [(one["partition"], one["rows"]) for one in t["waiting"]] == [(0, 10)]
    assert u["waiting"] == []
