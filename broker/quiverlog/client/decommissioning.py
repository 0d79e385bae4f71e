"""The question that takes a broker out of the cluster, as an operation."""

from __future__ import annotations

from quiverlog.wire.decommission_messages import (
    DecommissionBrokerRequest,
    DecommissionBrokerResponse,
    DecommissionStep,
)

from .commands import Operation
from .routing import Cluster

__all__ = ["decommission_broker"]


def decommission_broker(
    cluster: Cluster, node_id: int, step: DecommissionStep
) -> Operation[DecommissionBrokerResponse]:
    """What is left of the broker when the step is decided; what passes is tried again.

    A broker that was unregistered by an earlier try, whose answer was lost, is UnknownBroker.
    """
    request = DecommissionBrokerRequest(step=step, node_id=node_id)

    def attempt() -> Operation[DecommissionBrokerResponse]:
        reply = yield from cluster.call_controller(request)
        assert isinstance(reply.response, DecommissionBrokerResponse)
        return reply.response

    return (yield from cluster.retrying(attempt))
