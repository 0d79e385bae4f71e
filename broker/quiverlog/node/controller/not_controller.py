"""What only the controller can do, asked of another broker: refused, with who decides and where.

Owns that refusal, what a refused request is answered, and which of a broker's addresses belongs to
whom. Brokers never forward.

Also owns when the controller itself may refuse: decisions are made on what will hold when those
under way do, but an answer that nothing is to be done, or that it cannot be, says what is. It waits
until that is decided, else a client would be told of a topic that never came to be.
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
    "check_decides",
    "controller_for",
    "decided",
    "endpoint_at",
    "refusal",
    "told_controller",
]

_Records = TypeVar("_Records")


class Knowing(Protocol):
    """The parts of a broker that know who decides, and where brokers are."""

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


def endpoint_at(broker: Knowing, record: BrokerRecord, connection_id: int) -> Address:
    """Where a broker is, for those who ask at this connection's listener.

    Who has not registered such a listener is named with the address of the default one.
    """
    listener = broker.clients.listener_of(connection_id)
    told = record.listeners
    if record.node_id == broker.config.node_id:
        told = broker.config.endpoints
    where = {name: Address(host, port) for name, host, port in told}
    return where.get(listener, Address(record.host, record.port))


def check_decides(broker: Knowing, connection_id: int) -> None:
    """Ask before anything is looked up: what this broker knows may be old.

    Raises:
        NotController: another broker decides, or nobody yet. A quorum of one says itself what
            keeps it from deciding.
    """
    if broker.quorum.is_leading or broker.quorum.decides_alone:
        return
    found = _controller(broker, connection_id)
    if found is None:
        raise NotController("no controller is known.")
    raise NotController(f"broker {found.node_id} at {found.host}:{found.port} decides.")


def decided(
    broker: Knowing,
    call: Call,
    decide: Callable[[], _Records],
    until_free: Callable[[], Generator[Wait, object, None]] | None = None,
) -> Generator[Wait, object, _Records]:
    """What `decide` finds to be changed. No change, and a refusal, rest on what is decided.

    Args:
        decide: looks at what will hold; asked again where a decision that it may have rested on
            has failed.
        until_free: what to wait for each time before that.

    Raises:
        NotController: this broker decides no more.
        QuiverlogError: whatever `decide` raises.
    """
    metadata = broker.metadata
    while True:
        if until_free is not None:
            yield from until_free()
        check_decides(broker, call.connection_id)
        failures = metadata.failures
        refused: QuiverlogError | None = None
        try:
            records = decide()
        except QuiverlogError as error:
            refused = error
        if (refused is not None or not records) and metadata.are_under_way:
            yield metadata.after_pending(call.now)
            assert metadata.failures >= failures
            if metadata.failures != failures:
                continue
        if refused is not None:
            raise refused
        return records


def told_controller(broker: Knowing) -> int:
    """Whom METADATA names: the node that decides; -1: nobody.

    What it does not know does not exist, so a node that was elected names itself only when it
    knows all that was decided before.
    """
    found = broker.controller.controller_id
    quorum = broker.quorum
    if found == broker.config.node_id and not (quorum.is_leading or quorum.decides_alone):
        return -1
    return found


def _controller(broker: Knowing, connection_id: int) -> m.BrokerEndpoint | None:
    """Another broker that decides, at the listener that was asked; None: nobody is known to."""
    controller_id = broker.controller.controller_id
    record = broker.metadata.image.brokers.get(controller_id)
    if record is None or controller_id == broker.config.node_id:
        return None
    host, port = endpoint_at(broker, record, connection_id)
    return m.BrokerEndpoint(controller_id, host, port, record.rack)


def controller_for(
    broker: Knowing, connection_id: int, results: Iterable[m.TopicResult]
) -> m.BrokerEndpoint | None:
    """What an answer names beside its entries: the controller, if one of them is about that."""
    if any(one.error_code == NotController.code for one in results):
        return _controller(broker, connection_id)
    return None


def refusal(
    broker: Knowing, connection_id: int, request: m.Request, error: QuiverlogError
) -> m.Response:
    """The answer to a request that as a whole became an error."""
    cls = APIS[request.API].response
    response = cls(error_code=error.code, error_message=error.message)
    if isinstance(error, NotController) and "controller" in cls.__struct_fields__:
        response.controller = _controller(broker, connection_id)  # type: ignore[attr-defined]
    return response
