"""UPDATE_FEATURES: the feature level of the cluster."""

from __future__ import annotations

from typing import Annotated, ClassVar

from msgspec import Meta

from quiverlog.limits import BROKERS_MAX

from .messages import Api, BrokerEndpoint, NodeId, Part, Request, Response, UInt31

__all__ = ["BrokerFeatures", "UpdateFeaturesRequest", "UpdateFeaturesResponse"]


class UpdateFeaturesRequest(Request, array_like=True, gc=False):
    """Finalises a feature level, or asks for the present one. The controller decides; every broker
    answers questions from its metadata."""

    API: ClassVar[Api] = Api.UPDATE_FEATURES
    level: UInt31 = 0
    validate_only: bool = False

    @property
    def only_asks(self) -> bool:
        return self.level == 0


class BrokerFeatures(Part, array_like=True, gc=False):
    """The feature levels that a registered broker supports."""

    node_id: NodeId = -1
    level_min: UInt31 = 1
    level_max: UInt31 = 1


class UpdateFeaturesResponse(Response, array_like=True, gc=False):
    """The cluster's level now, and the highest that all brokers support."""

    API: ClassVar[Api] = Api.UPDATE_FEATURES
    level: UInt31 = 0
    level_max: UInt31 = 0
    brokers: Annotated[list[BrokerFeatures], Meta(max_length=BROKERS_MAX)] = []
    controller: BrokerEndpoint | None = None
