"""What `quiverlog doctor` reports of certificates, by their ends, and of users."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest

from quiverlog.cli.tools import doctor
from quiverlog.client.admin.rules import AccessDecision
from quiverlog.client.admin.topics import BrokerSetting
from quiverlog.errors import (
    AuthenticationFailed,
    ConnectionFailed,
    LoginMissing,
    NotAuthorized,
    QuiverlogError,
    TlsRequired,
)

DAY_S = 86_400


@pytest.mark.parametrize(
    ("days", "status", "text"),
    [
        (-3.5, doctor.PROBLEM, "has ended on"),
        (0, doctor.PROBLEM, "has ended on"),
        (0.5, doctor.WARNING, "in 0 days"),
        (29.9, doctor.WARNING, "in 29 days"),
        (30.1, doctor.OK, "ends on"),
    ],
)
def test_a_certificate_that_has_ended_is_a_problem(days: float, status: str, text: str) -> None:
    found = doctor._ends("the certificate of a:1", time.time() + days * DAY_S)
    assert (found.status, text in found.detail) == (status, True)


# --- users ---------------------------------------------------------------------------------------
def keys(super_users: str = "", **given: str) -> dict[str, BrokerSetting]:
    texts = {"super.users": super_users}
    texts |= {f"listeners.{key.replace('_', '.')}": text for key, text in given.items()}
    return {
        key: BrokerSetting(text, "file", False, "", text, None, None) for key, text in texts.items()
    }


def of_users(
    settings: dict[int, Any],
    users: list[str] | QuiverlogError,
    *,
    is_super: bool = True,
    is_on: bool = True,
) -> list[doctor.Finding]:
    def list_users() -> list[str]:
        if isinstance(users, QuiverlogError):
            raise users
        return users

    def check_access(principal: str, *_: str, broker: int) -> AccessDecision:
        assert (principal, broker) == ("user:ops", 2), "the controller lists users"
        return AccessDecision(True, 0, is_on, is_super)

    client: Any = SimpleNamespace(
        list_users=list_users,
        check_access=check_access,
        describe_cluster=lambda: SimpleNamespace(controller=2),
        who_am_i=lambda: SimpleNamespace(principal="user:ops"),
    )
    return list(doctor._users(client, settings))


SCRAM = {"default_authentication": "required"}
BY_CERTIFICATE = {"default_mechanisms": "token, certificate"}


@pytest.mark.parametrize(
    ("brokers", "named"),
    [
        ([{}, {}], None),
        ([{"default_authentication": "none"}], None),
        ([{}, SCRAM], "broker(s) 2 ask for logins at the listener(s) default,"),
        ([SCRAM, {"ops_authentication": "wanted"}], "broker(s) 1, 2 ask"),
        ([SCRAM, {"ops_authentication": "wanted"}], "listener(s) default, ops,"),
        # The user of a certificate need not be made.
        ([SCRAM | BY_CERTIFICATE], None),
        ([SCRAM | BY_CERTIFICATE | {"ops_authentication": "required"}], "listener(s) ops,"),
        ([SCRAM | {"default_mechanisms": "TOKEN"}], "listener(s) default,"),
    ],
)
def test_logins_that_no_user_can_make_are_a_problem(
    brokers: list[dict[str, str]], named: str | None
) -> None:
    settings = {number: keys(**given) for number, given in enumerate(brokers, 1)}
    found = of_users(settings, [])
    assert [(one.check, one.status) for one in found] == [("users", doctor.PROBLEM)] * bool(named)
    assert not named or named in found[0].detail
    assert of_users(settings, ["alice"]) == []
    assert of_users(settings, NotAuthorized("not yours")) == []
    # It is shown those that it may describe: none of them is not no user.
    assert of_users(settings, [], is_super=False) == []
    assert of_users(settings, [], is_super=False, is_on=False) == found


@pytest.mark.parametrize(
    ("texts", "shown"),
    [
        (["", ""], None),
        (["ann,bob", "bob, ann"], None),
        (["ann"], None),
        (["ann,bob", "", "ann"], "broker 1: ann, bob; broker 2: none; broker 3: ann"),
    ],
)
def test_super_users_of_some_brokers_only_are_named(texts: list[str], shown: str | None) -> None:
    settings = {number: keys(text) for number, text in enumerate(texts, 1)}
    found = of_users(settings, ["ann"])
    assert [one.status for one in found] == [doctor.WARNING] * bool(shown)
    assert not shown or found[0].detail == f"`super.users` differs: {shown}"


def test_a_broker_that_refuses_is_not_one_to_start() -> None:
    assert "Start one" in doctor._remedy(ConnectionFailed("nothing there"))
    for error in (AuthenticationFailed("refused"), LoginMissing("none is given")):
        assert "has no user" in doctor._remedy(error)
    for other in (NotAuthorized("denied"), TlsRequired("plain")):
        assert doctor._remedy(other) == other.hint
