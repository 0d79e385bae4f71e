"""Requests for the controller at another broker: refused with the controller's address.

Brokers never forward.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from typing import Protocol, TypeVar

from quiverlog.addresses import Address
from quiverlog.core.controller.records import BrokerRecord
from quiverlog.errors import NotController, QuiverlogError
from quiverlog.node.controller.controller_link import ControllerLink
from quiverlog.node.metadata.metadata import Metadata
from quiverlog.node.metadata.quorum import Quorum
from quiverlog.node.runtime.clients import Clients
from quiverlog.node.runtime.config import NodeConfig
from quiverlog.node.runtime.tasks import Call, Wait
from quiverlog.wire import messages as m
from quiverlog.wire.registry import APIS

__all__ = [
    "announced_controller",
    "check_is_controller",
    "controller_for",
    "decided",
    "endpoint_at",
    "refusal",
]

_Records = TypeVar("_Records")


class BrokerParts(Protocol):
    @property
    def clients(self) -> Clients: ...

    @property
    def config(self) -> NodeConfig: ...

    @property
    def controller(self) -> ControllerLink: ...

    @property
    def metadata(self) -> Metadata: ...

    @property
    def quorum(self) -> Quorum: ...


def endpoint_at(broker: BrokerParts, record: BrokerRecord, connection_id: int) -> Address:
    """Return a broker's address for clients of this connection's listener, else its default one."""
    listener = broker.clients.listener_of(connection_id)
    listeners = record.listeners
    if record.node_id == broker.config.node_id:
        listeners = broker.config.endpoints
    where = {name: Address(host, port) for name, host, port in listeners}
    return where.get(listener, Address(record.host, record.port))


def check_is_controller(broker: BrokerParts, connection_id: int) -> None:
    """Refuse unless this broker is the controller; before any lookup, as metadata may be old.

    Raises:
        NotController: another broker is the controller, or none. A quorum of one reports its own
            obstacle instead.
    """
    if broker.quorum.is_leading or broker.quorum.decides_alone:
        return
    found = _controller(broker, connection_id)
    if found is None:
        raise NotController("no controller is known.")
    raise NotController(f"broker {found.node_id} at {found.host}:{found.port} is the controller.")


def decided(
    broker: BrokerParts,
    call: Call,
    decide: Callable[[], _Records],
    until_free: Callable[[], Generator[Wait, object, None]] | None = None,
) -> Generator[Wait, object, _Records]:
    """Return what `decide` finds to change.

    Args:
        decide: reads pending state; called again if a pending decision that it may rest on failed.
        until_free: what to wait for each time before that.

    Raises:
        NotController: this broker is no longer the controller.
        QuiverlogError: whatever `decide` raises.
    """
    metadata = broker.metadata
    while True:
        if until_free is not None:
            yield from until_free()
        check_is_controller(broker, call.connection_id)
        failures = metadata.failures
        refused: QuiverlogError | None = None
        try:
            records = decide()
        except QuiverlogError as error:
            refused = error
        # "Nothing to do" and refusals are answers about committed state: otherwise a client could
        # read of a topic that was never created.
        if (refused is not None or not records) and metadata.are_under_way:
            yield metadata.after_pending(call.now)
            assert metadata.failures >= failures
            if metadata.failures != failures:
                continue  # The answer may rest on what failed.
        if refused is not None:
            raise refused
        return records


def announced_controller(broker: BrokerParts) -> int:
    found = broker.controller.controller_id
    quorum = broker.quorum
    # A new controller names itself when it has applied all earlier decisions: what it lacks then
    # does not exist.
    if found == broker.config.node_id and not (quorum.is_leading or quorum.decides_alone):
        return -1
    return found


def _controller(broker: BrokerParts, connection_id: int) -> m.BrokerEndpoint | None:
    controller_id = broker.controller.controller_id
    record = broker.metadata.image.brokers.get(controller_id)
    if record is None or controller_id == broker.config.node_id:
        return None
    host, port = endpoint_at(broker, record, connection_id)
    return m.BrokerEndpoint(controller_id, host, port, record.rack)


def controller_for(
    broker: BrokerParts, connection_id: int, results: Iterable[m.TopicResult]
) -> m.BrokerEndpoint | None:
    """Return the controller for an answer, if one of its entries is NOT_CONTROLLER."""
    if any(one.error_code == NotController.code for one in results):
        return _controller(broker, connection_id)
    return None


def refusal(
    broker: BrokerParts, connection_id: int, request: m.Request, error: QuiverlogError
) -> m.Response:
    cls = APIS[request.API].response
    response = cls(error_code=error.code, error_message=error.message)
    if isinstance(error, NotController) and "controller" in cls.__struct_fields__:
        response.controller = _controller(broker, connection_id)  # type: ignore[attr-defined]
    return response
