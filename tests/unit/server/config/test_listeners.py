"""Named listeners: what the configuration may have, and what clients of each are served."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from quiverlog.addresses import Address
from quiverlog.errors import InvalidConfig, ListenerWithoutAdministration
from quiverlog.limits import AUDIT_TOPICS_MAX
from quiverlog.node.runtime.config import Asked, Authentication
from quiverlog.node.runtime.events import ConnectionOpened
from quiverlog.server.config.config import load_config
from quiverlog.server.config.listeners import LISTENERS_MAX, ListenerConfig
from quiverlog.server.config.reload import compare_configs
from quiverlog.tls import ServerTls
from quiverlog.wire import messages as m
from quiverlog.wire.authentication_messages import DEFAULT_MECHANISMS
from quiverlog.wire.cluster_messages import UpdateFeaturesRequest
from quiverlog.wire.decommission_messages import DecommissionBrokerRequest, DecommissionStep
from quiverlog.wire.reassignment_messages import PartitionTarget, ReassignPartitionsRequest
from quiverlog.wire.registry import ADMINISTRATION, APIS
from quiverlog.wire.voters_messages import ChangeVotersRequest, VoterChange
from tests.support.node import NodeDriver

INTERNAL = """
inter.broker.listener = "internal"
[listeners.internal]
bind = "10.0.0.1:9294"
advertise = "one.internal:9294"
"""


def test_a_listener_from_the_file_the_environment_and_flags(tmp_path: Path) -> None:
    path = tmp_path / "quiverlog.toml"
    path.write_text(INTERNAL)
    config = load_config(path)
    internal = ListenerConfig(Address("10.0.0.1", 9294), Address("one.internal", 9294))
    assert config.listeners == {"internal": internal}
    assert config.inter_broker_listener == "internal"
    env = {"QUIVERLOG_LISTENERS_INTERNAL_BIND": "10.0.0.2:1"}
    assert load_config(path, environ=env).listeners["internal"].bind == Address("10.0.0.2", 1)
    flags = {"listeners.more.bind": "[::1]:0"}
    more = load_config(path, environ=env, flags=flags).listeners
    assert more["more"] == ListenerConfig(Address("::1", 0))
    assert load_config().listeners == {}


CERT = {"listeners.default.tls.cert.file": "c"}
PEERS = {
    "inter.broker.listener": "p",
    "listeners.p.bind": "h:1",
    "listeners.p.tls.cert.file": "c",
}


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"listeners.a.advertise": "h:1"}, "`listeners.a.bind` is missing"),
        ({"listeners.a.bind": "off"}, "`listeners.a.bind` is missing"),
        ({"listeners.a.bind": "9"}, "--set listeners.a.bind is '9', not host:port"),
        ({"listeners.a.band": "h:1"}, "a listener has `listeners.<name>.bind`"),
        ({"listeners.A.bind": "h:1"}, "small letters and digits"),
        ({"listeners.bind": "h:1"}, "a name of 1 to 31"),
        ({"listeners.a.b.bind": "h:1"}, "a name of 1 to 31"),
        ({"listeners.default.bind": "h:1"}, "`listen` and `advertise` configure"),
        ({"listeners.a.bind": "127.0.0.1:9292"}, "cannot share port 9292"),
        ({"listeners.a.bind": "0.0.0.0:9293"}, "`http.listen` and `listeners.a.bind` cannot"),
        ({"listeners.a.bind": "h:1", "listeners.a.advertise": "h:0"}, "port 0 can only go"),
        ({"listeners.a.bind": "h:1", "listeners.a.advertise": "0.0.0.0:1"}, "every address"),
        ({"listeners.a.administration": "true"}, "`listeners.a.bind` is missing"),
        ({"listeners.default.administration": "no"}, "is 'no', allowed are true, false"),
        ({"listeners.default.administration": "false"}, "no listener is left at which"),
        (
            {
                "listeners.a.bind": "h:1",
                "listeners.a.administration": "false",
                "listeners.default.administration": "false",
            },
            "--set listeners.a.administration, --set listeners.default.administration: no list",
        ),
        ({"listeners.default.tls.key.file": "k"}, "needs `tls.cert.file`"),
        ({"listeners.default.tls.client.auth": "wanted"}, "needs `tls.cert.file`"),
        (CERT | {"listeners.default.tls.client.auth": "wanted"}, "needs `tls.client.ca.file`"),
        (CERT | {"listeners.default.tls.client.ca.file": "a"}, "asks for no certificate"),
        (CERT | {"listeners.default.tls.version.min": "1.1"}, "allowed are 1.2, 1.3"),
        (CERT | {"cluster.id": "c"}, "brokers meet at listener 'default'"),
        (
            PEERS
            | {"listeners.p.tls.client.auth": "wanted", "listeners.p.tls.client.ca.file": "a"},
            "brokers meet at listener 'p'.*must be required there",
        ),
        ({"listeners.http.bind": "h:1"}, "`http` is the port of `http.listen`"),
        ({"inter.broker.listener": "none"}, "no listener is called 'none'"),
        ({f"listeners.a{n}.bind": "h:0" for n in range(LISTENERS_MAX + 1)}, "at most 8"),
    ],
)
def test_senseless_listeners_are_refused(given: dict[str, object], why: str) -> None:
    with pytest.raises(InvalidConfig) as caught:
        load_config(flags=given)
    assert re.search(why, str(caught.value)) or why in str(caught.value)


def test_tls_of_listeners(tmp_path: Path) -> None:
    assert load_config().listeners_tls == {}
    assert load_config().listeners_without_local_reads == set()
    path = tmp_path / "quiverlog.toml"
    path.write_text(
        """
        [listeners.default.tls]
        cert.file = "c"
        client.auth = "required"
        client.ca.file = "a"
        [listeners.http.tls]
        cert.file = "h"
        key.file = "k"
        version.min = "1.2"
        """
    )
    config = load_config(path)
    assert config.listeners == {}
    assert config.listeners_tls == {
        "default": ServerTls("c", "", "a", "required", "1.3"),
        "http": ServerTls("h", "k", "", "none", "1.2"),
    }
    assert config.listeners_without_local_reads == {"default"}
    environ = {
        "QUIVERLOG_LISTENERS_DEFAULT_TLS_CERT_FILE": "e",
        "QUIVERLOG_LISTENERS_DEFAULT_LOCAL_READS": "true",
    }
    config = load_config(path, environ=environ)
    assert config.listeners_tls["default"].cert_file == "e"
    assert config.listeners_without_local_reads == set()
    refused = load_config(flags={"listeners.default.local.reads": "false"})
    assert refused.listeners_without_local_reads == {"default"}
    assert compare_configs(load_config(), config).restart == ("listeners",)


def test_a_broker_of_its_own_asks_for_no_certificates() -> None:
    assert load_config(flags=CERT).listeners_tls == {"default": ServerTls("c")}


def test_a_variable_of_a_listener_that_is_no_key_is_refused() -> None:
    with pytest.raises(InvalidConfig, match="QUIVERLOG_LISTENERS_A_BAND"):
        load_config(environ={"QUIVERLOG_LISTENERS_A_BAND": "h:1"})


def test_listeners_change_at_the_next_start() -> None:
    found = compare_configs(load_config(), load_config(flags={"listeners.a.bind": "h:1"}))
    assert found.restart == ("listeners",)
    flags = {"listeners.a.bind": "h:1"}
    for name in ("a", "default"):
        refusing = load_config(flags={**flags, f"listeners.{name}.administration": "false"})
        assert refusing.listeners_without_administration == {name}
        assert compare_configs(load_config(flags=flags), refusing).restart == ("listeners",)


def test_metadata_names_the_address_of_the_listener_that_was_asked(tmp_path: Path) -> None:
    node = NodeDriver(
        tmp_path,
        advertised_host="outside",
        advertised_port=1,
        listeners={"default": Address("outside", 1), "internal": Address("inside", 2)},
    )
    node.send(ConnectionOpened(7, "10.0.0.3:4", "internal"))
    node.call(m.HelloRequest(), connection=7)
    for connection, where in ((1, ("outside", 1)), (7, ("inside", 2))):
        answer, _ = node.call(m.MetadataRequest(), connection=connection)
        assert [(b.host, b.port) for b in answer.brokers] == [where]


def test_administration_in_the_file_and_the_environment(tmp_path: Path) -> None:
    path = tmp_path / "quiverlog.toml"
    path.write_text(f"{INTERNAL}[listeners.default]\nadministration = false\n")
    assert load_config(path).listeners_without_administration == {"default"}
    environ = {"QUIVERLOG_LISTENERS_DEFAULT_ADMINISTRATION": "true"}
    assert load_config(path, environ=environ).listeners_without_administration == set()


ADMINISTRATIVE = {
    *("CHANGE_VOTERS", "DECOMMISSION_BROKER", "ALTER_CONFIGS", "UPDATE_FEATURES", "DELETE_TOPICS"),
    *("DELETE_RECORDS", "ELECT_LEADERS", "REASSIGN_PARTITIONS", "ALTER_USERS", "ALTER_ACLS"),
    "ALTER_QUOTAS",
}

ASKED: dict[str, m.Request] = {
    "CHANGE_VOTERS": ChangeVotersRequest(node_id=1),
    "DECOMMISSION_BROKER": DecommissionBrokerRequest(node_id=0),
    "REASSIGN_PARTITIONS": ReassignPartitionsRequest(),
    "UPDATE_FEATURES": UpdateFeaturesRequest(),
}
"""Of the administrative ones, those that have a form which only asks."""
CHANGES: dict[str, m.Request] = {
    "CHANGE_VOTERS": ChangeVotersRequest(change=VoterChange.ADD, node_id=1),
    "DECOMMISSION_BROKER": DecommissionBrokerRequest(step=DecommissionStep.BEGIN),
    "REASSIGN_PARTITIONS": ReassignPartitionsRequest(
        name="t", partitions=[PartitionTarget(0, [1])], validate_only=True
    ),
    "UPDATE_FEATURES": UpdateFeaturesRequest(level=1, validate_only=True),
}


def test_a_listener_without_administration_serves_all_else(tmp_path: Path) -> None:
    node = NodeDriver(
        tmp_path,
        listeners={"default": Address("outside", 1), "internal": Address("inside", 2)},
        listeners_without_administration=frozenset(("default",)),
    )
    node.send(ConnectionOpened(7, "10.0.0.3:4", "internal"))
    served = {}
    for connection in (1, 7):
        answer, _ = node.call(m.HelloRequest(), connection=connection)
        served[connection] = {one.api for one in answer.apis}
    assert {APIS[api].api.name for api in served[7] - served[1]} >= ADMINISTRATIVE - set(ASKED)
    assert {APIS[api].api.name for api in served[1]} >= set(ASKED)
    assert {api.name for api in ADMINISTRATION} == ADMINISTRATIVE
    refused = set()
    for spec in APIS.values():
        if not spec.between_brokers:
            change = CHANGES.get(spec.api.name, spec.request())
            answer, _ = node.call(change, connection=1)
            if answer.error_code == ListenerWithoutAdministration.code:
                refused.add(spec.api.name)
                assert answer.error_message == (
                    f"the listener 'default' of broker 0 serves no {spec.api.name}:"
                    " ask at 'internal' (inside:2)."
                )
            answer, _ = node.call(change, connection=7)
            assert answer.error_code != ListenerWithoutAdministration.code
    assert refused == ADMINISTRATIVE


@pytest.mark.parametrize("api", ASKED)
def test_a_listener_without_administration_serves_what_only_asks(tmp_path: Path, api: str) -> None:
    """`quorum status` was refused, for it shares its number with a change of the voters."""
    node = NodeDriver(
        tmp_path,
        listeners={"default": Address("outside", 1), "internal": Address("inside", 2)},
        listeners_without_administration=frozenset(("default",)),
    )
    node.call(m.HelloRequest(), connection=1)
    assert not node.call(ASKED[api], connection=1)[0].error_code
    assert node.call(CHANGES[api], connection=1)[0].error_code == ListenerWithoutAdministration.code


# --- logins ------------------------------------------------------------------------------------
def asking(**keys: str) -> dict[str, str]:
    """Flags of the listener `default`; `a_b` is the key a.b."""
    return {f"listeners.default.{name.replace('_', '.')}": text for name, text in keys.items()}


WITH_TLS = {
    "tls_cert_file": "c.pem", "tls_client_ca_file": "ca.pem", "tls_client_auth": "wanted",
}  # fmt: skip
NO_TLS = {"allow_plaintext": "true"}


@pytest.mark.parametrize(
    ("keys", "found"),
    [
        ({}, {}),
        ({"authentication": "none", "mechanisms": "TOKEN"}, {}),
        (
            {"authentication": "required", **NO_TLS},
            {"default": Authentication(Asked.REQUIRED, DEFAULT_MECHANISMS)},
        ),
        (
            {"authentication": "wanted", "mechanisms": "token, scram-sha-256", **WITH_TLS},
            {"default": Authentication(Asked.WANTED, ("SCRAM-SHA-256", "TOKEN"))},
        ),
    ],
    ids=str,
)
def test_what_a_listener_asks_for(keys: dict[str, str], found: dict[str, Authentication]) -> None:
    config = load_config(flags=asking(**keys))
    assert config.authentication == found
    if found:
        assert "listeners" in compare_configs(load_config(), config).restart


@pytest.mark.parametrize(
    ("keys", "why"),
    [
        ({"authentication": "required"}, "without TLS"),
        ({"authentication": "wanted", **WITH_TLS, "tls_required": "false"}, "without TLS"),
        ({"authentication": "yes"}, "none, wanted, required"),
        ({"authentication": "required", **NO_TLS, "mechanisms": "PLAIN"}, "SCRAM-SHA-512"),
        ({"authentication": "required", **NO_TLS, "mechanisms": ""}, "SCRAM-SHA-512"),
        ({"authentication": "required", **NO_TLS, "mechanisms": "CERTIFICATE"}, "asks for none"),
        ({"authentication.x": "required"}, "a listener has"),
    ],
    ids=str,
)
def test_what_a_listener_cannot_ask_for(keys: dict[str, str], why: str) -> None:
    with pytest.raises(InvalidConfig, match=why):
        load_config(flags=asking(**keys))


def test_logins_by_the_environment() -> None:
    environ = {
        "QUIVERLOG_LISTENERS_DEFAULT_AUTHENTICATION": "required",
        "QUIVERLOG_LISTENERS_DEFAULT_ALLOW_PLAINTEXT": "true",
        "QUIVERLOG_SUPER_USERS": "alice, bob",
    }
    config = load_config(environ=environ)
    assert config.authentication["default"].asked is Asked.REQUIRED
    assert config.super_users == ("alice", "bob")
    with pytest.raises(InvalidConfig, match="names of users"):
        load_config(environ={"QUIVERLOG_SUPER_USERS": "a b"})


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("", ()),
        ("orders, flights-*,orders", ("orders", "flights-*")),
        ("*", ("*",)),
        (",".join(f"t{n}" for n in range(AUDIT_TOPICS_MAX)), None),
    ],
)
def test_audited_topics(text: str, names: tuple[str, ...] | None) -> None:
    found = load_config(environ={"QUIVERLOG_AUDIT_TOPICS": text}).audit_topics
    assert found == names or (names is None and len(found) == AUDIT_TOPICS_MAX)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("a b", "names of topics"),
        ("*-orders", "names of topics"),
        ("**", "names of topics"),
        (",".join(f"t{n}" for n in range(AUDIT_TOPICS_MAX + 1)), "at most 100 names"),
    ],
)
def test_what_names_no_audited_topics(text: str, why: str) -> None:
    with pytest.raises(InvalidConfig, match=why):
        load_config(environ={"QUIVERLOG_AUDIT_TOPICS": text})


@pytest.mark.parametrize("required", ["true", "false"])
def test_certificates_stand_for_the_secret_where_tls_is_required(required: str) -> None:
    flags = asking(authentication="required", **NO_TLS, **WITH_TLS, tls_required=required)
    flags["cluster.id"] = "c"
    if required == "true":
        assert load_config(flags=flags).cluster_id == "c"
        return
    with pytest.raises(InvalidConfig, match="give them `cluster"):
        load_config(flags=flags)


def test_brokers_that_meet_where_logins_are_asked_for_have_a_secret() -> None:
    flags = asking(authentication="required", **NO_TLS)
    with pytest.raises(InvalidConfig, match="give them `cluster"):
        load_config(flags={**flags, "cluster.id": "c"})
    load_config(flags={**flags, "cluster.id": "c", "cluster.secret.file": "s"})
    load_config(flags=flags)
