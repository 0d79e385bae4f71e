"""What brokers say to the controller of themselves: typed values, as in `messages`.

Owns the field lists of REGISTER_BROKER and BROKER_HEARTBEAT; clients send neither.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Final, TypeVar

from msgspec import Meta

from quiverlog.limits import (
    BROKER_LISTENERS_MAX,
    CLUSTER_ID_CHARS_MAX,
    DIRECTORY_ID_CHARS_MAX,
    HOST_CHARS_MAX,
    LISTENER_NAME_CHARS_MAX,
    RACK_CHARS_MAX,
)

from .messages import Api, Int32, Int64, Part, Port, Request, Response, UInt31
from .quorum_messages import Endpoint

__all__ = [
    "REGISTER_CONTAINERS_MAX",
    "BrokerHeartbeatRequest",
    "BrokerHeartbeatResponse",
    "RegisterBrokerRequest",
    "RegisterBrokerResponse",
    "RegisteredListener",
]

_T = TypeVar("_T")

Incarnation = Annotated[bytes, Meta(max_length=16)]
ClusterId = Annotated[str, Meta(max_length=CLUSTER_ID_CHARS_MAX)]
DirectoryId = Annotated[str, Meta(max_length=DIRECTORY_ID_CHARS_MAX)]
Host = Annotated[str, Meta(max_length=HOST_CHARS_MAX)]
Rack = Annotated[str, Meta(max_length=RACK_CHARS_MAX)]
ListenerName = Annotated[str, Meta(max_length=LISTENER_NAME_CHARS_MAX)]
PerListener = Annotated[list[_T], Meta(max_length=BROKER_LISTENERS_MAX)]

REGISTER_CONTAINERS_MAX: Final = 2 + BROKER_LISTENERS_MAX
"""Arrays in the largest REGISTER_BROKER: the message, its list, and one for each listener."""


class RegisteredListener(Part, array_like=True, gc=False):
    """The address that clients of a listener of this name are given to connect to."""

    name: ListenerName = ""
    host: Host = ""
    port: Port = 0


class RegisterBrokerRequest(Request, array_like=True, gc=False):
    """A broker that begins to serve. Asked again by the same life, it is given the same epoch."""

    API: ClassVar[Api] = Api.REGISTER_BROKER
    cluster_id: ClusterId = ""
    node_id: UInt31 = 0
    incarnation: Incarnation = b""
    directory_id: DirectoryId = ""
    clean_incarnation: Incarnation = b""
    host: Host = ""
    port: Port = 0
    rack: Rack = ""
    listeners: PerListener[RegisteredListener] = []
    wants_vote: bool = False
    takes_partitions: bool = True
    feature_level_min: UInt31 = 1
    feature_level_max: UInt31 = 1


class RegisterBrokerResponse(Response, array_like=True, gc=False):
    """The registration is decided."""

    API: ClassVar[Api] = Api.REGISTER_BROKER
    broker_epoch: Int64 = -1
    session_ms: UInt31 = 0


class BrokerHeartbeatRequest(Request, array_like=True, gc=False):
    """The broker is alive, and knows the metadata up to `metadata_version`. `is_disk_full`: it
    takes no rows now, and is to lead only what nobody else can. `second_node_id` and `second_at`:
    it has refused a second process under that node id a moment ago (-1: none), at that address.
    `faulted_count`: partitions here that take no writes, because a write or fsync has failed."""

    API: ClassVar[Api] = Api.BROKER_HEARTBEAT
    cluster_id: ClusterId = ""
    node_id: UInt31 = 0
    broker_epoch: Int64 = -1
    metadata_version: Int64 = 0
    wants_to_stop: bool = False
    is_disk_full: bool = False
    second_node_id: Int32 = -1
    second_at: Endpoint = ""
    faulted_count: UInt31 = 0


class BrokerHeartbeatResponse(Response, array_like=True, gc=False):
    """What the controller knows of the broker. `session_ms`: silent for so long it is fenced.
    `confirmed_ms`: so long ago the quorum is known to have heard the controller; the session begins
    so much before the heartbeat. `metadata_version`: what the controller has applied; -1: it does
    not say so. `second_at`: where a second process under the broker's node id was refused a moment
    ago; empty: nowhere."""

    API: ClassVar[Api] = Api.BROKER_HEARTBEAT
    is_caught_up: bool = False
    is_fenced: bool = True
    may_stop: bool = False
    session_ms: UInt31 = 0
    confirmed_ms: UInt31 = 0
    metadata_version: Int64 = -1
    second_at: Endpoint = ""
