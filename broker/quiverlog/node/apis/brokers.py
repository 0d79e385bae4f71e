"""HELLO, AUTHENTICATE, and the requests between brokers with their checks: listener, proved sender,
cluster, node.
"""

from __future__ import annotations

from typing import cast

from quiverlog.addresses import Address
from quiverlog.core.raft.messages import Observe, ReplicaKey
from quiverlog.core.security.principals import Kind
from quiverlog.errors import (
    AuthenticationFailed,
    BrokerShuttingDown,
    DuplicateNodeId,
    InvalidRequest,
    QuiverlogError,
    UnsupportedVersion,
    WrongCluster,
    WrongListener,
    WrongNode,
)
from quiverlog.limits import CLIENT_ID_CHARS_MAX
from quiverlog.node.broker import Broker
from quiverlog.node.metadata.quorum_wire import unpack
from quiverlog.node.runtime.events import RequestReceived
from quiverlog.node.runtime.tasks import Call, Steps
from quiverlog.node.security.audit import OK
from quiverlog.types import Now
from quiverlog.wire import messages as m
from quiverlog.wire.authentication_messages import CLUSTER_SHA_256, AuthenticateRequest
from quiverlog.wire.broker_messages import (
    BrokerHeartbeatRequest,
    RegisterBrokerRequest,
    RegisterBrokerResponse,
)
from quiverlog.wire.connection import BROKER_SOFTWARE
from quiverlog.wire.messages import Response
from quiverlog.wire.quorum_messages import QuorumRequest, QuorumResponse
from quiverlog.wire.registry import api_ranges
from quiverlog.wire.replica_messages import (
    AlterPartitionRequest,
    ReportLogEndsRequest,
    ReportLogEndsResponse,
)

__all__ = [
    "check_peer",
    "handle_alter_partition",
    "handle_authenticate",
    "handle_broker_heartbeat",
    "handle_hello",
    "handle_quorum",
    "handle_register_broker",
    "handle_report_log_ends",
    "has_others",
    "serves_brokers",
]


# QUORUM
def serves_brokers(broker: Broker, connection_id: int) -> bool:
    listener = broker.clients.listener_of(connection_id)
    if listener != broker.config.inter_broker_listener or not broker.quorum_inbox.is_served:
        return False
    return broker.config.lets_others_join or has_others(broker)


def has_others(broker: Broker) -> bool:
    """True where the metadata name other brokers, which came by the APIs between brokers."""
    node_id = broker.config.node_id
    if any(voter.node_id != node_id for voter in broker.quorum.raft.voters):
        return True
    return any(other != node_id for other in broker.metadata.image.brokers)


def check_peer(broker: Broker, event: RequestReceived, now: Now) -> None:
    """Check a request of `wire.registry.SENDERS` before its handler has it.

    Raises:
        WrongListener: brokers meet elsewhere, or not at all.
        NotAuthenticated: the connection has not proved the node id that the request names.
    """
    _check_serves_brokers(broker, event.connection_id, event.request.API.name)
    broker.proofs.check(event.connection_id, event.request, now)


def _check_serves_brokers(broker: Broker, connection_id: int, api: str) -> None:
    if serves_brokers(broker, connection_id):
        return
    listener = broker.clients.listener_of(connection_id)
    if listener == broker.config.inter_broker_listener and broker.quorum_inbox.is_served:
        cluster_id = broker.directory.cluster_id
        raise WrongListener(
            f"this broker is a cluster of its own and serves no {api}. For others to join, start it"
            f" with `cluster.id` = {cluster_id!r}, its cluster."
        )
    raise WrongListener(f"the listener {listener!r} of this broker serves no {api}.")


def _check_node_id(broker: Broker, source: ReplicaKey, endpoint: str) -> None:
    """Raise DuplicateNodeId if another live broker is registered under the id, elsewhere."""
    # At the same address it has lost its disk, and its earlier life is not fenced yet.
    known = broker.metadata.image.brokers.get(source.node_id)
    if known is None or known.fenced or known.directory_id in ("", source.directory_id):
        return
    listener = broker.config.inter_broker_listener
    where = {f"{Address(host, port)}" for name, host, port in known.listeners if name == listener}
    if endpoint and where and endpoint not in where:
        raise DuplicateNodeId(
            f"node id {source.node_id} is that of a broker with another data directory, at"
            f" {', '.join(where)}: give this broker an id of its own."
        )


def _name_leader(broker: Broker, response: QuorumResponse) -> None:
    leader = broker.quorum.raft.leader
    if leader is None:
        return
    is_own = leader.node_id == broker.config.node_id
    known = (
        broker.config.endpoint if is_own else broker.broker_addresses.known().get(leader.node_id)
    )
    response.leader_id, response.leader_directory = leader
    response.leader_endpoint = "" if known is None else str(known)


def handle_quorum(broker: Broker, event: RequestReceived, now: Now) -> None:
    request = event.request
    assert isinstance(request, QuorumRequest)
    cluster_id, node_id = broker.directory.cluster_id, broker.config.node_id
    if request.cluster_id != cluster_id:
        raise WrongCluster(f"the request is for {request.cluster_id!r}, this is {cluster_id!r}.")
    if request.target_id != node_id:
        raise WrongNode(f"the request is for node {request.target_id}, this is {node_id}.")
    messages = unpack(request, event.body)
    source = ReplicaKey(request.source_id, request.source_directory)
    assert source.directory_id, "unpack refuses a sender without a disk"
    first = broker.broker_addresses.record_sender(
        source,
        request.source_endpoint,
        now,
        is_led=broker.quorum.raft.leader is not None,
        yields=source in broker.quorum.raft.lost_entries,
        is_controller=request.source_is_controller,
    )
    if first is not None:  # Its votes and acknowledgements would count as the first one's.
        raise DuplicateNodeId(
            f"node {source.node_id} runs at {first}, with the same data directory. The process at"
            f" {request.source_endpoint} is refused until that one was silent for a session."
        )
    # Before the check: a broker that lost its disk may vote while its earlier life is not fenced.
    broker.quorum_inbox.take(messages, now)
    _check_node_id(broker, source, request.source_endpoint)
    response = QuorumResponse(directory_id=broker.directory.directory_id)
    if any(isinstance(message, Observe) for message in messages):
        _name_leader(broker, response)
    broker.outbox.respond(event.connection_id, request.correlation_id, response)


def _check_active(broker: Broker) -> None:
    if not broker.membership.is_active:
        raise BrokerShuttingDown


def _check(broker: Broker, request: RegisterBrokerRequest | BrokerHeartbeatRequest) -> None:
    _check_active(broker)
    cluster_id = broker.directory.cluster_id
    if request.cluster_id != cluster_id:
        raise WrongCluster(f"the request is for {request.cluster_id!r}, this is {cluster_id!r}.")


def handle_register_broker(broker: Broker, event: RequestReceived, now: Now) -> None:
    request = event.request
    assert isinstance(request, RegisterBrokerRequest)
    _check(broker, request)

    def then(response: object, error: BaseException | None, now: Now) -> None:
        if error is not None:
            failure = error if isinstance(error, QuiverlogError) else QuiverlogError()
            broker.fail(event.connection_id, request, failure)
            return
        assert isinstance(response, RegisterBrokerResponse)
        broker.outbox.respond(event.connection_id, request.correlation_id, response)

    broker.membership.registrar.register(request, then, now)


def handle_broker_heartbeat(broker: Broker, event: RequestReceived, now: Now) -> None:
    request = event.request
    assert isinstance(request, BrokerHeartbeatRequest)
    _check(broker, request)
    response = broker.membership.registrar.beat(request, now)
    broker.outbox.respond(event.connection_id, request.correlation_id, response)


def handle_report_log_ends(broker: Broker, event: RequestReceived, now: Now) -> None:
    request = event.request
    assert isinstance(request, ReportLogEndsRequest)
    _check_active(broker)

    def then(response: object, error: BaseException | None, _now: Now) -> None:
        assert isinstance(response, ReportLogEndsResponse)
        assert error is None
        broker.outbox.respond(event.connection_id, request.correlation_id, response)

    broker.membership.log_end_decisions.decide(request, then, now)


# ALTER_PARTITION
def handle_alter_partition(broker: Broker, call: Call) -> Steps:
    """Answer when the accepted changes are committed."""
    request = call.request
    assert isinstance(request, AlterPartitionRequest)
    decisions = broker.in_sync_decisions
    response = yield lambda then: decisions.decide(request, then, call.now)
    return cast("Response", response)


# AUTHENTICATE
def handle_authenticate(broker: Broker, event: RequestReceived, now: Now) -> None:
    request = event.request
    assert isinstance(request, AuthenticateRequest)
    address = broker.clients.network_of(event.connection_id)
    response: Response | None
    if request.mechanism == CLUSTER_SHA_256:
        if broker.clients.principal_of(event.connection_id).kind is Kind.USER:
            raise InvalidRequest("the connection is logged in, as a user.")
        _check_serves_brokers(broker, event.connection_id, request.API.name)
        response = _take_proof(broker, event.connection_id, address, request, now)
    else:
        broker.admission.check_running()  # Before, the users are not known.
        response = broker.logins.take(event.connection_id, address, request, now)
    if response is not None:
        broker.outbox.respond(event.connection_id, request.correlation_id, response)


def _take_proof(
    broker: Broker, connection_id: int, address: str, request: AuthenticateRequest, now: Now
) -> Response:
    try:
        response = broker.proofs.take(connection_id, address, request, now)
    except AuthenticationFailed as error:
        broker.audit.logged_in(connection_id, "", request.mechanism, error.code_name())
        raise
    if response.is_done:
        broker.logins.proved(connection_id)
        broker.audit.logged_in(connection_id, response.principal, request.mechanism, OK)
    return response


def _takes_proofs(broker: Broker, connection_id: int) -> bool:
    return bool(broker.proofs.secrets) and serves_brokers(broker, connection_id)


# HELLO
def handle_hello(broker: Broker, event: RequestReceived, now: Now) -> None:
    request = event.request
    assert isinstance(request, m.HelloRequest)
    if len(request.client_id) > CLIENT_ID_CHARS_MAX:
        raise InvalidRequest(
            f"a client id of {len(request.client_id)} characters is above {CLIENT_ID_CHARS_MAX}."
        )
    listener = broker.clients.listener_of(event.connection_id)
    mechanisms = broker.logins.mechanisms_at(listener)
    response = m.HelloResponse(
        cluster_id=broker.directory.cluster_id,
        node_id=broker.config.node_id,
        roles=list(broker.config.roles),
        software_version=broker.config.software_version,
        apis=api_ranges(
            between_brokers=serves_brokers(broker, event.connection_id),
            administration=listener not in broker.config.listeners_without_administration,
            authentication=bool(mechanisms) or _takes_proofs(broker, event.connection_id),
        ),
        frame_bytes_max=broker.config.frame_bytes_max,
        needs_authentication=broker.logins.is_required(event.connection_id),
        mechanisms=list(mechanisms),
    )
    if response.needs_authentication and not serves_brokers(broker, event.connection_id):
        # A broker finds another by these names before it proves anything; clients get none of them.
        response.cluster_id = response.software_version = ""
        response.node_id = -1
    if request.version > m.HelloRequest.VERSION:
        # The client reads the versions of this answer and sends HELLO again (KIP-511).
        response.error_code = UnsupportedVersion.code
        response.error_message = f"HELLO is spoken here up to version {m.HelloRequest.VERSION}."
    else:
        broker.clients.on_hello(event.connection_id, request.client_id)
        is_broker = request.software == BROKER_SOFTWARE and serves_brokers(
            broker, event.connection_id
        )
        if event.connection_id not in broker.logins.unserved and not is_broker:
            broker.quotas.enter(event.connection_id, now)
    broker.outbox.respond(event.connection_id, request.correlation_id, response)
