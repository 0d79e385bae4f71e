"""`quiverlog transaction`, against the real node."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import click
import pyarrow as pa
import pytest

import quiverlog
from quiverlog.cli.app import run
from quiverlog.cli.cluster import transaction as commands
from quiverlog.client.transactions.overview import StagedPart, TransactionDetail, WaitingRows
from quiverlog.limits import TRANSACTIONAL_ID_CHARS_MAX
from tests.support.scripted_broker import ScriptedBroker


@pytest.fixture
def broker() -> Iterator[ScriptedBroker]:
    with ScriptedBroker() as broker:
        yield broker


@pytest.fixture
def opened(broker: ScriptedBroker) -> Iterator[str]:
    """The id of a transaction that is open, with one staged row."""
    with quiverlog.connect(broker.bootstrap) as client:
        client.create_topic("t", pa.schema({"id": pa.int64()}), if_not_exists=True)
        tx = client.transaction("app one")
        tx.send("t", {"id": 1}).result(20.0)
        yield "app one"
        with contextlib.suppress(quiverlog.QuiverlogError):  # A test may have ended it.
            tx.abort()


def command(
    broker: ScriptedBroker, capsys: pytest.CaptureFixture[str], *words: str
) -> tuple[int, str, str]:
    code = run(["transaction", *words, "-b", broker.bootstrap])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_a_list(broker: ScriptedBroker, opened: str, capsys: Any) -> None:
    code, out, err = command(broker, capsys, "list", "--state", "open", "--format", "json")
    assert (code, err) == (0, "")
    (one,) = json.loads(out)
    assert (one["transactional_id"], one["state"], one["last_sequence"]) == (opened, "open", None)
    assert bytes.fromhex(one["instance"])
    code, out, _ = command(broker, capsys, "list")
    assert code == 0
    assert out.split()[:4] == ["ID", "STATE", "EPOCH", "LAST"]
    assert "app one" in out
    code, out, _ = command(broker, capsys, "list", "--state", "closed", "--format", "json")
    assert json.loads(out) == []
    code, _, err = command(broker, capsys, "list", "--state", "opened")
    assert code == 2
    assert "publishing" in err


def test_one_is_described_ended_and_forgotten(
    broker: ScriptedBroker, opened: str, capsys: Any
) -> None:
    code, out, _ = command(broker, capsys, "describe", opened, "--format", "json")
    found = json.loads(out)
    assert (code, found["info"]["state"], found["timeout_s"]) == (0, "open", 900.0)
    assert [one["rows"] for one in found["staged"]] == [1]
    assert (found["waits"], found["silent_brokers"]) == ([], [])
    code, out, _ = command(broker, capsys, "describe", opened)
    assert "state" in out
    assert "staged" in out
    assert "waits" not in out
    for words in (("abort", opened), ("forget", opened)):
        code, _, err = command(broker, capsys, *words)
        assert code == 2
        assert "give --yes" in err
    assert command(broker, capsys, "abort", opened, "--yes")[:2] == (
        0,
        "closed app one: nothing of its epoch is committed any more.\n",
    )
    _, out, _ = command(broker, capsys, "describe", opened, "--format", "json")
    assert json.loads(out)["info"]["state"] == "closed"
    assert command(broker, capsys, "forget", opened, "-y")[:2] == (0, "forgot app one.\n")


@pytest.mark.parametrize("words", [["describe"], ["abort", "--yes"], ["forget", "--yes"]])
def test_ids_that_are_unknown_or_none(
    broker: ScriptedBroker, capsys: Any, words: list[str]
) -> None:
    longest = "x" * TRANSACTIONAL_ID_CHARS_MAX
    code, _, err = command(broker, capsys, *words, longest)
    assert code == 1
    assert "x" * 20 in err
    for bad in ("", longest + "x"):
        code, _, err = command(broker, capsys, *words, bad)
        assert code == 2
        assert f"1 to {TRANSACTIONAL_ID_CHARS_MAX} characters" in err


def test_completion_has_the_ids(broker: ScriptedBroker, opened: str) -> None:
    context = click.Context(commands.transaction)
    context.params = {"bootstrap": broker.bootstrap}
    parameter: Any = None
    assert commands._complete_ids(context, parameter, "app") == [opened]
    assert commands._complete_ids(context, parameter, "b") == []
    context.params["bootstrap"] = "127.0.0.1:1"
    assert commands._complete_ids(context, parameter, "") == []


def test_what_waits_and_what_is_lost_is_shown(capsys: Any) -> None:
    since = datetime.now(UTC) - timedelta(seconds=90)
    detail = TransactionDetail(
        "app", None, 0.0, False,
        (StagedPart(3, 2, 10, 2048, 95.0, 7),),
        (
            WaitingRows("t", 4, 10, since, "NotLeader", "t-4 has no leader now.", 2),
            WaitingRows("", 0, 1, since, "", "", 2),
        ),
        (1,),
    )  # fmt: skip
    commands._print_detail(detail)
    out = capsys.readouterr().out
    assert "no broker that answered coordinates it" in out
    lines = [line.split() for line in out.splitlines()]
    assert ["3", "2", "10", "2.0", "KiB", "95", "s", "7"] in lines
    (led,) = [line for line in lines if line[:3] == ["t", "4", "10"]]
    assert 90 <= int(led[3]) < 120
    assert " ".join(led[4:]) == "s NotLeader: t-4 has no leader now."
    assert ["(deleted)", "0", "1"] in [line[:3] for line in lines]
    commands._print_silent(detail.silent)
    assert "did not answer: 1." in capsys.readouterr().err
