"""What can happen to a node: the closed list of inputs of `Node.handle`."""

from __future__ import annotations

import msgspec

from quiverlog.storage.log import SyncTicket
from quiverlog.wire.messages import Request

__all__ = [
    "ConnectionClosed",
    "DiskSpace",
    "Event",
    "RequestReceived",
    "Shutdown",
    "Synced",
    "Tick",
]


class RequestReceived(msgspec.Struct, gc=False):
    """A whole request arrived. `body` is only valid (and may be written to) during `handle`.

    Connection ids are the shell's and are never used twice.
    """

    connection_id: int
    request: Request
    body: memoryview


class ConnectionClosed(msgspec.Struct, frozen=True):
    """Nobody waits for this connection's answers any more."""

    connection_id: int


class Synced(msgspec.Struct, frozen=True):
    """`ticket.run()` has returned (`error` None) or raised. Every StartSync gets exactly one."""

    ticket: SyncTicket
    error: BaseException | None = None


class Tick(msgspec.Struct, frozen=True):
    """The moment that `next_deadline_us` named has come (early or late ticks do no harm)."""


class DiskSpace(msgspec.Struct, frozen=True):
    """How much room the data directory's file system has. Sent every second or so."""

    free_bytes: int


class Shutdown(msgspec.Struct, frozen=True):
    """Stop: refuse new work, flush, close, then say ShutdownComplete."""


Event = RequestReceived | ConnectionClosed | Synced | Tick | DiskSpace | Shutdown
