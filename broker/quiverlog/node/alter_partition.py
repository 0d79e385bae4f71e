"""ALTER_PARTITION: another broker asks the controller to change who is in sync.

Owns the request alone; what is decided, and how, is in in_sync_decisions.py.
"""

from __future__ import annotations

from typing import cast

from quiverlog.node.broker import Broker
from quiverlog.node.quorum_requests import check_serves_brokers
from quiverlog.node.tasks import Call, Steps
from quiverlog.wire.messages import Response
from quiverlog.wire.replica_messages import AlterPartitionRequest

__all__ = ["handle_alter_partition"]


def handle_alter_partition(broker: Broker, call: Call) -> Steps:
    """Answer when what is taken holds."""
    request = call.request
    assert isinstance(request, AlterPartitionRequest)
    check_serves_brokers(broker, call.connection_id, request.API.name)
    decisions = broker.in_sync_decisions
    response = yield lambda then: decisions.decide(request, then, call.now)
    return cast("Response", response)
