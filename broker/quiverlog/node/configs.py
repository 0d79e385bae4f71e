"""ALTER_CONFIGS and DESCRIBE_CONFIGS: what brokers are told while they run, and what holds here.

Which keys may be set is `core.controller.broker_configs`'s, which value wins `live_config`'s.
"""

from __future__ import annotations

from functools import partial

from quiverlog.broker_keys import CONFIG_KEYS
from quiverlog.core.controller.broker_configs import alter_configs, why_unknown
from quiverlog.core.controller.records import Record
from quiverlog.errors import UnknownConfig
from quiverlog.node.broker import Broker
from quiverlog.node.deciding import decided
from quiverlog.node.tasks import Call, Steps
from quiverlog.wire.config_messages import (
    AlterConfigsRequest,
    AlterConfigsResponse,
    DescribeConfigsRequest,
    DescribeConfigsResponse,
)

__all__ = ["handle_alter_configs", "handle_describe_configs"]


def handle_alter_configs(broker: Broker, call: Call) -> Steps:
    """The whole request or nothing; answered when it is decided."""
    request = call.request
    assert isinstance(request, AlterConfigsRequest)
    changes = yield from decided(broker, call, partial(_decide, broker, request))
    if changes:
        assert len(changes) <= len(request.changes), "each key once"
        yield broker.metadata.proposal(changes, call.now)
    return AlterConfigsResponse(metadata_version=broker.metadata.image.version)


def _decide(broker: Broker, request: AlterConfigsRequest) -> list[Record]:
    changes = [(one.key, one.value) for one in request.changes]
    return alter_configs(broker.metadata.pending, request.node_id, changes)


def handle_describe_configs(broker: Broker, call: Call) -> Steps:
    """What holds at this broker; it needs nobody for that."""
    request = call.request
    assert isinstance(request, DescribeConfigsRequest)
    entries = {one.key: one for one in broker.live_config.entries()}
    for key in request.keys:
        if key not in entries:
            raise UnknownConfig(f"{key}: {why_unknown(key)}.")
    assert len(entries) >= len(CONFIG_KEYS)
    yield None
    return DescribeConfigsResponse(
        node_id=broker.config.node_id,
        metadata_version=broker.metadata.image.version,
        configs=[entries[key] for key in dict.fromkeys(request.keys or entries)],
    )
