"""What is typed to move partitions: rates, targets, files of plans, and what cannot be meant."""

from __future__ import annotations

from collections.abc import Coroutine
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import click
import pytest

from quiverlog.cli.app import run
from quiverlog.cli.console.failures import CommandFailed
from quiverlog.cli.moves.options import moving_options
from quiverlog.cli.moves.placement import Placement, check_room
from quiverlog.cli.moves.plan_file import plan_text, read_plan
from quiverlog.cli.moves.reassign import How, carry_out
from quiverlog.client.admin.replica_sizes import ReplicaSizes
from quiverlog.core.placement.moves import Move, PlanBroker, PlanPartition
from quiverlog.server.net.replies import _PARTS
from quiverlog.wire.registry import APIS

BROKERS = [PlanBroker(n, free_bytes=1_000) for n in (1, 2, 3)]
PARTITIONS = [PlanPartition("t", n, (1, 2), 600) for n in range(3)]


def placement() -> Placement:
    return Placement(BROKERS, PARTITIONS, {}, ReplicaSizes())


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("20MB/s", 20_000_000),
        ("20mb", 20_000_000),
        ("8MiB/s", 8 << 20),
        ("1.5 KB/s", 1_500),
        ("7", 7),
        ("none", 0),
        ("0", 0),
    ],
)
def test_rates(text: str, rate: int) -> None:
    seen: list[int] = []

    @click.command()
    @moving_options
    def command(throttle: int, **_: object) -> None:
        seen.append(throttle)

    command.main(["--throttle", text], standalone_mode=False)
    assert seen == [rate]


@pytest.mark.parametrize("text", ["fast", "-1", "20 parsecs", "1e9", "", "nan", "0.1B", "9" * 30])
def test_what_is_no_rate(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["cluster", "rebalance", f"--throttle={text}"]) == 2
    assert "is no rate" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        ["t", "--to", "0=1,2", "--replication-factor", "3"],
        ["--to", "0=1,2"],
        ["t", "--to", "0=1,2", "--to", "0=2,1"],
        ["t", "--to", "x=1"],
        ["t", "--to", "0="],
        ["t", "--to", "-1=2"],
        ["t", "--to", "0=99999999999"],
        ["t", "--replication-factor", "0"],
        ["t", "--replication-factor", "16"],
        ["t", "--replication-factor", "2", "--partition", "0"],
        ["t", "--from", "1", "--cancel"],
        ["t", "--topic", "u"],
    ],
)
def test_senseless_options_are_refused_before_a_broker_is_asked(words: list[str]) -> None:
    assert run(["partition", "reassign", *words, "-b", "127.0.0.1:1"]) == 2


def test_a_plan_comes_back_from_its_file(tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    moves = [Move("t", 0, (1, 2), (2, 3), 600), Move("t", 2, (1, 2), (2, 1), 600)]
    file.write_text(plan_text(moves))
    assert read_plan(file, placement()) == moves
    file.write_text(plan_text([]))
    assert read_plan(file, placement()) == []


def test_a_plan_for_what_is_already_so_is_empty(tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    file.write_text(plan_text([Move("t", 1, (9,), (1, 2))]))
    assert read_plan(file, placement()) == []


def test_a_disk_takes_what_it_has_room_for_and_no_byte_more() -> None:
    one = Move("t", 0, (1, 2), (1, 3), 600)
    check_room(placement(), [one])
    with pytest.raises(CommandFailed, match=r"Broker 3 has room for 1000 B, and 1\.2 KiB"):
        check_room(placement(), [one, Move("t", 1, (1, 2), (3, 2), 600)])


def test_a_broker_counts_errors_of_the_parts_that_have_some() -> None:
    """A field `topics` whose entries have no code ended the connection."""
    for number, spec in APIS.items():
        if _PARTS[number]:
            response = spec.response()
            assert isinstance(getattr(response, _PARTS[number]), list)
    named = {spec.api.name: _PARTS[number] for number, spec in APIS.items()}
    assert (named["PRODUCE"], named["METADATA"]) == ("partitions", "topics")
    assert named["DESCRIBE_REPLICAS"] == named["REASSIGN_PARTITIONS"] == ""


@pytest.mark.parametrize("asked", [1, 2, 3])
def test_ctrl_c_prints_that_moves_which_have_begun_go_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], asked: int
) -> None:
    """From the first request on; the controller is asked first whether it would refuse."""
    left = [None] * asked

    class Interrupted:
        cluster = None

        def run(self, coroutine: Coroutine[Any, Any, None]) -> None:
            coroutine.close()
            if not left:
                raise KeyboardInterrupt
            left.pop()

    monkeypatch.setattr("quiverlog.cli.moves.placement.look", lambda _: placement())
    moves = [Move(topic, 0, (1,), (2,)) for topic in ("a", "b")]
    how = How(wait_s=60.0, ignore_room=True, output_format="json")
    with pytest.raises(KeyboardInterrupt):
        carry_out(Interrupted(), lambda _: moves, how)  # type: ignore[arg-type]
    is_begun = asked >= len(moves)
    assert ("`quiverlog partition reassign --status`" in capsys.readouterr().err) is is_begun


def test_ctrl_c_prints_that_a_decommissioning_goes_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Interrupted:
        cluster = None

        def run(self, coroutine: Coroutine[Any, Any, None]) -> None:
            coroutine.close()
            raise KeyboardInterrupt

    monkeypatch.setattr(
        "quiverlog.cli.cluster.decommission.open_client",
        lambda *_, **__: nullcontext(Interrupted()),
    )
    assert run(["cluster", "decommission", "4"]) == 130
    stderr = capsys.readouterr().err
    assert "broker 4" in stderr
    assert "--cancel calls it off" in stderr
