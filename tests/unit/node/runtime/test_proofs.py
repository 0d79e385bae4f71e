"""A node and its peers' proofs: what is served to a connection that has proved which node id."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import pytest

from quiverlog.addresses import Address
from quiverlog.core.security.principals import of_user
from quiverlog.errors import (
    AuthenticationFailed,
    CorruptLog,
    InvalidConfig,
    InvalidRequest,
    NotAuthenticated,
    WrongListener,
)
from quiverlog.node.runtime.effects import ConnectionProved
from quiverlog.node.runtime.events import ConnectionOpened, RequestReceived, SecretsChanged
from quiverlog.wire import messages as m
from quiverlog.wire.authentication_messages import CLUSTER_SHA_256, AuthenticateRequest
from quiverlog.wire.broker_messages import BrokerHeartbeatRequest
from quiverlog.wire.config_messages import DescribeConfigsRequest
from quiverlog.wire.peer_proof import NONCE_BYTES, ClusterSecrets, Connector, Parties
from quiverlog.wire.registry import APIS, SENDERS
from tests.support.node import NodeDriver

OLD, NEW = b"o" * 32, b"n" * 32
PEER = 1
"""The connection of a broker, in tests with one."""


def secrets(*values: bytes) -> ClusterSecrets:
    return ClusterSecrets(values)


@pytest.fixture
def node(tmp_path: Path) -> NodeDriver:
    return NodeDriver(tmp_path, cluster_id="c", cluster_secrets=secrets(NEW))


def step(node: NodeDriver, data: bytes, connection: int = PEER) -> Any:
    request = AuthenticateRequest(mechanism=CLUSTER_SHA_256, data=data)
    return node.call(request, connection=connection)[0]


def prove(node: NodeDriver, node_id: int = 2, secret: bytes = NEW, connection: int = PEER) -> Any:
    """The answer to the last step."""
    one = Connector(secrets(secret), Parties("c", node_id, 0), bytes(NONCE_BYTES))
    first = step(node, one.opening, connection)
    return step(node, one.answer(first.data), connection) if not first.error_code else first


def beat(node: NodeDriver, node_id: int = 2, connection: int = PEER) -> int:
    """The error code of a request between brokers; 74: it was looked at."""
    request = BrokerHeartbeatRequest(cluster_id="c", node_id=node_id, broker_epoch=1)
    return int(node.call(request, connection=connection)[0].error_code)


def named(kind: type[m.Request], node_id: int) -> m.Request:
    request = kind()
    setattr(request, SENDERS[kind], node_id)
    return request


@pytest.mark.parametrize("kind", SENDERS, ids=lambda kind: kind.API.name)
def test_nothing_between_brokers_is_taken_without_a_proof(
    node: NodeDriver, kind: type[m.Request]
) -> None:
    response, _ = node.call(named(kind, 2))
    assert response.error_code == NotAuthenticated.code
    assert [one.connection_id for one in node.closed] == [1]


@pytest.mark.parametrize("kind", SENDERS, ids=lambda kind: kind.API.name)
def test_nothing_between_brokers_is_taken_in_another_name(
    node: NodeDriver, kind: type[m.Request]
) -> None:
    assert prove(node).is_done
    response, _ = node.call(named(kind, 3))
    assert response.error_code == NotAuthenticated.code
    assert "it is node 2" in response.error_message
    assert [one.connection_id for one in node.closed] == [1]


@pytest.mark.parametrize("kind", SENDERS, ids=lambda kind: kind.API.name)
def test_a_proved_broker_is_served(node: NodeDriver, kind: type[m.Request]) -> None:
    assert prove(node).principal == "broker:2"
    answer = node.answer(node.request(named(kind, 2)))
    # Empty requests may be refused, or wait; but not for the sender's identity.
    assert answer is None or answer[0].error_code != NotAuthenticated.code
    assert not node.closed


def test_a_proof_counts_for_its_connection_only(node: NodeDriver) -> None:
    assert prove(node).is_done
    assert beat(node) == 74
    assert beat(node, connection=2) == NotAuthenticated.code
    node.close_connection(PEER)
    node.call(m.HelloRequest(), connection=PEER)
    assert beat(node) == NotAuthenticated.code


def test_the_server_learns_of_a_proof(node: NodeDriver) -> None:
    one = Connector(secrets(NEW), Parties("c", 2, 0), bytes(NONCE_BYTES))
    first = step(node, one.opening)
    last = AuthenticateRequest(mechanism=CLUSTER_SHA_256, data=one.answer(first.data))
    last.correlation_id = 1_000
    effects = node.send(RequestReceived(PEER, last, memoryview(b"")))
    assert ConnectionProved(PEER) in effects


REFUSED = {
    "another secret": lambda node: (step(node, struct.pack("<II32x", 2, 0)), step(node, OLD))[1],
    "another broker is meant": lambda node: step(node, struct.pack("<II32x", 2, 7)),
    "its own node id": lambda node: step(node, struct.pack("<II32x", 0, 0)),
    "half an opening": lambda node: step(node, struct.pack("<II16x", 2, 0)),
    "a proof at once": lambda node: step(node, bytes(32)),
    "no proof": lambda node: (step(node, struct.pack("<II32x", 2, 0)), step(node, b""))[1],
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_wrong_proof_is_refused_by_one_text(node: NodeDriver, name: str) -> None:
    response = REFUSED[name](node)
    assert response.error_code == AuthenticationFailed.code
    assert response.error_message == "broker 0 refuses the proof."
    assert [one.connection_id for one in node.closed] == [PEER]
    assert node.metrics.peer_proofs_refused == 1
    (line,) = [one for one in node.lines if one.event == "a proof was refused"]
    assert line.fields["why"]
    assert beat(node, connection=2) == NotAuthenticated.code


def refused_from(node: NodeDriver, address: str, connection: int = 10) -> None:
    node.send(ConnectionOpened(connection, f"{address}:1", "default"))
    node.call(m.HelloRequest(), connection=connection)
    step(node, b"", connection)
    node.close_connection(connection)


def refusals(node: NodeDriver) -> list[object]:
    """The addresses that were logged."""
    return [one.fields["address"] for one in node.lines if one.event == "a proof was refused"]


def test_refusals_are_counted_and_logged_once_a_minute_for_each_address(node: NodeDriver) -> None:
    for _ in range(5):
        refused_from(node, "10.0.0.1")
    refused_from(node, "10.0.0.2")
    assert refusals(node) == ["10.0.0.1", "10.0.0.2"]
    assert node.metrics.peer_proofs_refused == 6
    node.mono_us += 59_000_000
    refused_from(node, "10.0.0.1")
    assert len(refusals(node)) == 2
    node.mono_us += 1_000_000
    refused_from(node, "10.0.0.1")
    assert refusals(node)[2:] == ["10.0.0.1"]


def test_refusals_from_many_addresses_share_a_line(node: NodeDriver) -> None:
    for number in range(64):
        refused_from(node, f"10.0.0.{number}")
    assert len(refusals(node)) == 64
    for number in range(64, 80):
        refused_from(node, f"10.0.0.{number}")
    assert refusals(node)[64:] == ["10.0.0.64"]
    node.mono_us += 60_000_000
    refused_from(node, "10.0.0.70")
    assert refusals(node)[65:] == ["10.0.0.70"]
    assert node.metrics.peer_proofs_refused == 81


def test_a_connector_that_leaves_when_it_has_seen_the_proof_is_a_refusal(node: NodeDriver) -> None:
    """With another secret it does not prove anything itself."""
    node.send(ConnectionOpened(10, "10.0.0.1:1", "default"))
    node.call(m.HelloRequest(), connection=10)
    assert not step(node, struct.pack("<II32x", 2, 0), 10).error_code
    assert node.metrics.peer_proofs_refused == 0
    node.close_connection(10)
    assert node.metrics.peer_proofs_refused == 1
    assert refusals(node) == ["10.0.0.1"]
    assert prove(node).is_done
    node.close_connection(PEER)
    assert node.metrics.peer_proofs_refused == 1, "it had proved itself"


def test_the_secrets_that_count_are_a_metric(node: NodeDriver) -> None:
    assert node.metrics.cluster_secrets == 1
    node.send(SecretsChanged(secrets(NEW, OLD)))
    assert node.metrics.cluster_secrets == 2
    node.restart(cluster_secrets=secrets(NEW, OLD))
    assert node.metrics.cluster_secrets == 2


def test_a_proof_is_given_once(node: NodeDriver) -> None:
    assert prove(node).is_done
    assert prove(node, 3).error_code == InvalidRequest.code
    assert beat(node) == 74
    assert beat(node, 3) == NotAuthenticated.code


def test_another_mechanism_is_refused(node: NodeDriver) -> None:
    response, _ = node.call(AuthenticateRequest(mechanism="PLAIN", data=NEW))
    assert response.error_code == WrongListener.code
    assert not node.closed


def test_each_handshake_has_a_nonce_of_its_own(node: NodeDriver) -> None:
    opening = struct.pack("<II32x", 2, 0)
    nonces = [step(node, opening, connection).data[:NONCE_BYTES] for connection in (1, 2)]
    assert nonces[0] != nonces[1]


# --- secrets that change ------------------------------------------------------------------------
def test_a_removed_secret_ends_what_it_has_proved(node: NodeDriver) -> None:
    node.send(SecretsChanged(secrets(NEW, OLD)))
    node.call(m.HelloRequest(), connection=3)
    assert prove(node, 2, OLD).is_done
    assert prove(node, 3, NEW, connection=2).is_done
    node.send(SecretsChanged(secrets(NEW)))
    assert [one.connection_id for one in node.closed] == [PEER]
    assert beat(node) == NotAuthenticated.code
    assert beat(node, 3, connection=2) == 74
    with pytest.raises(Exception, match="not proved"):
        prove(node, 2, OLD, connection=3)


def test_a_handshake_that_has_begun_ends_with_its_secret(node: NodeDriver) -> None:
    node.send(SecretsChanged(secrets(NEW, OLD)))
    one = Connector(secrets(OLD), Parties("c", 2, 0), bytes(NONCE_BYTES))
    answer = one.answer(step(node, one.opening).data)
    node.send(SecretsChanged(secrets(NEW)))
    assert step(node, answer).error_code == AuthenticationFailed.code
    assert beat(node) == NotAuthenticated.code


# --- not required -------------------------------------------------------------------------------
@pytest.fixture
def lenient(tmp_path: Path) -> NodeDriver:
    return NodeDriver(tmp_path, cluster_id="c", cluster_secrets=secrets(NEW), proof_required=False)


def test_brokers_without_proof_are_taken_counted_and_warned_of(lenient: NodeDriver) -> None:
    def warnings() -> int:
        return sum(one.event == "a broker takes part without proof" for one in lenient.lines)

    assert [beat(lenient, node_id) for node_id in (2, 3, 2)] == [74, 74, 74]
    assert (lenient.metrics.peer_connections_unproved, warnings()) == (1, 1)
    assert beat(lenient, connection=2) == 74
    assert (lenient.metrics.peer_connections_unproved, warnings()) == (2, 1)


def test_a_user_is_no_broker_although_no_proof_is_required(lenient: NodeDriver) -> None:
    lenient.node.broker.clients.authenticated(PEER, of_user("alice"))
    assert beat(lenient) == NotAuthenticated.code
    assert beat(lenient, connection=2) == 74, "others go on"


def test_a_wrong_proof_is_refused_although_none_is_required(lenient: NodeDriver) -> None:
    assert step(lenient, bytes(32)).error_code == AuthenticationFailed.code
    assert [one.connection_id for one in lenient.closed] == [PEER]


def test_a_proof_binds_its_connection_although_none_is_required(lenient: NodeDriver) -> None:
    assert prove(lenient).is_done
    assert beat(lenient, 3) == NotAuthenticated.code
    assert lenient.metrics.peer_connections_unproved == 0


def test_a_broker_without_a_secret_asks_for_none_and_warns_of_none(tmp_path: Path) -> None:
    node = NodeDriver(tmp_path, cluster_id="c")
    node.lines.clear()
    assert beat(node) == 74
    assert not [one for one in node.lines if one.level in ("warning", "error")]
    assert step(node, struct.pack("<II32x", 2, 0)).error_code == AuthenticationFailed.code


# --- listeners ----------------------------------------------------------------------------------
@pytest.fixture
def apart(tmp_path: Path) -> NodeDriver:
    """A node whose brokers meet at a listener of their own."""
    return NodeDriver(
        tmp_path,
        cluster_id="c",
        cluster_secrets=secrets(NEW),
        listeners={"internal": Address("h", 1)},
        inter_broker_listener="internal",
    )


def opened(node: NodeDriver, connection: int, listener: str) -> int:
    node.send(ConnectionOpened(connection, "10.0.0.1:1", listener))
    node.call(m.HelloRequest(client_id="c"), connection=connection)
    return connection


@pytest.mark.parametrize(
    "kind",
    [s.request for s in APIS.values() if s.request not in (m.HelloRequest, AuthenticateRequest)],
    ids=lambda kind: kind.API.name,
)
def test_a_listener_for_brokers_serves_nothing_before_the_proof(
    apart: NodeDriver, kind: type[m.Request]
) -> None:
    connection = opened(apart, 8, "internal")
    response, _ = apart.call(kind(), connection=connection)
    assert response.error_code == NotAuthenticated.code
    assert apart.closed[-1].connection_id == connection


def test_a_listener_for_brokers_serves_all_after_the_proof(apart: NodeDriver) -> None:
    connection = opened(apart, 8, "internal")
    assert prove(apart, connection=connection).is_done
    assert apart.call(m.MetadataRequest(), connection=connection)[0].error_code == 0
    assert beat(apart, connection=connection) == 74


def test_a_listener_of_clients_takes_no_proof(apart: NodeDriver) -> None:
    assert step(apart, struct.pack("<II32x", 2, 0)).error_code == WrongListener.code
    assert beat(apart) == WrongListener.code
    assert apart.call(m.MetadataRequest())[0].error_code == 0


def test_a_listener_for_both_serves_clients_without_a_proof(node: NodeDriver) -> None:
    assert node.call(m.MetadataRequest())[0].error_code == 0


def test_authentication_is_offered_where_brokers_meet(apart: NodeDriver) -> None:
    for listener, offers in (("internal", True), ("default", False)):
        apart.send(ConnectionOpened(20, "10.0.0.1:1", listener))
        hello, _ = apart.call(m.HelloRequest(), connection=20)
        assert (m.Api.AUTHENTICATE in {one.api for one in hello.apis}) is offers
        apart.close_connection(20)


def test_a_lone_broker_serves_no_broker_whatever_it_proves(tmp_path: Path) -> None:
    node = NodeDriver(tmp_path, cluster_secrets=secrets(NEW))
    assert step(node, struct.pack("<II32x", 2, 0)).error_code == WrongListener.code
    assert beat(node) == WrongListener.code


# --- what is remembered -------------------------------------------------------------------------
def test_a_directory_that_was_made_with_a_secret_asks_for_it_ever_after(node: NodeDriver) -> None:
    node.restart()
    assert beat(node) == NotAuthenticated.code
    node.stop()
    with pytest.raises(InvalidConfig, match=r"`cluster.secret.file` is not given"):
        node.restart(cluster_secrets=secrets())


def test_it_starts_without_the_secret_where_the_operator_says_so(node: NodeDriver) -> None:
    node.restart(cluster_secrets=secrets(), proof_required=False)
    assert beat(node) == 74
    node.restart(cluster_secrets=secrets(NEW), proof_required=None)
    assert beat(node) == NotAuthenticated.code, "what the directory has recorded stays"


def test_a_directory_that_was_made_without_a_secret_asks_when_it_is_told(tmp_path: Path) -> None:
    node = NodeDriver(tmp_path, cluster_id="c")
    node.restart(cluster_secrets=secrets(NEW))
    assert beat(node) == 74
    node.restart(proof_required=True)
    assert beat(node) == NotAuthenticated.code
    node.restart(proof_required=None)
    assert beat(node) == NotAuthenticated.code, "the key was lost, and opens nothing"
    node.restart(proof_required=False)
    assert beat(node) == 74
    node.restart(proof_required=None)
    assert beat(node) == NotAuthenticated.code, "`false` counts while it is given"


def test_the_value_in_force_is_shown(tmp_path: Path) -> None:
    def shown() -> list[object]:
        key = "cluster.secret.required"
        found, _ = node.call(DescribeConfigsRequest(keys=[key]))
        started = [one for one in node.lines if one.event == "started"][-1]
        return [found.configs[0].value, started.fields["proof_required"]]

    node = NodeDriver(tmp_path, cluster_id="c")
    assert shown() == ["false", False]
    node.restart(cluster_secrets=secrets(NEW))
    assert shown() == ["false", False]
    node.restart(proof_required=True)
    assert shown() == ["true", True]
    node.restart(proof_required=None)
    assert shown() == ["true", True]
    node.restart(proof_required=False)
    assert shown() == ["false", False]


def test_what_is_recorded_cannot_be_lost_by_a_flipped_bit(node: NodeDriver, tmp_path: Path) -> None:
    node.stop()
    file = Path(node.config.data_dir) / "node.json"
    text = file.read_text()
    assert '"proof_required":true' in text
    for changed in (text.replace("proof_required", "proof_requjred"), text.replace("true", "null")):
        file.write_text(changed)
        with pytest.raises(CorruptLog, match=r"node\.json is damaged"):
            node.start()


def test_a_directory_without_the_requirement_looks_as_before(tmp_path: Path) -> None:
    node = NodeDriver(tmp_path, cluster_id="c")
    node.stop()
    assert "proof" not in (Path(node.config.data_dir) / "node.json").read_text()


@pytest.mark.parametrize(("cluster_id", "count"), [("", 0), ("c", 1)])
def test_a_broker_that_others_may_join_warns_from_its_first_start(
    tmp_path: Path, cluster_id: str, count: int
) -> None:
    def warnings() -> int:
        found = [one for one in node.lines if one.level in ("warning", "error")]
        assert {one.event for one in found} <= {"other brokers are taken without proof"}
        return len(found)

    node = NodeDriver(tmp_path, cluster_id=cluster_id)
    assert warnings() == count
    node.restart(cluster_secrets=secrets(NEW), proof_required=False)
    assert warnings() == 2 * count
    node.restart(proof_required=True)
    assert warnings() == 2 * count


# --- certificates ---------------------------------------------------------------------------------
BROKER_2 = ("DNS:broker-2", "URI:quiverlog://c/broker/2", "CN:broker-2")


def by_tls(path: Path, listener: str = "default", **config: Any) -> NodeDriver:
    return NodeDriver(
        path,
        cluster_id="c",
        brokers_have_certificates=True,
        inter_broker_listener=listener,
        listeners={"default": Address("h", 1), "peers": Address("h", 2)},
        **config,
    )


def connected(node: NodeDriver, names: tuple[str, ...], listener: str = "default") -> None:
    node.send(ConnectionOpened(7, "10.0.0.3:4", listener, names))
    node.call(m.HelloRequest(), connection=7)


@pytest.mark.parametrize("listener", ["default", "peers"])
@pytest.mark.parametrize(
    ("names", "is_taken"),
    [
        (BROKER_2, True),
        ((), False),
        (("URI:quiverlog://c/broker/3",), False),
        (("URI:quiverlog://other/broker/2",), False),
        (("DNS:quiverlog://c/broker/2", "CN:quiverlog://c/broker/2"), False),
        (("URI:quiverlog://c/broker/2", "URI:quiverlog://c/broker/3"), False),
        (("URI:quiverlog://c/broker/2", "URI:quiverlog://other/broker/3"), True),
    ],
)
def test_only_the_certificate_of_a_broker_speaks_for_it(
    tmp_path: Path, listener: str, names: tuple[str, ...], is_taken: bool
) -> None:
    node = by_tls(tmp_path, listener)
    connected(node, names, listener)
    found = beat(node, connection=7)
    assert (found == NotAuthenticated.code) == (not is_taken)
    assert found in (NotAuthenticated.code, 74)
    assert node.node.broker.proofs._metrics.peer_connections_unproved == 0


def test_a_certificate_counts_at_the_listener_of_brokers_alone(tmp_path: Path) -> None:
    node = by_tls(tmp_path, "peers")
    connected(node, BROKER_2, "default")
    assert beat(node, connection=7) == WrongListener.code


def test_clients_of_another_listener_need_no_certificate(tmp_path: Path) -> None:
    for number, (listener, clients) in enumerate((("peers", "default"), ("default", "peers"))):
        node = by_tls(tmp_path / str(number), listener)
        connected(node, (), clients)
        assert not node.call(m.MetadataRequest(), connection=7)[0].error_code


def test_where_a_secret_is_required_a_certificate_does_not_replace_it(tmp_path: Path) -> None:
    node = by_tls(tmp_path, cluster_secrets=secrets(NEW))
    connected(node, BROKER_2)
    assert beat(node, connection=7) == NotAuthenticated.code
    node = by_tls(tmp_path / "b", cluster_secrets=secrets(NEW))
    connected(node, BROKER_2)
    assert prove(node, 2, connection=7).is_done
    assert beat(node, connection=7) == 74


def test_a_proof_and_a_certificate_of_two_brokers_speak_for_neither(tmp_path: Path) -> None:
    for number, sender in enumerate((2, 3)):
        node = by_tls(tmp_path / str(number), cluster_secrets=secrets(NEW))
        connected(node, BROKER_2)
        assert prove(node, 3, connection=7).is_done
        assert beat(node, sender, connection=7) == NotAuthenticated.code


def test_nothing_is_served_at_a_listener_of_brokers_without_a_certificate(tmp_path: Path) -> None:
    node = by_tls(tmp_path, "peers")
    connected(node, ("CN:alice",), "peers")
    response, _ = node.call(m.MetadataRequest(), connection=7)
    assert response.error_code == NotAuthenticated.code
    node = by_tls(tmp_path / "b", "peers", cluster_secrets=secrets(NEW))
    connected(node, ("CN:alice",), "peers")
    prove(node, 2, connection=7)
    response, _ = node.call(m.MetadataRequest(), connection=7)
    assert response.error_code == NotAuthenticated.code


def test_proofs_are_audited_the_refused_ones_too(tmp_path: Path) -> None:
    node = NodeDriver(tmp_path, cluster_id="c", cluster_secrets=secrets(NEW), audit_wanted=True)
    assert prove(node).is_done
    begun = Connector(secrets(NEW), Parties("c", 2, 0), bytes(NONCE_BYTES))
    step(node, begun.opening, 2)
    assert step(node, bytes(32), 2).error_code == AuthenticationFailed.code
    found = [(one.fields["principal"], one.fields["result"]) for one in node.audited]
    assert found == [("broker:2", "ok"), ("anonymous", "AUTHENTICATION_FAILED")]
    assert {one.fields["mechanism"] for one in node.audited} == {CLUSTER_SHA_256}
