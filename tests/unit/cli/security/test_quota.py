"""`quiverlog quota`, against the real node."""

from __future__ import annotations

import json
from collections.abc import Iterator

import click
import pytest

from quiverlog.cli.security import quota as commands
from tests.support.scripted_broker import ScriptedBroker
from tests.support.typed import Typed


@pytest.fixture(scope="module")
def broker() -> Iterator[ScriptedBroker]:
    with ScriptedBroker() as broker:
        yield broker


@pytest.fixture
def quota(broker: ScriptedBroker, capsys: pytest.CaptureFixture[str]) -> Iterator[Typed]:
    typed = Typed("quota", broker, capsys)
    yield typed
    for one in json.loads(typed("list", "--format", "json")):
        name = [one["name"]] if one["name"] else []
        typed("remove", f"--{one['kind']}", *name)
    assert json.loads(typed("list", "--format", "json")) == []


def test_quotas_are_set_listed_and_removed(quota: Typed) -> None:
    quota("set", "--default", "--bytes-in", "20MiB/s", "--connections", "200")
    quota("set", "--user", "alice", "--bytes-out", "1.5MB")
    quota("set", "--client-id", "my app", "--bytes-in", "65536")
    shown = [line.split() for line in quota("list").splitlines()]
    assert shown[0] == ["OF", "NAME", "BYTES", "IN/S", "BYTES", "OUT/S", "CONNECTIONS"]
    assert shown[2:] == [
        ["user", "alice", "1.4", "MiB"],
        ["client-id", "my", "app", "64.0", "KiB"],
        ["default", "20.0", "MiB", "200"],
    ]
    quota("set", "--user", "alice", "--bytes-out", "none", "--bytes-in", "1GiB")
    quota("remove", "--client-id", "my app")
    quota("remove", "--client-id", "my app")
    assert [line.split()[:3] for line in quota("list").splitlines()[2:]] == [
        ["user", "alice", "1.0"],
        ["default", "20.0", "MiB"],
    ]


def test_json_has_every_field(quota: Typed) -> None:
    words = ("--user", "alice", "--bytes-in", "1MiB", "--format", "json")
    (found,) = json.loads(quota("set", *words))
    assert found == {
        "kind": "user",
        "name": "alice",
        "bytes_in": 1 << 20,
        "bytes_out": 0,
        "connections": 0,
    }
    removed = json.loads(quota("remove", "--user", "alice", "--format", "json"))
    assert removed == {"removed": {"kind": "user", "name": "alice"}}


@pytest.mark.parametrize(
    ("words", "said", "code"),
    [
        (("set", "--bytes-in", "1MiB"), "Give one of --user", 2),
        (("set", "--user", "a", "--default", "--bytes-in", "1MiB"), "Give one of --user", 2),
        (("set", "--user", "alice"), "Give --bytes-in", 2),
        (("set", "--user", "alice", "--bytes-in", "fast"), "'fast' is no rate", 2),
        (("set", "--user", "alice", "--connections", "0"), "0 is not in the range", 2),
        (("remove",), "Give one of --user", 2),
        (("set", "--user", "alice", "--bytes-in", "1KiB"), "is outside 65536 to", 1),
        (("set", "--user", "a b", "--bytes-in", "1MiB"), "'a b' is no name of a user", 1),
    ],
)
def test_what_makes_no_sense_is_refused(
    quota: Typed, words: tuple[str, ...], said: str, code: int
) -> None:
    assert said in quota(*words, code=code)


def test_names_are_completed(broker: ScriptedBroker, quota: Typed) -> None:
    context = click.Context(commands.quota)
    context.params = {"bootstrap": broker.bootstrap}
    for name in ("app-1", "app-2", "job"):
        quota("set", "--client-id", name, "--connections", "5")
    parameter = commands.quota.commands["set"].params[0]  # type: ignore[attr-defined]
    assert commands._complete_clients(context, parameter, "app") == ["app-1", "app-2"]
    context.params = {"bootstrap": "127.0.0.1:1"}
    assert commands._complete_clients(context, parameter, "app") == []
