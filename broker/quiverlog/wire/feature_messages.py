"""The request about the feature level of the cluster, as typed values; see `messages`.

Owns its field lists.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

from msgspec import Meta

from quiverlog.limits import BROKERS_MAX

from .messages import Api, BrokerEndpoint, NodeId, Part, Request, Response, UInt31

__all__ = ["BrokerFeatures", "UpdateFeaturesRequest", "UpdateFeaturesResponse"]


class UpdateFeaturesRequest(Request, array_like=True, gc=False):
    """Finalises a feature level, or only asks which one the cluster has. The controller decides;
    any broker says what it knows.
    """

    API: ClassVar[Api] = Api.UPDATE_FEATURES
    level: UInt31 = 0
    validate_only: bool = False

    @property
    def only_asks(self) -> bool:
        """Neither a change nor a trial of one."""
        return self.level == 0


class BrokerFeatures(Part, array_like=True, gc=False):
    """The feature levels that a registered broker supports."""

    node_id: NodeId = -1
    level_min: UInt31 = 1
    level_max: UInt31 = 1


class UpdateFeaturesResponse(Response, array_like=True, gc=False):
    """The level that the cluster has now, and how far it could go."""

    API: ClassVar[Api] = Api.UPDATE_FEATURES
    level: UInt31 = 0
    level_max: UInt31 = 0
    brokers: Annotated[list[BrokerFeatures], Meta(max_length=BROKERS_MAX)] = []
    controller: BrokerEndpoint | None = None
