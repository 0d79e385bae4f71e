"""The requests about the configuration of brokers, as typed values; see `messages` for the rest.

Owns their field lists. What a topic is told travels in ALTER_TOPIC and DESCRIBE_TOPICS.

Must not know: which keys there are, what wins.
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
"""In the place of a node id: all brokers of the cluster."""


class ConfigSource(enum.IntEnum):
    """Where a value comes from. The larger number wins."""

    DEFAULT = 0
    FILE = 1
    ENVIRONMENT = 2
    FLAG = 3
    CLUSTER = 4
    BROKER = 5

    @property
    def label(self) -> str:
        """The name that people read."""
        return self.name.lower()


class ConfigChange(Part, array_like=True, gc=False):
    """A key gets a value; nil: what was set for it here is gone."""

    key: str = ""
    value: str | None = None


class AlterConfigsRequest(Request, array_like=True, gc=False):
    """Sets keys for all brokers, or for one of them, until they are set otherwise. All or nothing.

    The controller decides; the others follow as soon as they know.
    """

    API: ClassVar[Api] = Api.ALTER_CONFIGS
    node_id: Int32 = WHOLE_CLUSTER
    changes: Few[ConfigChange] = []


class AlterConfigsResponse(Response, array_like=True, gc=False):
    """Whoever knows this metadata version does as it says."""

    API: ClassVar[Api] = Api.ALTER_CONFIGS
    metadata_version: UInt63 = 0
    controller: BrokerEndpoint | None = None


class DescribeConfigsRequest(Request, array_like=True, gc=False):
    """Asks a broker for its own configuration as it is now; without keys: for all of it."""

    API: ClassVar[Api] = Api.DESCRIBE_CONFIGS
    keys: Few[str] = []


class BrokerConfigEntry(Part, array_like=True, gc=False):
    """A key, what it is here and now, and what each place says that has a say."""

    key: str = ""
    value: str = ""
    source: Annotated[int, Meta(ge=0, le=int(max(ConfigSource)))] = 0
    changes_live: bool = False
    default: str = ""
    given: str | None = None
    in_cluster: str | None = None
    in_broker: str | None = None


class DescribeConfigsResponse(Response, array_like=True, gc=False):
    """The configuration of the broker `node_id`, which knows this metadata version."""

    API: ClassVar[Api] = Api.DESCRIBE_CONFIGS
    node_id: NodeId = -1
    metadata_version: UInt63 = 0
    configs: Annotated[list[BrokerConfigEntry], Meta(max_length=BROKER_CONFIGS_SHOWN_MAX)] = []
