"""The commands that an operation yields to its driver: a closed set of values.

Operations are generators without socket, clock or loop, so one text serves the blocking and the
asyncio client. A driver sends in:

- for `Call` a `Reply`; for `CallMany` a list of replies and errors, in the calls' order;
- for `Start` a pending reply once the request is sent; for `Finish` the `Reply` itself;
- for `FinishAny` one pending reply that has arrived or failed, or None when the time is up;
- for `Abandon` None; for `Sleep` None, later.

It throws in `QuiverlogError`s only, after `answers.check_answer` has seen each reply.
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
    """A response and its body, which stays valid while any reference to it lives."""

    response: Response
    body: memoryview


@dataclass(frozen=True, slots=True)
class Call:
    """`timeout_s` covers connecting, sending and waiting. Calls of one `channel` may share a
    connection: large or parked requests have their own, to delay no quick ones."""

    address: Address
    request: Request
    timeout_s: float
    body: Sequence[Buffer] = ()
    channel: str = ""


class PendingReply(Protocol):
    """A request that was sent; opaque to operations."""

    @property
    def call(self) -> Call: ...


@dataclass(frozen=True, slots=True)
class CallMany:
    """All are sent before any is awaited."""

    calls: Sequence[Call]


@dataclass(frozen=True, slots=True)
class Start:
    """`within_s` bounds connecting and sending, the call's timeout the reply."""

    call: Call
    within_s: float | None = None


@dataclass(frozen=True, slots=True)
class Finish:
    pending: PendingReply


@dataclass(frozen=True, slots=True)
class FinishAny:
    pending: Sequence[PendingReply]
    timeout_s: float


@dataclass(frozen=True, slots=True)
class Abandon:
    pending: PendingReply


@dataclass(frozen=True, slots=True)
class Sleep:
    seconds: float


Command: TypeAlias = Call | CallMany | Start | Finish | FinishAny | Abandon | Sleep

Operation: TypeAlias = Generator[Command, Any, T]
