"""Logins at a node: what is served before one, what ends one, and what a refusal shows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from quiverlog.client.base.login import LOGIN_S
from quiverlog.core.controller.records import UserRecord
from quiverlog.errors import (
    AuthenticationFailed,
    BrokerShuttingDown,
    CredentialsExpired,
    InvalidRequest,
    NotAuthenticated,
    WrongListener,
)
from quiverlog.limits import SCRAM_ITERATIONS_MIN
from quiverlog.node.runtime.config import Asked, Authentication
from quiverlog.node.runtime.effects import ConnectionProved
from quiverlog.node.runtime.events import ConnectionOpened, Shutdown
from quiverlog.node.security.logins import certified_user
from quiverlog.types import Operation as Op
from quiverlog.types import ResourceKind as Kind
from quiverlog.wire import messages as m
from quiverlog.wire.authentication_messages import (
    CERTIFICATE,
    CLUSTER_SHA_256,
    DEFAULT_MECHANISMS,
    TOKEN,
    AuthenticateRequest,
)
from quiverlog.wire.cluster_messages import DescribeClusterRequest
from quiverlog.wire.peer_proof import NONCE_BYTES, ClusterSecrets, Connector, Parties, broker_uri
from quiverlog.wire.registry import APIS
from quiverlog.wire.security.acl_messages import AlterAclsRequest, RulePart
from quiverlog.wire.security.scram import SCRAM_SHA_256, SCRAM_SHA_512, make_credential
from quiverlog.wire.security.user_messages import (
    EndTokensRequest,
    UserChange,
    WhoAmIRequest,
)
from tests.support.logins import (
    REQUIRED,
    SALT,
    WANTED,
    alter,
    create_token,
    credential,
    log_in,
    step,
)
from tests.support.node import NodeDriver

ADMIN, ALICE, OTHER = 10, 11, 12
"""Connections."""
KEY = b"k" * 32


def first_user() -> UserRecord:
    made = make_credential(SCRAM_SHA_256, b"root", SALT, SCRAM_ITERATIONS_MIN)
    kept = (SCRAM_SHA_256, made.salt, made.iterations, made.stored_key, made.server_key)
    return UserRecord("admin", 0, (kept,), is_admin=True)


def connect(
    node: NodeDriver,
    connection: int,
    listener: str = "default",
    names: tuple[str, ...] = (),
    address: str = "10.0.0.1",
) -> Any:
    node.send(ConnectionOpened(connection, f"{address}:4000", listener, names))
    return node.call(m.HelloRequest(client_id="c"), connection=connection)[0]


@pytest.fixture
def node(tmp_path: Path) -> NodeDriver:
    """An administrator and alice; each has a connection."""
    return world(tmp_path)


def world(root: Path, **config: Any) -> NodeDriver:
    node = NodeDriver(root, **{"authentication": REQUIRED, "first_user": first_user(), **config})
    connect(node, ADMIN)
    assert log_in(node, "admin", b"root", ADMIN).principal == "user:admin"
    made = alter(node, "alice", UserChange.CREATE, b"secret", connection=ADMIN)
    assert made.error_code == 0, made.error_message
    connect(node, ALICE)
    assert log_in(node, "alice", b"secret", ALICE).is_done
    return node


def who(node: NodeDriver, connection: int) -> str:
    return str(node.call(WhoAmIRequest(), connection=connection)[0].principal)


def closed(node: NodeDriver) -> list[int]:
    """Those of a changed user are closed a moment later, so that the change can be answered."""
    node.advance(101)
    return [one.connection_id for one in node.closed]


def late(node: NodeDriver, connection: int) -> Any:
    """The answer to the last request of a connection, which came late."""
    return [one for one in node.responses if one.connection_id == connection][-1].response


@pytest.mark.parametrize("mechanism", [SCRAM_SHA_256, SCRAM_SHA_512])
def test_a_user_logs_in_by_its_password(node: NodeDriver, mechanism: str) -> None:
    made = alter(node, "bob", UserChange.CREATE, b"pw", connection=ADMIN, mechanism=mechanism)
    assert not made.error_code
    assert connect(node, OTHER).needs_authentication
    answer = log_in(node, "bob", b"pw", OTHER, mechanism)
    assert (answer.is_done, answer.principal, answer.expires_ms) == (True, "user:bob", -1)
    assert who(node, OTHER) == "user:bob"
    assert node.metrics.logins == 3


def test_the_broker_s_own_process_needs_no_login_and_no_rules(node: NodeDriver) -> None:
    node.send(ConnectionOpened(OTHER, "?", is_own=True))
    hello = node.call(m.HelloRequest(client_id="page"), connection=OTHER)[0]
    assert not hello.needs_authentication
    assert who(node, OTHER) == f"broker:{node.node.broker.config.node_id}"
    answer = node.call(DescribeClusterRequest(), connection=OTHER)[0]
    assert not answer.error_code, answer.error_message


def test_hello_names_what_is_asked(node: NodeDriver) -> None:
    before = connect(node, OTHER)
    assert before.needs_authentication
    assert before.mechanisms == list(DEFAULT_MECHANISMS)
    assert m.Api.AUTHENTICATE in {one.api for one in before.apis}
    log_in(node, "alice", b"secret", OTHER)
    after = node.call(m.HelloRequest(), connection=OTHER)[0]
    assert not after.needs_authentication
    assert after.cluster_id


def test_a_listener_of_its_own_names_nothing_before_a_login(tmp_path: Path) -> None:
    node = world(tmp_path, authentication={**REQUIRED, "open": REQUIRED["default"]})
    before = connect(node, OTHER, "open")
    assert (before.cluster_id, before.node_id, before.software_version) == ("", -1, "")
    log_in(node, "alice", b"secret", OTHER)
    after = node.call(m.HelloRequest(), connection=OTHER)[0]
    assert (after.cluster_id, after.node_id) == (node.node.broker.directory.cluster_id, 0)


SERVED = (m.HelloRequest, AuthenticateRequest)


@pytest.mark.parametrize(
    "kind", [one.request for one in APIS.values() if one.request not in SERVED],
    ids=lambda kind: kind.API.name,
)  # fmt: skip
def test_nothing_else_is_served_before_a_login(node: NodeDriver, kind: type[m.Request]) -> None:
    connect(node, OTHER)
    response, _ = node.call(kind(), connection=OTHER)
    assert response.error_code == NotAuthenticated.code
    assert closed(node) == [OTHER]


def test_nothing_is_served_while_a_login_is_under_way(tmp_path: Path) -> None:
    node = world(tmp_path, authentication=WANTED)
    connect(node, OTHER)
    assert not step(node, SCRAM_SHA_256, b"n,,n=alice,r=" + b"x" * 24, OTHER).error_code
    response, _ = node.call(WhoAmIRequest(), connection=OTHER)
    assert response.error_code == NotAuthenticated.code


def test_where_a_login_is_wanted_one_may_stay_anonymous_and_is_counted(tmp_path: Path) -> None:
    node = world(tmp_path, authentication=WANTED)
    assert not connect(node, OTHER).needs_authentication
    assert who(node, OTHER) == "anonymous"
    assert who(node, OTHER) == "anonymous"
    assert node.metrics.connections_anonymous == 1
    assert log_in(node, "alice", b"secret", OTHER).is_done, "it may still log in"
    assert who(node, OTHER) == "user:alice"


def test_a_listener_without_authentication_takes_no_login(tmp_path: Path) -> None:
    node = NodeDriver(tmp_path)
    assert connect(node, OTHER).mechanisms == []
    assert step(node, SCRAM_SHA_256, b"", OTHER).error_code == WrongListener.code
    assert who(node, OTHER) == "anonymous"


def test_only_its_mechanisms_are_taken(tmp_path: Path) -> None:
    tokens = {"default": REQUIRED["default"], "t": Authentication(Asked.REQUIRED, (TOKEN,))}
    node = world(tmp_path, authentication=tokens)
    connect(node, OTHER, "t")
    assert step(node, SCRAM_SHA_256, b"", OTHER).error_code == InvalidRequest.code
    assert step(node, "EXTERNAL", b"", OTHER).error_code == InvalidRequest.code


FAILURES = {
    "another password": lambda node: log_in(node, "alice", b"wrong", OTHER),
    "no such user": lambda node: log_in(node, "mallory", b"secret", OTHER),
    "a mechanism that the user lacks": lambda node: log_in(
        node, "alice", b"secret", OTHER, SCRAM_SHA_512
    ),
    "no such token": lambda node: log_in(node, "ab" * 12, KEY, OTHER, TOKEN),
    "a user for a token": lambda node: log_in(node, "alice", b"secret", OTHER, TOKEN),
    "no SCRAM": lambda node: step(node, SCRAM_SHA_256, b"\xff", OTHER),
    "another mechanism half way": lambda node: (
        step(node, SCRAM_SHA_256, b"n,,n=alice,r=" + b"x" * 24, OTHER),
        step(node, SCRAM_SHA_512, b"c=biws,r=x,p=", OTHER),
    )[1],
}  # fmt: skip


@pytest.mark.parametrize("name", FAILURES)
def test_all_refusals_look_alike_and_come_late(node: NodeDriver, name: str) -> None:
    connect(node, OTHER)
    began_us = node.mono_us
    assert FAILURES[name](node) is None, "not at once"
    node.advance(640)
    assert closed(node) == []
    node.advance(520)
    answer = late(node, OTHER)
    assert answer.error_code == AuthenticationFailed.code
    assert answer.error_message == "broker 0 refuses the login."
    assert closed(node) == [OTHER]
    assert node.metrics.logins_refused == 1
    assert node.mono_us - began_us < 1_400_000
    assert who(node, ALICE) == "user:alice", "others go on"


def test_a_refused_connection_gets_no_other_answer(tmp_path: Path) -> None:
    """An answer would show at once that the login had not counted."""
    node = world(tmp_path, authentication=WANTED)
    connect(node, OTHER)
    log_in(node, "alice", b"wrong", OTHER)
    assert node.answer(node.request(WhoAmIRequest(), connection=OTHER)) is None
    assert log_in(node, "alice", b"secret", OTHER) is None
    node.advance(1_300)
    assert late(node, OTHER).error_code == AuthenticationFailed.code
    assert closed(node) == [OTHER]


def test_the_log_names_the_reason_once_a_minute_for_an_address(node: NodeDriver) -> None:
    for connection in range(20, 25):
        connect(node, connection)
        log_in(node, "alice", b"wrong", connection)
    lines = [one for one in node.lines if one.event == "a login was refused"]
    assert len(lines) == 1
    assert "password" in str(lines[0].fields)
    assert "wrong" not in str(lines[0].fields)


def test_refusals_that_wait_are_bounded(node: NodeDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quiverlog.node.security.logins._REFUSED_MAX", 2)
    for connection in (20, 21, 22):
        connect(node, connection)
        log_in(node, "alice", b"wrong", connection)
    assert len(closed(node)) == 1
    node.advance(1_500)
    assert sorted(closed(node)) == [20, 21, 22]


def refused_after_ms(node: NodeDriver, numbers: range, address: str = "10.0.0.1") -> list[int]:
    """Begin failing logins together; return when each is answered, in their order."""
    for number in numbers:
        connect(node, number, address=address)
        log_in(node, "alice", b"wrong", number)
    began_us, after_ms = node.mono_us, dict.fromkeys(numbers, 0)
    while not all(after_ms.values()):
        node.advance(10)
        for one in node.closed:
            if not after_ms.get(one.connection_id, 1):
                after_ms[one.connection_id] = (node.mono_us - began_us) // 1_000
    return list(after_ms.values())


def test_failed_logins_from_one_address_are_paced(
    node: NodeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node.node.broker.logins, "_entropy", bytes)  # No jitter.
    after_ms = refused_after_ms(node, range(100, 151))
    assert after_ms[:3] == pytest.approx([750, 812, 875], abs=20)
    assert after_ms[47:] == pytest.approx([3_687, 3_750, 3_750, 3_750], abs=20)
    # A client waits for so long at the least, and there is a jitter of half a second.
    assert after_ms[-1] + 500 < LOGIN_S * 1_000
    assert refused_after_ms(node, range(200, 201)) == pytest.approx([750], abs=20), "none waits"


def test_failed_logins_delay_no_refusal_of_another_address(
    node: NodeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node.node.broker.logins, "_entropy", bytes)
    for number in range(100, 130):
        connect(node, number)
        log_in(node, "alice", b"wrong", number)
    (after_ms,) = refused_after_ms(node, range(200, 201), "10.0.0.2")
    assert after_ms == pytest.approx(750, abs=20)
    assert log_in(node, "alice", b"secret", ALICE).is_done, "one that counts does not wait"


def test_one_may_log_in_again_as_the_same_user_alone(node: NodeDriver) -> None:
    assert log_in(node, "alice", b"secret", ALICE).is_done
    assert who(node, ALICE) == "user:alice"
    other = log_in(node, "admin", b"root", ALICE)
    assert other.error_code == InvalidRequest.code
    assert "as user:alice" in other.error_message
    assert who(node, ALICE) == "user:alice"


def test_a_repeated_login_that_fails_ends_the_connection(node: NodeDriver) -> None:
    assert log_in(node, "alice", b"wrong", ALICE) is None
    assert node.answer(node.request(WhoAmIRequest(), connection=ALICE)) is None
    node.advance(1_300)
    assert late(node, ALICE).error_code == AuthenticationFailed.code
    assert closed(node) == [ALICE]
    assert not [one for one in node.lines if one.level == "error"]


def test_the_server_learns_of_a_login(node: NodeDriver) -> None:
    connect(node, OTHER)
    seen: list[object] = []
    perform = node._perform
    node._perform = lambda effects: (seen.extend(effects), perform(effects))[1]  # type: ignore[method-assign]
    log_in(node, "alice", b"secret", OTHER)
    assert ConnectionProved(OTHER) in seen


@pytest.mark.parametrize(
    "change", [UserChange.DELETE, UserChange.PASSWORD], ids=lambda one: one.name
)
def test_a_connection_ends_when_its_user_is_deleted_or_changed(
    node: NodeDriver, change: UserChange
) -> None:
    passwords = (b"new",) if change is UserChange.PASSWORD else ()
    assert not alter(node, "alice", change, *passwords, connection=ADMIN).error_code
    assert closed(node) == [ALICE]
    assert node.answer(node.request(WhoAmIRequest(), connection=ALICE)) is None
    assert who(node, ADMIN) == "user:admin"


def test_a_user_that_changes_its_own_password_gets_an_answer(node: NodeDriver) -> None:
    answer = alter(node, "alice", UserChange.PASSWORD, b"new", connection=ALICE)
    assert not answer.error_code, answer.error_message
    assert node.answer(node.request(WhoAmIRequest(), connection=ALICE)) is None
    assert closed(node) == [ALICE]


def test_a_password_is_replaced_without_a_closed_connection(node: NodeDriver) -> None:
    assert not alter(node, "alice", UserChange.PASSWORD_BESIDE, b"new", connection=ADMIN).error_code
    connect(node, OTHER)
    assert log_in(node, "alice", b"new", OTHER).is_done
    connect(node, 13)
    assert log_in(node, "alice", b"secret", 13).is_done
    assert closed(node) == []
    assert not alter(node, "alice", UserChange.DROP_OLD, connection=ADMIN).error_code
    assert sorted(closed(node)) == [ALICE, 13], "those with the old one"
    assert who(node, OTHER) == "user:alice"


def test_a_token_has_its_owners_name_until_it_expires(node: NodeDriver) -> None:
    token = create_token(node, KEY, connection=ALICE)
    assert not token.error_code, token.error_message
    connect(node, OTHER)
    answer = log_in(node, token.token_id, KEY, OTHER, TOKEN)
    assert (answer.principal, answer.expires_ms) == ("user:alice", 60_000)
    node.advance(59_700)
    assert who(node, OTHER) == "user:alice"
    assert closed(node) == []
    node.advance(200)
    assert closed(node) == [OTHER]
    assert node.answer(node.request(WhoAmIRequest(), connection=OTHER)) is None
    connect(node, 13)
    again = log_in(node, token.token_id, KEY, 13, TOKEN)
    assert again.error_code == CredentialsExpired.code, "with the key, the reason is named"
    connect(node, 14)
    assert log_in(node, token.token_id, b"x" * 32, 14, TOKEN) is None


def test_a_newer_token_prolongs_a_connection(node: NodeDriver) -> None:
    first = create_token(node, KEY, connection=ALICE)
    connect(node, OTHER)
    log_in(node, first.token_id, KEY, OTHER, TOKEN)
    node.advance(50_000)
    second = create_token(node, b"2" * 32, connection=ALICE)
    assert log_in(node, second.token_id, b"2" * 32, OTHER, TOKEN).is_done
    node.advance(20_000)
    assert closed(node) == []
    node.advance(40_001)
    assert closed(node) == [OTHER]


def test_a_clock_that_steps_back_prolongs_no_connection(node: NodeDriver) -> None:
    token = create_token(node, KEY, connection=ALICE)
    connect(node, OTHER)
    assert log_in(node, token.token_id, KEY, OTHER, TOKEN).is_done
    node.wall_us -= 3_600_000_000
    node.advance(59_800)
    assert closed(node) == []
    node.advance(200)
    assert closed(node) == [OTHER]


def test_logins_that_are_over_are_not_remembered(node: NodeDriver) -> None:
    token = create_token(node, KEY, 86_400_000, connection=ALICE)
    connect(node, OTHER)
    for _ in range(300):
        node.wall_us += 1
        assert log_in(node, token.token_id, KEY, OTHER, TOKEN).is_done
    assert len(node.node.broker.logins._expiries) <= 263
    node.advance(86_400_000)
    assert closed(node) == [OTHER]


def test_an_ended_token_ends_its_connections(node: NodeDriver) -> None:
    tokens = [create_token(node, key, connection=ALICE) for key in (KEY, b"2" * 32)]
    for connection, token, key in ((20, tokens[0], KEY), (21, tokens[1], b"2" * 32)):
        connect(node, connection)
        assert log_in(node, token.token_id, key, connection, TOKEN).is_done
    ended = EndTokensRequest(token_ids=[tokens[0].token_id])
    assert node.call(ended, connection=ALICE)[0].ended_count == 1
    assert closed(node) == [20]
    assert node.call(EndTokensRequest(), connection=ALICE)[0].ended_count == 1
    assert closed(node) == [20, 21]


def test_the_tokens_of_a_deleted_user_end(node: NodeDriver) -> None:
    token = create_token(node, KEY, connection=ALICE)
    connect(node, OTHER)
    assert log_in(node, token.token_id, KEY, OTHER, TOKEN).is_done
    alter(node, "alice", UserChange.DELETE, connection=ADMIN)
    assert sorted(closed(node)) == [ALICE, OTHER]


@pytest.mark.parametrize("owner", ["", "alice", "admin"])
@pytest.mark.parametrize("holder", ["alice", "admin"])
def test_a_token_changes_no_user_and_makes_and_ends_no_token(
    node: NodeDriver, holder: str, owner: str
) -> None:
    for kind in (Kind.USER, Kind.TOKEN):
        given = AlterAclsRequest(additions=[RulePart("*", True, Op.ALL, kind, "", True)])
        assert not node.call(given, connection=ADMIN)[0].error_code
    token = create_token(node, KEY, owner=holder, connection=ADMIN)
    connect(node, OTHER)
    assert log_in(node, token.token_id, KEY, OTHER, TOKEN).is_done
    answers = [
        create_token(node, b"2" * 32, owner=owner, connection=OTHER),
        node.call(EndTokensRequest(owner=owner), connection=OTHER)[0],
        *(
            alter(node, owner or "new", kind, *passwords, connection=OTHER, is_admin=True)
            for kind, passwords in (
                (UserChange.CREATE, [b"x"]),
                (UserChange.PASSWORD, [b"x"]),
                (UserChange.PASSWORD_BESIDE, [b"x"]),
                (UserChange.ADMIN, []),
                (UserChange.DELETE, []),
            )
        ),
    ]
    assert {one.error_code for one in answers} == {InvalidRequest.code}
    assert "token" in answers[0].error_message
    image = node.node.broker.metadata.image
    assert image.users.keys() == {"admin", "alice"}
    assert list(image.tokens) == [token.token_id]


def test_logins_survive_a_restart_of_the_broker(node: NodeDriver) -> None:
    token = create_token(node, KEY, connection=ALICE)
    node.restart()
    connect(node, OTHER)
    assert log_in(node, "alice", b"secret", OTHER).is_done
    connect(node, 13)
    assert log_in(node, token.token_id, KEY, 13, TOKEN).is_done
    assert node.node.broker.metadata.image.users.keys() == {"admin", "alice"}


def test_a_salt_of_a_name_that_does_not_exist_stays(node: NodeDriver) -> None:
    first = b"n,,n=mallory,r=" + b"x" * 24
    salts = set()
    for connection in (20, 21):
        connect(node, connection)
        salts.add(step(node, SCRAM_SHA_256, first, connection).data.partition(b",s=")[2])
    node.restart()
    connect(node, 20)
    salts.add(step(node, SCRAM_SHA_256, first, 20).data.partition(b",s=")[2])
    assert len(salts) == 1


@pytest.mark.parametrize("name", ["alice", "mallory"])
def test_no_name_has_one_salt_for_all_mechanisms(node: NodeDriver, name: str) -> None:
    """That of one which exists has another salt where it has no credential."""
    salts = set()
    for connection, mechanism in enumerate((SCRAM_SHA_256, SCRAM_SHA_512, TOKEN), 20):
        connect(node, connection)
        first = f"n,,n={name},r={'x' * 24}".encode()
        salts.add(step(node, mechanism, first, connection).data.partition(b",s=")[2])
    assert len(salts) == 3


def test_a_broker_that_stops_takes_no_login(node: NodeDriver) -> None:
    connect(node, OTHER)
    node.hold_jobs = True
    node.send(Shutdown())
    answer = step(node, SCRAM_SHA_256, b"n,,n=alice,r=" + b"x" * 24, OTHER)
    assert answer.error_code == BrokerShuttingDown.code


def test_the_first_user_counts_while_there_is_none(tmp_path: Path) -> None:
    node = world(tmp_path)
    other = UserRecord("mallory", 0, first_user().credentials, is_admin=True)
    node.restart(first_user=other)
    assert node.node.broker.metadata.image.users.keys() == {"admin", "alice"}


def test_super_users_are_named_by_the_brokers_own_configuration(node: NodeDriver) -> None:
    assert not node.call(WhoAmIRequest(), connection=ALICE)[0].is_super
    assert node.call(WhoAmIRequest(), connection=ADMIN)[0].is_super
    node.node.broker.clients.set_super_users(("alice",))
    assert node.call(WhoAmIRequest(), connection=ALICE)[0].is_super


def test_nothing_secret_is_in_a_repr(node: NodeDriver) -> None:
    create_token(node, KEY, connection=ALICE)
    image = node.node.broker.metadata.image
    keys = [one[k] for user in image.users.values() for one in user.credentials for k in (3, 4)]
    shown = repr(list(image.snapshot_records())) + repr(credential(b"secret")) + repr(node.lines)
    for key in (*keys, image.security_key):
        assert repr(key) not in shown
        assert key.hex() not in shown


# --- certificates ------------------------------------------------------------------------------
CERTIFIED = {
    "default": Authentication(Asked.REQUIRED, (*DEFAULT_MECHANISMS, CERTIFICATE)),
    "other": REQUIRED["default"],
}


@pytest.mark.parametrize(
    ("names", "user"),
    [
        (("URI:quiverlog://c/user/alice", "DNS:app.example", "CN:bob"), "alice"),
        (("DNS:app.example", "CN:bob"), "app.example"),
        (("CN:bob",), "bob"),
        (("URI:https://example.org/bob", "CN:bob"), "bob"),
        (("DNS:*.example.org", "CN:bob"), "bob"),
        (("URI:quiverlog://c/broker/1", "CN:bob"), ""),
        (("URI:quiverlog://other/user/alice", "CN:bob"), ""),
        (("URI:quiverlog://c/user/a b",), ""),
        (("URI:quiverlog://c/user/",), ""),
        (("CN:a b",), ""),
        ((), ""),
    ],
)
def test_a_certificate_names_a_user(tmp_path: Path, names: tuple[str, ...], user: str) -> None:
    assert certified_user(names, "c") == user
    node = world(tmp_path, authentication=CERTIFIED, cluster_id="c")
    connect(node, OTHER, names=names)
    answer = step(node, CERTIFICATE, b"", OTHER)
    if user:
        assert (answer.is_done, answer.principal) == (True, f"user:{user}")
        assert who(node, OTHER) == f"user:{user}"
        alter(node, "zoe", UserChange.CREATE, b"pw", connection=ADMIN)
        assert closed(node) == [], "no user has to be made"
        return
    assert answer is None
    node.advance(1_300)
    assert late(node, OTHER).error_code == AuthenticationFailed.code


def test_a_users_uri_quotes_the_cluster_as_a_brokers_does() -> None:
    cluster_id = "eu west/1"
    own = broker_uri(cluster_id, 7).replace("/broker/7", "/user/alice")
    assert certified_user([f"URI:{own}"], cluster_id) == "alice"
    assert certified_user([f"URI:quiverlog://{cluster_id}/user/alice"], cluster_id) == ""


def test_certificates_count_at_listeners_that_take_them(tmp_path: Path) -> None:
    node = world(tmp_path, authentication=CERTIFIED, cluster_id="c")
    connect(node, OTHER, "other", names=("CN:alice",))
    assert step(node, CERTIFICATE, b"", OTHER).error_code == InvalidRequest.code


def test_a_password_counts_beside_a_certificate_of_the_same_user_alone(tmp_path: Path) -> None:
    node = world(tmp_path, authentication=CERTIFIED, cluster_id="c")
    connect(node, OTHER, names=("CN:alice",))
    assert step(node, CERTIFICATE, b"", OTHER).is_done
    assert log_in(node, "alice", b"secret", OTHER).is_done
    assert log_in(node, "admin", b"root", OTHER).error_code == InvalidRequest.code


# --- brokers at a listener of clients ------------------------------------------------------------
def test_a_brokers_certificate_is_its_login_where_no_secret_is_asked_for(tmp_path: Path) -> None:
    node = world(tmp_path, cluster_id="c", brokers_have_certificates=True)
    seen: list[object] = []
    perform = node._perform
    node._perform = lambda effects: (seen.extend(effects), perform(effects))[1]  # type: ignore[method-assign]
    hello = connect(node, OTHER, names=("URI:quiverlog://c/broker/2",))
    assert not hello.needs_authentication
    assert ConnectionProved(OTHER) in seen, "the server waits for no login"
    assert connect(node, 13, names=("URI:quiverlog://other/broker/2",)).needs_authentication


def test_a_proof_by_the_secret_is_a_brokers_login(tmp_path: Path) -> None:
    secrets = ClusterSecrets((b"s" * 32,))
    node = world(tmp_path, cluster_id="c", cluster_secrets=secrets)
    connect(node, OTHER)
    one = Connector(secrets, Parties("c", 2, 0), bytes(NONCE_BYTES))
    first = step(node, CLUSTER_SHA_256, one.opening, OTHER)
    assert step(node, CLUSTER_SHA_256, one.answer(first.data), OTHER).principal == "broker:2"
    assert who(node, OTHER) == "broker:2"
    assert step(node, CLUSTER_SHA_256, one.opening, ALICE).error_code == InvalidRequest.code


def test_a_broker_that_asks_for_logins_and_has_no_user_says_so(tmp_path: Path) -> None:
    def warnings(node: NodeDriver) -> int:
        return sum(
            one.event == "the cluster has no user, and a listener serves users alone"
            for one in node.lines
        )

    node = NodeDriver(tmp_path / "none", authentication=REQUIRED)
    assert warnings(node) == 1
    assert not warnings(
        NodeDriver(tmp_path / "one", authentication=REQUIRED, first_user=first_user())
    )
    assert not warnings(NodeDriver(tmp_path / "wanted", authentication=WANTED))
    by_certificate = Authentication(Asked.REQUIRED, (CERTIFICATE,))
    assert not warnings(NodeDriver(tmp_path / "c", authentication={"default": by_certificate}))
