"""DECOMMISSION_BROKER: taking a broker out of the cluster."""

from __future__ import annotations

import enum
from typing import ClassVar

from .messages import Api, BrokerEndpoint, Request, Response, UInt31, UInt63

__all__ = ["DecommissionBrokerRequest", "DecommissionBrokerResponse", "DecommissionStep"]


class DecommissionStep(enum.IntEnum):
    NOTHING = 0
    BEGIN = 1
    CANCEL = 2
    UNREGISTER = 3


class DecommissionBrokerRequest(Request, array_like=True, gc=False):
    """Asks that a broker gets nothing more, gets partitions again, or is removed; or for its
    progress only."""

    API: ClassVar[Api] = Api.DECOMMISSION_BROKER
    step: UInt31 = 0
    node_id: UInt31 = 0

    @property
    def only_asks(self) -> bool:
        return self.step == DecommissionStep.NOTHING


class DecommissionBrokerResponse(Response, array_like=True, gc=False):
    """The broker's remaining duties, once the step is committed."""

    API: ClassVar[Api] = Api.DECOMMISSION_BROKER
    is_registered: bool = False
    is_decommissioning: bool = False
    is_fenced: bool = False
    is_voter: bool = False
    replica_count: UInt63 = 0
    controller: BrokerEndpoint | None = None
