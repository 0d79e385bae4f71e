"""What a node may ask its server to do: the closed list. Effects are performed in their order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from quiverlog.storage.jobs import Job
from quiverlog.wire.messages import Response

__all__ = [
    "CloseConnection",
    "Effect",
    "Job",
    "LogLine",
    "Respond",
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


Effect = Respond | StartJob | CloseConnection | StartComplete | ShutdownComplete | LogLine
