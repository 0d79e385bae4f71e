"""A broker's requests to the controller about itself: REGISTER_BROKER and BROKER_HEARTBEAT."""

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
    name: ListenerName = ""
    host: Host = ""
    port: Port = 0


class RegisterBrokerRequest(Request, array_like=True, gc=False):
    """A broker that starts. A repeated request with the same incarnation gets the same epoch."""

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
    """The registration is committed."""

    API: ClassVar[Api] = Api.REGISTER_BROKER
    broker_epoch: Int64 = -1
    session_ms: UInt31 = 0


class BrokerHeartbeatRequest(Request, array_like=True, gc=False):
    """The broker is alive and has applied the metadata up to `metadata_version`."""

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
    """The controller's state of the broker. `confirmed_ms`: age of the quorum majority's last
    contact with the controller; the session begins that much before the heartbeat."""

    API: ClassVar[Api] = Api.BROKER_HEARTBEAT
    is_caught_up: bool = False
    is_fenced: bool = True
    may_stop: bool = False
    session_ms: UInt31 = 0
    confirmed_ms: UInt31 = 0
    metadata_version: Int64 = -1
    second_at: Endpoint = ""
