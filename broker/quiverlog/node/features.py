"""UPDATE_FEATURES: the feature level of the cluster, finalised or only told.

Whether it may be is `core.controller.features`'s. Also owns what this broker says of itself.
"""

from __future__ import annotations

from functools import partial

from quiverlog.core.controller.features import finalise
from quiverlog.core.controller.image import Image
from quiverlog.core.controller.records import FeatureLevelRecord, Record
from quiverlog.errors import UnsupportedFeatureLevel
from quiverlog.limits import FEATURE_LEVEL_MIN
from quiverlog.node.broker import Broker
from quiverlog.node.config import NodeConfig
from quiverlog.node.deciding import decided
from quiverlog.node.tasks import Call, Steps
from quiverlog.wire.feature_messages import (
    BrokerFeatures,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)

__all__ = ["first_level", "handle_update_features"]


def handle_update_features(broker: Broker, call: Call) -> Steps:
    """Answered when it is decided."""
    request = call.request
    assert isinstance(request, UpdateFeaturesRequest)
    if request.level:
        changes = yield from decided(broker, call, partial(_decide, broker, request.level))
        if changes and not request.validate_only:
            yield broker.metadata.proposal(changes, call.now)
            broker.outbox.log("warning", "feature level finalised", feature_level=request.level)
    yield None
    image = broker.metadata.image
    assert image.feature_level >= FEATURE_LEVEL_MIN
    brokers = [image.brokers[node_id] for node_id in sorted(image.brokers)]
    return UpdateFeaturesResponse(
        level=image.feature_level,
        level_max=min((one.feature_level_max for one in brokers), default=image.feature_level),
        brokers=[
            BrokerFeatures(one.node_id, one.feature_level_min, one.feature_level_max)
            for one in brokers
        ],
    )


def _decide(broker: Broker, level: int) -> list[Record]:
    return finalise(broker.metadata.pending, level)


def first_level(config: NodeConfig, image: Image) -> list[Record]:
    """What the start of a broker that is alone says of the level: a new cluster begins with the
    newest, one that is there keeps its own.

    Raises:
        UnsupportedFeatureLevel: this broker does not reach the level that its data have.
    """
    level_max = config.feature_level_max
    assert level_max >= FEATURE_LEVEL_MIN
    if image.feature_level > level_max:
        raise UnsupportedFeatureLevel(
            f"the data directory has feature level {image.feature_level}, this broker supports"
            f" {FEATURE_LEVEL_MIN} to {level_max}."
        )
    is_new = not image.brokers and not image.topics
    return [FeatureLevelRecord(level_max)] if is_new and level_max > image.feature_level else []
