"""ALTER_CONFIGS and DESCRIBE_CONFIGS: the configuration of brokers.

A topic's configuration is in ALTER_TOPIC and DESCRIBE_TOPICS.
"""

from __future__ import annotations

import enum
from typing import Annotated, ClassVar

from msgspec import Meta

from quiverlog.limits import BROKER_CONFIGS_SHOWN_MAX

from .messages import Api, BrokerEndpoint, Few, Int32, NodeId, Part, Request, Response, UInt63

__all__ = [
    "WHOLE_CLUSTER",
    "AlterConfigsRequest",
    "AlterConfigsResponse",
    "BrokerConfigEntry",
    "ConfigChange",
    "ConfigSource",
    "DescribeConfigsRequest",
    "DescribeConfigsResponse",
]

WHOLE_CLUSTER = -1
"""In place of a node id: all brokers of the cluster."""


class ConfigSource(enum.IntEnum):
    """The larger number wins."""

    DEFAULT = 0
    FILE = 1
    ENVIRONMENT = 2
    FLAG = 3
    CLUSTER = 4
    BROKER = 5

    @property
    def label(self) -> str:
        return self.name.lower()


class ConfigChange(Part, array_like=True, gc=False):
    """A key's new value; nil removes the value set here."""

    key: str = ""
    value: str | None = None


class AlterConfigsRequest(Request, array_like=True, gc=False):
    """Sets keys for all brokers, or for one of them, until they are changed again. All or nothing.

    The controller decides; brokers apply the values with their metadata.
    """

    API: ClassVar[Api] = Api.ALTER_CONFIGS
    node_id: Int32 = WHOLE_CLUSTER
    changes: Few[ConfigChange] = []


class AlterConfigsResponse(Response, array_like=True, gc=False):
    """A broker with this metadata version uses the values."""

    API: ClassVar[Api] = Api.ALTER_CONFIGS
    metadata_version: UInt63 = 0
    controller: BrokerEndpoint | None = None


class DescribeConfigsRequest(Request, array_like=True, gc=False):
    """Asks a broker for its own configuration as it is now; without keys: for all of it."""

    API: ClassVar[Api] = Api.DESCRIBE_CONFIGS
    keys: Few[str] = []


class BrokerConfigEntry(Part, array_like=True, gc=False):
    """A key, its present value, and the value from each source: nil where that has none."""

    key: str = ""
    value: str = ""
    source: Annotated[int, Meta(ge=0, le=int(max(ConfigSource)))] = 0
    changes_live: bool = False
    default: str = ""
    given: str | None = None
    in_cluster: str | None = None
    in_broker: str | None = None


class DescribeConfigsResponse(Response, array_like=True, gc=False):
    """The configuration of the broker `node_id`, which has applied this metadata version."""

    API: ClassVar[Api] = Api.DESCRIBE_CONFIGS
    node_id: NodeId = -1
    metadata_version: UInt63 = 0
    configs: Annotated[list[BrokerConfigEntry], Meta(max_length=BROKER_CONFIGS_SHOWN_MAX)] = []
