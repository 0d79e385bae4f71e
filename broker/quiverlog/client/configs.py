"""The questions about the configuration of brokers, and what is made of their answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from quiverlog.wire.config_messages import (
    WHOLE_CLUSTER,
    AlterConfigsRequest,
    AlterConfigsResponse,
    BrokerConfigEntry,
    ConfigChange,
    ConfigSource,
    DescribeConfigsRequest,
    DescribeConfigsResponse,
)

from .commands import Operation
from .metadata_looks import check
from .routing import Cluster

__all__ = ["BrokerSetting", "BrokerSettings", "alter_configs", "describe_configs"]


@dataclass(frozen=True, slots=True)
class BrokerSetting:
    """A key of a broker's configuration. Values are text; None: nothing is said there.

    `source`: which place the value comes from (default, file, environment, flag, cluster, broker).
    `given`: by the process's own flag, environment or file. `in_cluster`, `in_broker`: set while it
    runs, for all brokers or for this one. `changes_live`: no restart is needed.
    """

    value: str
    source: str
    changes_live: bool
    default: str
    given: str | None
    in_cluster: str | None
    in_broker: str | None


@dataclass(frozen=True, slots=True)
class BrokerSettings:
    """The configuration of one broker, as it was when it knew this metadata version."""

    node_id: int
    metadata_version: int
    settings: dict[str, BrokerSetting]


def alter_configs(
    cluster: Cluster, changes: Mapping[str, str | None], broker: int | None
) -> Operation[int]:
    """Set keys for all brokers or for one; returns the metadata version from which on it holds."""
    request = AlterConfigsRequest(
        node_id=WHOLE_CLUSTER if broker is None else broker,
        changes=[ConfigChange(key, value) for key, value in changes.items()],
    )

    def attempt() -> Operation[int]:
        reply = yield from cluster.call_controller(request)
        assert isinstance(reply.response, AlterConfigsResponse)
        return reply.response.metadata_version

    return (yield from cluster.retrying(attempt))


def describe_configs(
    cluster: Cluster, broker: int | None, keys: Sequence[str]
) -> Operation[BrokerSettings]:
    """What holds at a broker (None: any) now."""
    request = DescribeConfigsRequest(keys=list(keys))

    def attempt() -> Operation[BrokerSettings]:
        if broker is None:
            reply = yield from cluster.call_any(request)
        else:
            reply = yield cluster.call(cluster.address_of(broker), request)
            check(reply.response)
        response = reply.response
        assert isinstance(response, DescribeConfigsResponse)
        settings = {one.key: _setting(one) for one in response.configs}
        return BrokerSettings(response.node_id, response.metadata_version, settings)

    return (yield from cluster.retrying(attempt))


def _setting(one: BrokerConfigEntry) -> BrokerSetting:
    return BrokerSetting(
        one.value,
        ConfigSource(one.source).label,
        one.changes_live,
        one.default,
        one.given,
        one.in_cluster,
        one.in_broker,
    )
