"""What an operation may ask of its driver: a closed set of values.

Every piece of client logic is a generator, an *operation*: it yields commands, is sent the answers
(or has an error thrown in) and returns its result. It never touches a socket, a clock or a loop,
so one text serves the blocking and the asyncio client, and a test can play the driver with a list.

A driver must answer:

- `Call` with a `Reply`; `CallMany` with a list of replies and errors, in the calls' order;
- `Start` with a pending reply once the request is on its way; `Finish` with the `Reply` itself;
- `FinishAny` with one of those given whose reply is there (or failed), or None when the time is up;
- `Abandon` with None: nobody will ask for that reply;
- `Sleep` with None, later.

Failures are thrown in as `QuiverlogError`s, never as the system's own exceptions. Every reply goes
through `answers.check_answer` before an operation sees it.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeAlias, TypeVar

from quiverlog.wire.messages import Request, Response

from .results import Address

__all__ = [
    "Abandon",
    "Buffer",
    "Call",
    "CallMany",
    "Command",
    "Finish",
    "FinishAny",
    "Operation",
    "PendingReply",
    "Reply",
    "Sleep",
    "Start",
]

T = TypeVar("T")

Buffer: TypeAlias = "bytes | bytearray | memoryview"


class Reply(NamedTuple):
    """A response and its body; the body stays valid for as long as somebody holds it."""

    response: Response
    body: memoryview


@dataclass(frozen=True, slots=True)
class Call:
    """One request to one broker. `timeout_s` covers connecting, sending and waiting.

    Calls with the same `channel` may share a connection; a channel of its own keeps large or parked
    requests from standing in front of quick ones.
    """

    address: Address
    request: Request
    timeout_s: float
    body: Sequence[Buffer] = ()
    channel: str = ""


class PendingReply(Protocol):
    """The reply to a request that is on its way. Made by a driver; opaque to operations."""

    @property
    def call(self) -> Call: ...


@dataclass(frozen=True, slots=True)
class CallMany:
    """Several calls at once, typically one per broker: all are sent before any is awaited."""

    calls: Sequence[Call]


@dataclass(frozen=True, slots=True)
class Start:
    """Put a request on the wire and go on without its reply.

    `within_s` bounds connecting and sending; the call's own timeout bounds the reply.
    """

    call: Call
    within_s: float | None = None


@dataclass(frozen=True, slots=True)
class Finish:
    """Wait for the reply of a started request."""

    pending: PendingReply


@dataclass(frozen=True, slots=True)
class FinishAny:
    """Wait until one of the started requests has its reply (or its failure) at hand."""

    pending: Sequence[PendingReply]
    timeout_s: float


@dataclass(frozen=True, slots=True)
class Abandon:
    """Forget a started request."""

    pending: PendingReply


@dataclass(frozen=True, slots=True)
class Sleep:
    """Wait. Used between retries only."""

    seconds: float


Command: TypeAlias = Call | CallMany | Start | Finish | FinishAny | Abandon | Sleep

Operation: TypeAlias = Generator[Command, Any, T]
"""A piece of client logic; see the module's docstring."""
