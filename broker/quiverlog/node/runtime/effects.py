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
    "Audited",
    "CloseConnection",
    "ClosePeer",
    "ConfigChanged",
    "ConnectionMuted",
    "ConnectionProved",
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

    The views stay valid as long as they are held.
    """

    connection_id: int
    response: Response
    correlation_id: int
    body: Sequence[memoryview] = ()


class StartJob(msgspec.Struct, frozen=True):
    """Run `job.run()` off the loop, then send `JobDone`, exactly once."""

    job: Job


class CloseConnection(msgspec.Struct, frozen=True):
    """Earlier responses are sent before. `why` is for the log."""

    connection_id: int
    why: str


class ConnectionProved(msgspec.Struct, frozen=True):
    """A broker, or a user, is at its end: its frames may be as large as any."""

    connection_id: int


class ConnectionMuted(msgspec.Struct, frozen=True):
    """Read nothing more from a client that is over its quota, until `is_muted` is False. Its
    answers are sent as ever."""

    connection_id: int
    is_muted: bool


class Purpose(enum.StrEnum):
    """What a connection to another broker is for: the small and urgent never waits for rows."""

    CONTROL = "control"
    FETCH = "fetch"
    ROWS = "rows"
    """Committed rows: neither the quorum nor copies wait for them."""


class Peer(NamedTuple):
    node_id: int
    purpose: Purpose


NO_TOKEN = 0


class SendToPeer(msgspec.Struct, gc=False):
    """Send a request to another broker; `body` follows its header as it is.

    With a `token` the server sends one ResponseReceived or PeerClosed for it. With NO_TOKEN it may
    drop the request, and ignores the answer.
    """

    peer: Peer
    request: Request
    token: int = NO_TOKEN
    body: Sequence[bytes | memoryview] = ()


class ClosePeer(msgspec.Struct, frozen=True):
    """Give up the connection: a PeerClosed names all tokens that wait."""

    peer: Peer
    why: str


class PeerAddresses(msgspec.Struct, frozen=True):
    """Where brokers are; others get no connection."""

    by_node: Mapping[int, Address]


class ConfigChanged(msgspec.Struct, frozen=True):
    """All keys that may change while a broker runs, but topic defaults."""

    values: Mapping[str, str]


class ListenToBrokers(msgspec.Struct, frozen=True):
    """Accept connections on the inter-broker listener only: the start needs other brokers."""


class StartComplete(msgspec.Struct, frozen=True):
    """Every partition is open or offline: accept clients."""


class ShutdownComplete(msgspec.Struct, frozen=True):
    """The node takes no more events. `clean`: all is on disk, and the clean mark is written."""

    clean: bool


class Audited(msgspec.Struct, frozen=True):
    """A line of the audit; the server adds the time and the broker, and bounds lines that are
    alike."""

    fields: Mapping[str, object]


class LogLine(msgspec.Struct, frozen=True):
    """`level`: debug, info, warning or error."""

    level: str
    event: str
    fields: Mapping[str, object]


Effect = (
    Respond
    | StartJob
    | CloseConnection
    | ConnectionProved
    | ConnectionMuted
    | SendToPeer
    | ClosePeer
    | PeerAddresses
    | ConfigChanged
    | ListenToBrokers
    | StartComplete
    | ShutdownComplete
    | LogLine
    | Audited
)
