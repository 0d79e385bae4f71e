"""`quiverlog user` and `quiverlog token`, against the real node."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import quiverlog
from quiverlog.cli.app import run
from quiverlog.cli.security import user as commands
from quiverlog.wire.security.user_messages import AlterUsersRequest
from tests.support.scripted_broker import ScriptedBroker

Typed = Callable[..., tuple[int, str, str]]


@pytest.fixture
def broker() -> Iterator[ScriptedBroker]:
    with ScriptedBroker() as broker:
        yield broker


@pytest.fixture
def typed(broker: ScriptedBroker, capsys: pytest.CaptureFixture[str]) -> Typed:
    def type_(*words: str) -> tuple[int, str, str]:
        code = run([*words, "-b", broker.bootstrap])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return type_


def names(broker: ScriptedBroker) -> set[str]:
    with quiverlog.connect(broker.bootstrap) as client:
        return {one.name for one in client.list_users()}


def test_a_made_password_is_shown_where_it_may_count(broker: ScriptedBroker, typed: Typed) -> None:
    for _ in range(20):
        broker.fault(AlterUsersRequest, "drop_reply")
    code, password, why = typed("user", "create", "alice", "--generate", "--timeout", "1")
    assert code != 0
    assert len(password.strip()) == 32
    assert "whether this password counts is not known" in why
    assert names(broker) == {"alice"}


def test_a_refused_password_is_not_shown(broker: ScriptedBroker, typed: Typed) -> None:
    assert typed("user", "create", "alice", "--generate")[0] == 0
    code, shown, why = typed("user", "create", "alice", "--generate")
    assert (code, shown) == (1, "")
    assert "exists" in why


@pytest.mark.parametrize(
    "words",
    [
        ("user", "delete", "alice"),
        ("user", "admin", "alice", "off"),
        ("token", "end", "--all", "--owner", "alice"),
    ],
)
def test_what_cannot_be_taken_back_is_asked_for(
    broker: ScriptedBroker, typed: Typed, words: tuple[str, ...]
) -> None:
    with quiverlog.connect(broker.bootstrap) as client:
        client.create_user("alice", "pw", is_admin=True)
        client.create_token(60.0, owner="alice")
        code, _, why = typed(*words)
        assert (code, "give --yes" in why) == (2, True)
        (kept,) = client.list_users()
        assert (kept.is_admin, kept.token_count) == (True, 1)
        assert typed(*words, "--yes")[0] == 0
        assert [(one.is_admin, one.token_count) for one in client.list_users()] != [(True, 1)]


def test_changes_are_shown_as_json(typed: Typed) -> None:
    def shown(*words: str) -> dict[str, object]:
        code, text, _ = typed(*words, "--format", "json")
        assert code == 0
        return dict(json.loads(text))

    made = shown("user", "create", "bob", "--generate")
    assert made.keys() == {"name", "is_admin", "password"}
    assert shown("user", "admin", "bob", "on") == {"name": "bob", "is_admin": True}
    changed = shown("user", "passwd", "bob", "--generate", "--keep-old")
    assert changed.keys() == {"name", "old_counts", "password"}
    assert shown("user", "passwd", "bob", "--drop-old") == {"name": "bob", "old_counts": False}
    token = shown("token", "create", "--owner", "bob")
    assert token.keys() == {"token_id", "user", "expires", "token"}
    assert shown("token", "end", str(token["token_id"]), "--owner", "bob") == {"ended": 1}
    assert shown("user", "delete", "bob", "--yes") == {"name": "bob", "deleted": True}


def test_a_token_is_made_only_where_its_file_can_keep_it(
    broker: ScriptedBroker, typed: Typed, tmp_path: Path
) -> None:
    def make(file: Path, *words: str) -> tuple[int, str, str]:
        return typed("token", "create", "--owner", "alice", "--file", str(file), *words)

    with quiverlog.connect(broker.bootstrap) as client:
        client.create_user("alice", "pw")
        code, _, why = make(tmp_path / "missing" / "t")
        assert (code, "No such file" in why) == (1, True)
        file = tmp_path / "t"
        assert make(file)[0] == 0
        first = file.read_text()
        code, _, why = make(file)
        assert (code, "--force replaces it" in why) == (1, True)
        assert client.list_users()[0].token_count == 1
        assert make(file, "--force")[0] == 0
        assert file.read_text() != first
        assert typed("token", "create", "--owner", "none", "--file", str(tmp_path / "u"))[0] == 1
        assert [one.name for one in tmp_path.iterdir()] == ["t"], "no token, no file"
        assert typed("token", "create", "--force")[0] == 2


@pytest.mark.parametrize(
    ("mechanism", "expires_s", "end"),
    [
        ("", None, "never"),
        ("SCRAM-SHA-256", None, "with its password"),
        ("CERTIFICATE", None, "with its certificate"),
        ("TOKEN", 59.6, "60 s"),
    ],
)
def test_whoami_shows_what_ends_a_login(mechanism: str, expires_s: float | None, end: str) -> None:
    assert commands._end(mechanism, expires_s) == end
