"""The request of clients to take a broker out of the cluster, as typed values; see `messages`.

Owns its field lists. Must not know: what makes a step allowed (`core.controller`).
"""

from __future__ import annotations

import enum
from typing import ClassVar

from .messages import Api, BrokerEndpoint, Request, Response, UInt31, UInt63

__all__ = ["DecommissionBrokerRequest", "DecommissionBrokerResponse", "DecommissionStep"]


class DecommissionStep(enum.IntEnum):
    """What is to be done."""

    NOTHING = 0
    BEGIN = 1
    CANCEL = 2
    UNREGISTER = 3


class DecommissionBrokerRequest(Request, array_like=True, gc=False):
    """Asks that a broker be given nothing from now on, or be given partitions again, or be
    forgotten; or only how far it has come.
    """

    API: ClassVar[Api] = Api.DECOMMISSION_BROKER
    step: UInt31 = 0
    node_id: UInt31 = 0

    @property
    def only_asks(self) -> bool:
        """Neither a change nor a trial of one."""
        return self.step == DecommissionStep.NOTHING


class DecommissionBrokerResponse(Response, array_like=True, gc=False):
    """What is left of the broker, when the step is decided."""

    API: ClassVar[Api] = Api.DECOMMISSION_BROKER
    is_registered: bool = False
    is_decommissioning: bool = False
    is_fenced: bool = False
    is_voter: bool = False
    replica_count: UInt63 = 0
    controller: BrokerEndpoint | None = None
