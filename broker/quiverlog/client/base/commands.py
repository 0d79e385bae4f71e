"""The commands that an operation yields to its driver: a closed set of values.

Client logic is written as generators, *operations*, which touch no socket, clock or loop: one text
serves the blocking and the asyncio client. A driver sends in:

- for `Call` a `Reply`; for `CallMany` a list of replies and errors, in the calls' order;
- for `Start` a pending reply once the request is sent; for `Finish` the `Reply` itself;
- for `FinishAny` one pending reply that has arrived or failed, or None when the time is up;
- for `Abandon` None: the operation no longer needs that reply; for `Sleep` None, later.

It throws in failures as `QuiverlogError`s only, after `answers.check_answer` has seen each reply.
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
    """A response and its body; the body stays valid while any reference to it lives."""

    response: Response
    body: memoryview


@dataclass(frozen=True, slots=True)
class Call:
    """One request to one broker. `timeout_s` covers connecting, sending and waiting.

    Calls with the same `channel` may share a connection; a separate channel keeps large or parked
    requests from delaying quick ones.
    """

    address: Address
    request: Request
    timeout_s: float
    body: Sequence[Buffer] = ()
    channel: str = ""


class PendingReply(Protocol):
    """The reply to a request that was sent. Made by a driver; opaque to operations."""

    @property
    def call(self) -> Call: ...


@dataclass(frozen=True, slots=True)
class CallMany:
    """Several calls at once, typically one per broker: all are sent before any is awaited."""

    calls: Sequence[Call]


@dataclass(frozen=True, slots=True)
class Start:
    """Send a request and go on without its reply.

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
    """Wait until one of the started requests has its reply, or has failed."""

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
