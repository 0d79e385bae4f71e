"""What a node may ask its shell to do: the closed list. Effects are performed in their order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec

from quiverlog.wire.messages import Response

__all__ = ["CloseConnection", "Effect", "Job", "LogLine", "Respond", "ShutdownComplete", "StartJob"]


class Respond(msgspec.Struct, gc=False):
    """Send a response; `body` follows its header as it is. A connection that is gone is no error.

    The views stay valid for as long as they are held, whatever the node does meanwhile.
    """

    connection_id: int
    response: Response
    correlation_id: int
    body: Sequence[memoryview] = ()


class Job(Protocol):
    """Work that may block: a value that captured all it needs when it was made.

    `run` is called once, off the loop; it returns a value and changes nothing that the loop reads.
    """

    key: str
    """Jobs of one key run one after another, in the order in which they were started."""
    kind: str
    """What it does, for metrics and logs."""

    def run(self) -> object:
        """Do the work. Whatever it raises becomes the `error` of its JobDone."""


class StartJob(msgspec.Struct, frozen=True):
    """Run `job.run()` off the loop, then send `JobDone`, exactly once."""

    job: Job


class CloseConnection(msgspec.Struct, frozen=True):
    """Close after what was said before is sent. `why` is for the log."""

    connection_id: int
    why: str


class ShutdownComplete(msgspec.Struct, frozen=True):
    """All is on disk and marked clean; the node takes no more events."""


class LogLine(msgspec.Struct, frozen=True):
    """A structured line for the broker's log. `level`: debug, info, warning or error."""

    level: str
    event: str
    fields: Mapping[str, object]


Effect = Respond | StartJob | CloseConnection | ShutdownComplete | LogLine
