"""DECOMMISSION_BROKER: a broker leaves the cluster for good, because somebody asks for it.

Owns the order of the request, and what is told of a broker that leaves. The rules are those of
`core.controller.decommissioning`.
"""

from __future__ import annotations

from functools import partial

from quiverlog.core.controller import decommissioning
from quiverlog.core.controller.records import Record
from quiverlog.errors import InvalidRequest
from quiverlog.node.broker import Broker
from quiverlog.node.deciding import decided
from quiverlog.node.tasks import Call, Steps
from quiverlog.wire.decommission_messages import (
    DecommissionBrokerRequest,
    DecommissionBrokerResponse,
    DecommissionStep,
)

__all__ = ["handle_decommission_broker"]

_TOLD = {
    DecommissionStep.BEGIN: "broker is decommissioned",
    DecommissionStep.CANCEL: "broker stays",
    DecommissionStep.UNREGISTER: "broker unregistered",
}


def handle_decommission_broker(broker: Broker, call: Call) -> Steps:
    """Answered when the step is decided."""
    request = call.request
    assert isinstance(request, DecommissionBrokerRequest)
    if request.step not in set(DecommissionStep):
        raise InvalidRequest(f"there is no step {request.step} of decommissioning.")
    step, node_id = DecommissionStep(request.step), request.node_id
    records = yield from decided(broker, call, partial(_decide, broker, step, node_id))
    if records:
        yield broker.metadata.proposal(records, call.now)
        broker.outbox.log("info", _TOLD[step], node=node_id)
    image = broker.metadata.image
    found = image.brokers.get(node_id)
    return DecommissionBrokerResponse(
        is_registered=found is not None,
        is_decommissioning=found is not None and found.decommissioning,
        is_fenced=found is not None and found.fenced,
        is_voter=node_id in _voters(broker),
        replica_count=image.replica_counts[node_id],
    )


def _decide(broker: Broker, step: DecommissionStep, node_id: int) -> list[Record]:
    pending = broker.metadata.pending
    match step:
        case DecommissionStep.BEGIN:
            return decommissioning.begin(pending, node_id, _voters(broker))
        case DecommissionStep.CANCEL:
            return decommissioning.cancel(pending, node_id)
        case DecommissionStep.UNREGISTER:
            return decommissioning.unregister(pending, node_id, _voters(broker))
    return []


def _voters(broker: Broker) -> set[int]:
    return {key.node_id for key in broker.quorum.raft.voters}
