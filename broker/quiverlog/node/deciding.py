"""What only the controller can do, asked of another broker: refused, with who decides and where.

Owns that refusal, and which of a broker's addresses belongs to whom. Brokers never forward.
"""

from __future__ import annotations

from quiverlog.addresses import Address
from quiverlog.core.controller.records import BrokerRecord
from quiverlog.errors import NotController
from quiverlog.node.broker import Broker

__all__ = ["check_decides", "endpoint_at"]


def endpoint_at(broker: Broker, record: BrokerRecord, connection_id: int) -> Address:
    """Where a broker is, for those who ask at this connection's listener.

    Who has not registered such a listener is named with the address of the default one.
    """
    listener = broker.clients.listener_of(connection_id)
    told = record.listeners
    if record.node_id == broker.config.node_id:
        told = broker.config.endpoints
    where = {name: Address(host, port) for name, host, port in told}
    return where.get(listener, Address(record.host, record.port))


def check_decides(broker: Broker, connection_id: int) -> None:
    """Ask before anything is looked up: what this broker knows may be old.

    Raises:
        NotController: another broker decides, or nobody yet. A quorum of one says itself what
            keeps it from deciding.
    """
    if broker.quorum.is_leading or broker.quorum.is_alone:
        return
    controller_id = broker.membership.controller.controller_id
    assert controller_id != broker.config.node_id or not broker.quorum.is_leading
    record = broker.metadata.image.brokers.get(controller_id)
    if record is None or controller_id == broker.config.node_id:
        raise NotController("nobody is known to decide.")
    address = endpoint_at(broker, record, connection_id)
    raise NotController(
        f"broker {controller_id} at {address} decides.",
        controller_id=controller_id,
        host=address.host,
        port=address.port,
    )
