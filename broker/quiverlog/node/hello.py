"""HELLO: who this broker is, and what is spoken on the connection that asks.

Owns the answer. What is served to brokers alone is named only at the listener where they meet,
and administration where it is served.
"""

from __future__ import annotations

from quiverlog.errors import InvalidRequest, UnsupportedVersion
from quiverlog.limits import CLIENT_ID_CHARS_MAX
from quiverlog.node.broker import Broker
from quiverlog.node.events import RequestReceived
from quiverlog.node.quorum_requests import serves_brokers
from quiverlog.types import Now
from quiverlog.wire import messages as m
from quiverlog.wire.registry import api_ranges

__all__ = ["handle_hello"]


def handle_hello(broker: Broker, event: RequestReceived, now: Now) -> None:
    """Answer HELLO: the broker's name, its limits and API versions. It may be asked again."""
    request = event.request
    assert isinstance(request, m.HelloRequest)
    if len(request.client_id) > CLIENT_ID_CHARS_MAX:
        raise InvalidRequest(f"a client id has at most {CLIENT_ID_CHARS_MAX} characters.")
    listener = broker.clients.listener_of(event.connection_id)
    response = m.HelloResponse(
        cluster_id=broker.directory.cluster_id,
        node_id=broker.config.node_id,
        roles=list(broker.config.roles),
        software_version=broker.config.software_version,
        apis=api_ranges(
            between_brokers=serves_brokers(broker, event.connection_id),
            administration=listener not in broker.config.listeners_without_administration,
        ),
        frame_bytes_max=broker.config.frame_bytes_max,
    )
    if request.version > m.HelloRequest.VERSION:
        # The client reads the versions spoken here and says HELLO again (KIP-511).
        response.error_code = UnsupportedVersion.code
        response.error_message = f"HELLO is spoken here up to version {m.HelloRequest.VERSION}."
    else:
        broker.clients.said_hello(event.connection_id, request.client_id)
    broker.outbox.respond(event.connection_id, request.correlation_id, response)
