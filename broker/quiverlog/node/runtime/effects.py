"""What a node may ask its server to do: the closed list. Effects are performed in their order."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from quiverlog.addresses import Address
from quiverlog.storage.log.jobs import Job
from quiverlog.wire.messages import Request, Response

__all__ = [
    "NO_TOKEN",
    "CloseConnection",
    "ClosePeer",
    "ConfigChanged",
    "Effect",
    "Job",
    "ListenToBrokers",
    "LogLine",
    "Peer",
    "PeerAddresses",
    "Purpose",
    "Respond",
    "SendToPeer",
    "ShutdownComplete",
    "StartComplete",
    "StartJob",
]


class Respond(msgspec.Struct, gc=False):
    """Send a response; `body` follows its header as it is. A connection that is gone is no error.

    The views stay valid for as long as they are held, whatever the node does meanwhile.
    """

    connection_id: int
    response: Response
    correlation_id: int
    body: Sequence[memoryview] = ()


class StartJob(msgspec.Struct, frozen=True):
    """Run `job.run()` off the loop, then send `JobDone`, exactly once."""

    job: Job


class CloseConnection(msgspec.Struct, frozen=True):
    """Close after what was said before is sent. `why` is for the log."""

    connection_id: int
    why: str


class Purpose(enum.StrEnum):
    """What a connection to another broker is for: the small and urgent never waits for rows."""

    CONTROL = "control"
    """The quorum and the controller."""
    FETCH = "fetch"
    """Rows, for replicas."""


class Peer(NamedTuple):
    """Another broker, by one of the connections to it."""

    node_id: int
    purpose: Purpose


NO_TOKEN = 0
"""Nobody waits for the answer."""


class SendToPeer(msgspec.Struct, gc=False):
    """Send a request to another broker; `body` follows its header as it is.

    With a `token` it is answered by a ResponseReceived, or named by a PeerClosed, exactly once.
    With NO_TOKEN it may be dropped at any time, and no answer is told.
    """

    peer: Peer
    request: Request
    token: int = NO_TOKEN
    body: Sequence[bytes | memoryview] = ()


class ClosePeer(msgspec.Struct, frozen=True):
    """Give up the connection: a PeerClosed names all that waits for an answer."""

    peer: Peer
    why: str


class PeerAddresses(msgspec.Struct, frozen=True):
    """Where the other brokers are, from now on: all of them. Others are not connected to."""

    by_node: Mapping[int, Address]


class ConfigChanged(msgspec.Struct, frozen=True):
    """What may change while a broker runs is now so: all such keys, with the table's texts."""

    values: Mapping[str, str]


class ListenToBrokers(msgspec.Struct, frozen=True):
    """Others are needed for the start: take connections where brokers meet, and no others yet."""


class StartComplete(msgspec.Struct, frozen=True):
    """Every partition is open, or known not to be: clients may come."""


class ShutdownComplete(msgspec.Struct, frozen=True):
    """The node takes no more events. `clean`: all is on disk, and the directory says so."""

    clean: bool


class LogLine(msgspec.Struct, frozen=True):
    """A structured line for the broker's log. `level`: debug, info, warning or error."""

    level: str
    event: str
    fields: Mapping[str, object]


Effect = (
    Respond
    | StartJob
    | CloseConnection
    | SendToPeer
    | ClosePeer
    | PeerAddresses
    | ConfigChanged
    | ListenToBrokers
    | StartComplete
    | ShutdownComplete
    | LogLine
)
