"""`quiverlog group`, against the real node."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import click
import pyarrow as pa
import pytest

import quiverlog
from quiverlog.cli.app import run
from quiverlog.cli.cluster import group as commands
from quiverlog.client.admin.groups import GroupDetail, GroupInfo, GroupList, GroupPartition
from quiverlog.client.client import Client
from quiverlog.errors import InvalidArgument, InvalidGroup
from quiverlog.types import TopicPartition
from quiverlog.wire.group_messages import GroupHeartbeatRequest
from tests.support.scripted_broker import ScriptedBroker

SCHEMA = pa.schema({"id": pa.int64()})


@pytest.fixture(scope="module")
def broker() -> Iterator[ScriptedBroker]:
    """One for all tests, each with a group of its own."""
    with ScriptedBroker() as broker:
        with quiverlog.connect(broker.bootstrap) as client:
            client.create_topic("t", SCHEMA, partitions=2)
            for partition, rows in ((0, 10), (1, 4)):
                batch = pa.table({"id": range(rows)}, schema=SCHEMA)
                with client.producer("t") as producer:
                    producer.send(batch, partition=partition)
        yield broker


@pytest.fixture
def client(broker: ScriptedBroker) -> Iterator[Client]:
    with quiverlog.connect(broker.bootstrap) as client:
        yield client


@pytest.fixture
def name(client: Client, request: pytest.FixtureRequest) -> str:
    """A group that has read half of `t-0` and nothing of `t-1`."""
    group = request.node.name.translate(dict.fromkeys(map(ord, "[]-"), "_"))
    client.alter_group_offsets(group, {TopicPartition("t", 0): 5})
    return group


def command(broker: ScriptedBroker, capsys: Any, *words: str) -> tuple[int, str, str]:
    code = run(["group", *words, "-b", broker.bootstrap])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def offsets_of(client: Client, group: str) -> dict[int, int | None]:
    return {one.partition: one.committed for one in client.describe_group(group).partitions}


def test_groups_are_listed(broker: ScriptedBroker, name: str, capsys: Any) -> None:
    code, out, err = command(broker, capsys, "list", "--type", "simple", "--format", "json")
    assert (code, err) == (0, "")
    found = {one["group"]: one for one in json.loads(out)}
    assert (found[name]["state"], found[name]["members"]) == ("empty", 0)
    code, out, _ = command(broker, capsys, "list")
    assert out.split()[:3] == ["GROUP", "TYPE", "STATE"]
    assert name in out
    _, out, _ = command(broker, capsys, "list", "--state", "stable", "--format", "json")
    assert name not in out
    assert command(broker, capsys, "list", "--type", "share")[0] == 2


def test_a_group_is_described_with_its_lag(
    broker: ScriptedBroker, client: Client, name: str, capsys: Any
) -> None:
    client.alter_group_offsets(name, {TopicPartition("t", 1): 4})
    code, out, _ = command(broker, capsys, "describe", name, "--format", "json")
    assert code == 0
    behind, done = json.loads(out)["partitions"]
    assert (behind["committed"], behind["end"], behind["lag_rows"]) == (5, 10, 5)
    assert behind["lag_bytes"] > 0
    assert 0 < behind["lag_s"] < 600
    assert (done["lag_rows"], done["lag_bytes"], done["lag_s"]) == (0, 0, 0.0)
    code, out, _ = command(broker, capsys, "describe", name)
    assert "COMMITTED" in out
    assert "members\n" not in out
    code, _, err = command(broker, capsys, "describe", "none")
    assert code == 1
    assert "there is no group 'none'" in err


def test_members_are_shown(broker: ScriptedBroker, client: Client, capsys: Any) -> None:
    joins = GroupHeartbeatRequest(group="live", member_id=b"m" * 16, topics=["t"], rack="r")
    client.alter_group_offsets("live", {TopicPartition("t", 0): 1})
    leader = client.list_groups().groups[0].coordinator
    assert not client.raw_call(joins, node_id=leader).response.error_code
    code, out, _ = command(broker, capsys, "describe", "live", "--members")
    assert code == 0
    assert (b"m" * 16).hex() in out.split("members\n")[1]
    (member,) = client.describe_group("live").members
    assert (member.rack, member.topics, member.state) == ("r", ("t",), "joining")
    code, _, err = command(broker, capsys, "delete", "live", "--yes")
    assert code == 1
    assert "1 members" in err
    joins.member_epoch, joins.topics = -1, None
    assert not client.raw_call(joins, node_id=leader).response.error_code


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--topic", "t", "--to-earliest"], {0: 0, 1: 0}),
        (["--topic", "t", "--to-latest"], {0: 10, 1: 4}),
        (["--topic", "t:0", "--to-offset", "7"], {0: 7}),
        (["--topic", "t:0,1", "--to-offset", "7"], {0: 7, 1: 4}),
        (["--topic", "t", "--to-timestamp", "2020-01-01T00:00:00Z"], {0: 0, 1: 0}),
        (["--topic", "t", "--to-timestamp", "2100-01-01"], {0: 10, 1: 4}),
        (["--topic", "t", "--by-duration", "1d 2h"], {0: 0, 1: 0}),
        (["--topic", "t:0", "--shift-by", "-2"], {0: 3}),
        (["--topic", "t:0", "--shift-by", "100"], {0: 10}),
    ],
)
def test_offsets_are_reset(
    broker: ScriptedBroker,
    client: Client,
    name: str,
    capsys: Any,
    words: list[str],
    expected: dict[int, int],
) -> None:
    before = offsets_of(client, name)
    code, out, _ = command(broker, capsys, "reset-offsets", name, *words, "--dry-run")
    assert code == 0
    assert out.split()[:4] == ["TOPIC", "PARTITION", "BEFORE", "AFTER"]
    assert offsets_of(client, name) == before, "only shown"
    code, _, err = command(broker, capsys, "reset-offsets", name, *words)
    assert code == 2
    assert "--yes" in err
    code, out, _ = command(
        broker, capsys, "reset-offsets", name, *words, "--yes", "--format", "json"
    )
    assert code == 0
    shown = {one["partition"]: one["after"] for one in json.loads(out)["offsets"]}
    assert shown == expected
    assert offsets_of(client, name) == {**before, **expected}


def test_offsets_come_from_a_file(
    broker: ScriptedBroker, client: Client, name: str, capsys: Any, tmp_path: Path
) -> None:
    file = tmp_path / "offsets.csv"
    file.write_text("topic,partition,offset\n# a remark\nt,0,2\n\nt, 1, 3\n")
    words = ["reset-offsets", name, "--from-file", str(file), "--yes"]
    assert command(broker, capsys, *words)[0] == 0
    assert offsets_of(client, name) == {0: 2, 1: 3}
    for text in ("t,0\n", "t,x,1\n", "t,0,-1\n", ""):
        file.write_text(text)
        code, _, err = command(broker, capsys, *words)
        assert code == 2, text
        assert "--from-file" in err


@pytest.mark.parametrize(
    "words",
    [
        ["--topic", "t"],
        ["--topic", "t", "--to-latest", "--to-earliest"],
        ["--to-latest"],
        ["--topic", "t:9", "--to-latest"],
        ["--topic", "t:", "--to-latest"],
        ["--topic", "t:x", "--to-latest"],
        ["--topic", "t", "--shift-by", "1"],
        ["--topic", "t", "--to-timestamp", "yesterday"],
        ["--topic", "t", "--by-duration", "long"],
        ["--topic", "t", "--to-offset", "-1"],
    ],
)
def test_resets_that_are_wrong(
    broker: ScriptedBroker, name: str, capsys: Any, words: list[str]
) -> None:
    assert command(broker, capsys, "reset-offsets", name, *words, "--yes")[0] == 2


def test_offsets_and_groups_are_deleted(
    broker: ScriptedBroker, client: Client, name: str, capsys: Any
) -> None:
    assert command(broker, capsys, "delete-offsets", name, "--topic", "t")[0] == 2
    code, out, _ = command(broker, capsys, "delete-offsets", name, "--topic", "t:0", "--yes")
    assert (code, out) == (0, f"{name}: 1 offsets deleted.\n")
    assert offsets_of(client, name) == {}
    assert command(broker, capsys, "delete-offsets", name, "--topic", "t", "-y")[0] == 2
    assert command(broker, capsys, "delete", name)[0] == 2
    assert command(broker, capsys, "delete", name, "--yes")[1] == f"deleted {name}.\n"
    assert command(broker, capsys, "delete", name, "--yes")[0] == 1
    with pytest.raises(InvalidGroup):
        client.describe_group(name)


def test_names_are_completed(broker: ScriptedBroker, name: str) -> None:
    context = click.Context(commands.group)
    context.params = {"bootstrap": broker.bootstrap}
    parameter: Any = None
    assert commands._complete_groups(context, parameter, name) == [name]
    assert commands._complete_groups(context, parameter, "zz") == []


def test_arguments_of_the_client(client: Client, name: str) -> None:
    with pytest.raises(InvalidArgument, match="opened"):
        client.list_groups(states=["opened"])
    with pytest.raises(InvalidArgument, match="share"):
        client.list_groups(types=["share"])
    with pytest.raises(InvalidArgument, match="-1"):
        client.alter_group_offsets(name, {TopicPartition("t", 0): -1})


# --- for the doctor -----------------------------------------------------------------------------
NOW = datetime(2026, 1, 1, tzinfo=UTC)


def partition(lag_s: float | None, committed_s: float | None, rows: int | None = 5) -> Any:
    """One whose next row has waited, and whose last commit was so long ago."""
    committed = None if committed_s is None else NOW - timedelta(seconds=committed_s)
    return GroupPartition(
        "t", 3, 1, 6, rows, 9, lag_s, committed, "", False, "00", "a worker", "host"
    )


@pytest.mark.parametrize(
    ("part", "is_still"),
    [
        (partition(600.0, 600.0), True),
        (partition(600.0, None), True),
        (partition(599.0, 600.0), False),
        (partition(600.0, 599.0), False),
        (partition(None, None), False),
        (partition(900.0, 900.0, rows=0), False),
        (partition(900.0, 900.0, rows=None), False),
    ],
)
def test_a_group_stands_still_with_old_rows_and_no_commit(part: Any, is_still: bool) -> None:
    info = GroupInfo("g", "consumer", "stable", 1, 2, 0)

    class Asked:
        def list_groups(self, types: list[str]) -> GroupList:
            assert types == ["consumer"]
            return GroupList((info, replace(info, group="empty", members=0)), ())

        def describe_group(self, name: str) -> GroupDetail:
            assert name == "g", "those without members are not asked about"
            return GroupDetail(info, "uniform", (), (part,))

    client: Any = Asked()
    assert commands.groups_that_stand_still(client, {}, NOW) == [], "there was never a group"
    found = commands.groups_that_stand_still(client, {"__groups": None}, NOW)
    assert bool(found) is is_still
    if found:
        ((what, advice),) = found
        assert "g: 1 partitions stand still; the next row of t-3 (read by a worker)" in what
        assert "group describe g" in advice
