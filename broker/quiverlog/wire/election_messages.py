"""The request of clients for other leaders, as typed values; see `messages` for the rest.

Owns its field lists.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

from msgspec import Meta

from quiverlog.limits import PARTITIONS_PER_TOPIC_MAX
from quiverlog.types import NO_EPOCH

from .messages import Api, BrokerEndpoint, Epoch, Int32, NodeId, Part, Request, Response

__all__ = ["ElectLeadersRequest", "ElectLeadersResponse", "PartitionLeader"]


class ElectLeadersRequest(Request, array_like=True, gc=False):
    """Asks that the first of each partition's replicas leads it, where that is in sync. `unclean`:
    that any replica that lives leads, where nobody does; rows that readers saw may go.
    """

    API: ClassVar[Api] = Api.ELECT_LEADERS
    name: str = ""
    partitions: Annotated[list[Int32], Meta(max_length=PARTITIONS_PER_TOPIC_MAX)] | None = None
    unclean: bool = False


class PartitionLeader(Part, array_like=True, gc=False):
    """Who leads a partition now, whether this request has changed it or not."""

    partition: Int32 = -1
    leader_id: NodeId = -1
    leader_epoch: Epoch = NO_EPOCH
    elected: bool = False


class ElectLeadersResponse(Response, array_like=True, gc=False):
    API: ClassVar[Api] = Api.ELECT_LEADERS
    leaders: Annotated[list[PartitionLeader], Meta(max_length=PARTITIONS_PER_TOPIC_MAX)] = []
    controller: BrokerEndpoint | None = None
