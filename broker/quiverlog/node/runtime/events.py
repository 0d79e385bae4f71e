"""What can happen to a node: the closed list of inputs of `Node.handle`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from quiverlog.errors import QuiverlogError
from quiverlog.node.runtime.config import LISTENER_DEFAULT, Given
from quiverlog.node.runtime.effects import Job, Peer
from quiverlog.wire.messages import Request, Response

__all__ = [
    "AT_ONCE_US",
    "ConfigReloaded",
    "ConnectionClosed",
    "ConnectionOpened",
    "DiskSpace",
    "Event",
    "JobDone",
    "PeerClosed",
    "RequestReceived",
    "RequestsEnded",
    "ResponseReceived",
    "Shutdown",
    "Tick",
]

AT_ONCE_US: Final = 0
"""The deadline of a part that wants a tick at once."""


class RequestReceived(msgspec.Struct, gc=False):
    """A whole request arrived. `body` is only valid (and may be written to) during `handle`.

    Connection ids are the server's and are never used twice.
    """

    connection_id: int
    request: Request
    body: memoryview
    header_bytes: int = 0


class ConnectionOpened(msgspec.Struct, frozen=True):
    """A client has connected, and asks nothing yet. Without it nobody knows from where.

    `peer`: address and port. `listener`: the name of the listener that took it.
    """

    connection_id: int
    peer: str
    listener: str = LISTENER_DEFAULT


class ConnectionClosed(msgspec.Struct, frozen=True):
    """The connection is gone: its requests need no answers."""

    connection_id: int


class RequestsEnded(msgspec.Struct, frozen=True):
    """This connection can ask nothing more, and waits for its answers: long polls end now."""

    connection_id: int


class ResponseReceived(msgspec.Struct, gc=False):
    """Another broker has answered the request that was sent under `token`.

    `body` stays valid for as long as it is held.
    """

    peer: Peer
    token: int
    response: Response
    body: memoryview


class PeerClosed(msgspec.Struct, frozen=True):
    """What was sent under these tokens is never answered; it may have been done. `error`: why."""

    peer: Peer
    tokens: tuple[int, ...]
    error: QuiverlogError


class JobDone(msgspec.Struct, frozen=True):
    """`job.run()` has returned `result` (`error` None) or raised. Every StartJob gets one."""

    job: Job
    result: object = None
    error: BaseException | None = None


class Tick(msgspec.Struct, frozen=True):
    """The moment that `next_deadline_us` named has come (early or late ticks do no harm)."""


class DiskSpace(msgspec.Struct, frozen=True):
    """What a look at the data directory found. Sent every second or so.

    `free_bytes`: room on its file system. `is_owned`: it is the directory that was locked, and
    nobody else uses it (see `DataDirectory.is_owned`).
    """

    free_bytes: int
    is_owned: bool = True


class ConfigReloaded(msgspec.Struct, frozen=True):
    """The process was given another configuration while it runs: all of it, by key."""

    given: Mapping[str, Given]


class Shutdown(msgspec.Struct, frozen=True):
    """Stop: refuse new work, flush, close, then say ShutdownComplete."""


Event = (
    RequestReceived
    | ConnectionOpened
    | ConnectionClosed
    | RequestsEnded
    | ResponseReceived
    | PeerClosed
    | JobDone
    | Tick
    | DiskSpace
    | ConfigReloaded
    | Shutdown
)
