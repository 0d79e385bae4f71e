"""The closed list of inputs of `Node.handle_many`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

import msgspec

from quiverlog.errors import QuiverlogError
from quiverlog.node.runtime.config import LISTENER_DEFAULT, Given
from quiverlog.node.runtime.effects import Job, Peer
from quiverlog.wire.messages import Request, Response
from quiverlog.wire.peer_proof import ClusterSecrets

__all__ = [
    "AT_ONCE_US",
    "ConfigReloaded",
    "ConnectionClosed",
    "ConnectionOpened",
    "DiskSpace",
    "Event",
    "JobDone",
    "Load",
    "PeerClosed",
    "RequestReceived",
    "RequestsEnded",
    "ResponseReceived",
    "SecretsChanged",
    "Shutdown",
    "Tick",
]

AT_ONCE_US: Final = 0


class RequestReceived(msgspec.Struct, gc=False):
    """A whole request arrived. `body` is valid (and may be written to) during `handle_many` only.

    The server never uses a connection id twice.
    """

    connection_id: int
    request: Request
    body: memoryview
    header_bytes: int = 0


class ConnectionOpened(msgspec.Struct, frozen=True):
    """`peer`: address and port. `names`: those of its certificate, `quiverlog.tls.peer_names`.
    `is_own`: the other end is this process, which may do all."""

    connection_id: int
    peer: str
    listener: str = LISTENER_DEFAULT
    names: tuple[str, ...] = ()
    is_own: bool = False


class ConnectionClosed(msgspec.Struct, frozen=True):
    """The requests of the connection need no answers."""

    connection_id: int


class RequestsEnded(msgspec.Struct, frozen=True):
    """The connection sends nothing more, and waits for its answers: long polls end now."""

    connection_id: int


class ResponseReceived(msgspec.Struct, gc=False):
    """`body` stays valid while it is held."""

    peer: Peer
    token: int
    response: Response
    body: memoryview


class PeerClosed(msgspec.Struct, frozen=True):
    """Requests of these tokens get no answer; they may have been performed."""

    peer: Peer
    tokens: tuple[int, ...]
    error: QuiverlogError


class JobDone(msgspec.Struct, frozen=True):
    """`job.run()` has returned `result` (`error` None) or raised. Every StartJob gets one."""

    job: Job
    result: object = None
    error: BaseException | None = None


class Tick(msgspec.Struct, frozen=True):
    """The moment of `next_deadline_us` has come (early or late ticks do no harm)."""


class Load(NamedTuple):
    """What the process used in the last seconds, of processor and sockets; -1: not measured."""

    permille: int = -1
    received_bytes_per_s: int = -1
    sent_bytes_per_s: int = -1


class DiskSpace(msgspec.Struct, frozen=True):
    """`free_bytes`: room on the file system. `is_owned`: see `DataDirectory.is_owned`."""

    free_bytes: int
    is_owned: bool = True
    load: Load = Load()


class ConfigReloaded(msgspec.Struct, frozen=True):
    """All configuration, by key."""

    given: Mapping[str, Given]


class SecretsChanged(msgspec.Struct, frozen=True):
    """The file of the cluster's secrets has others."""

    secrets: ClusterSecrets


class Shutdown(msgspec.Struct, frozen=True):
    """Stop: refuse new work, flush, close, then emit ShutdownComplete."""


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
    | SecretsChanged
    | Shutdown
)
