"""ELECT_LEADERS: other leaders on request."""

from __future__ import annotations

from typing import Annotated, ClassVar

from msgspec import Meta

from quiverlog.limits import PARTITIONS_PER_TOPIC_MAX
from quiverlog.types import NO_EPOCH

from .messages import Api, BrokerEndpoint, Epoch, Int32, NodeId, Part, Request, Response

__all__ = ["ElectLeadersRequest", "ElectLeadersResponse", "PartitionLeader"]


class ElectLeadersRequest(Request, array_like=True, gc=False):
    """Asks that each partition's first replica leads it, where that is in sync. `unclean`: that any
    live replica leads, where there is no leader; acknowledged rows may be lost."""

    API: ClassVar[Api] = Api.ELECT_LEADERS
    name: str = ""
    partitions: Annotated[list[Int32], Meta(max_length=PARTITIONS_PER_TOPIC_MAX)] | None = None
    unclean: bool = False


class PartitionLeader(Part, array_like=True, gc=False):
    """A partition's leader now, changed by this request or not."""

    partition: Int32 = -1
    leader_id: NodeId = -1
    leader_epoch: Epoch = NO_EPOCH
    elected: bool = False


class ElectLeadersResponse(Response, array_like=True, gc=False):
    API: ClassVar[Api] = Api.ELECT_LEADERS
    leaders: Annotated[list[PartitionLeader], Meta(max_length=PARTITIONS_PER_TOPIC_MAX)] = []
    controller: BrokerEndpoint | None = None
