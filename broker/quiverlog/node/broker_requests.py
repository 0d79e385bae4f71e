"""REGISTER_BROKER, BROKER_HEARTBEAT, REPORT_LOG_ENDS: brokers tell the controller of themselves.

Owns what is asked before they count: the listener, the cluster. A heartbeat, and what is told of
logs, is answered in the call that brings it: it waits for no job, no row and no other request.
"""

from __future__ import annotations

from quiverlog.errors import BrokerShuttingDown, QuiverlogError, WrongCluster
from quiverlog.node.broker import Broker
from quiverlog.node.events import RequestReceived
from quiverlog.node.quorum_requests import check_serves_brokers
from quiverlog.types import Now
from quiverlog.wire.broker_messages import (
    BrokerHeartbeatRequest,
    RegisterBrokerRequest,
    RegisterBrokerResponse,
)
from quiverlog.wire.messages import Request
from quiverlog.wire.replica_messages import ReportLogEndsRequest, ReportLogEndsResponse

__all__ = ["handle_broker_heartbeat", "handle_register_broker", "handle_report_log_ends"]


def _check_listener(broker: Broker, connection_id: int, request: Request) -> None:
    """Raises WrongListener, BrokerShuttingDown."""
    assert connection_id >= 0
    if not broker.membership.is_active:
        raise BrokerShuttingDown
    check_serves_brokers(broker, connection_id, request.API.name)


def _check(
    broker: Broker, connection_id: int, request: RegisterBrokerRequest | BrokerHeartbeatRequest
) -> None:
    """Raises WrongListener, WrongCluster, BrokerShuttingDown."""
    _check_listener(broker, connection_id, request)
    cluster_id = broker.directory.cluster_id
    if request.cluster_id != cluster_id:
        raise WrongCluster(f"the request is for {request.cluster_id!r}, this is {cluster_id!r}.")


def handle_register_broker(broker: Broker, event: RequestReceived, now: Now) -> None:
    """Answer when the registration is decided."""
    request = event.request
    assert isinstance(request, RegisterBrokerRequest)
    _check(broker, event.connection_id, request)

    def then(response: object, error: BaseException | None, now: Now) -> None:
        if error is not None:
            failure = error if isinstance(error, QuiverlogError) else QuiverlogError()
            broker.fail(event.connection_id, request, failure)
            return
        assert isinstance(response, RegisterBrokerResponse)
        broker.outbox.respond(event.connection_id, request.correlation_id, response)

    broker.membership.registrar.register(request, then, now)


def handle_broker_heartbeat(broker: Broker, event: RequestReceived, now: Now) -> None:
    """Answer at once."""
    request = event.request
    assert isinstance(request, BrokerHeartbeatRequest)
    _check(broker, event.connection_id, request)
    response = broker.membership.registrar.beat(request, now)
    broker.outbox.respond(event.connection_id, request.correlation_id, response)


def handle_report_log_ends(broker: Broker, event: RequestReceived, now: Now) -> None:
    """Answer at once."""
    request = event.request
    assert isinstance(request, ReportLogEndsRequest)
    _check_listener(broker, event.connection_id, request)

    def then(response: object, error: BaseException | None, _now: Now) -> None:
        assert isinstance(response, ReportLogEndsResponse)
        assert error is None
        broker.outbox.respond(event.connection_id, request.correlation_id, response)

    broker.membership.log_end_decisions.decide(request, then, now)
