"""What a client waits for, since when and until when.

The logger `quiverlog.waiting` gets one warning for an operation that fails for longer than
`LOG_AFTER_S`, and another only for a new reason. The command line reads `longest`, which includes
requests without an answer yet. One thread may read while another waits.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from typing import Final, Protocol
from weakref import WeakSet

from quiverlog.errors import QuiverlogError

from .commands import Call, CallMany, Command, Finish, FinishAny, Start

__all__ = ["LOG_AFTER_S", "Wait", "Waits"]

# An election takes a second, and is not worth a line.
LOG_AFTER_S: Final = 2.0


class Wait:
    """One operation under way, or a producer's rows that are not acknowledged.

    Attributes:
        what: is awaited, or has failed and is retried (`is_failing`).
        reason: the kind of `what`; each is logged once (`logged_reasons`).
    """

    __slots__ = ("failure", "is_failing", "logged_reasons", "reason", "since_s", "until_s", "what")

    def __init__(
        self,
        since_s: float,
        until_s: float,
        what: str = "",
        reason: str = "",
        *,
        is_failing: bool = False,
    ) -> None:
        self.since_s = since_s
        self.until_s = until_s
        self.what = what
        self.reason = reason
        self.failure: QuiverlogError | None = None
        self.is_failing = is_failing
        self.logged_reasons: set[str] = set()

    def text_until(self, until: str) -> str:
        """Describe the wait; an empty `until` means without an end."""
        limit = f" until {until}" if until else ""
        if self.is_failing:
            return f"{self.what.rstrip('.')}: trying again{limit}."
        return f"waiting for {self.what}{limit}."

    def asks(self, command: Command) -> None:
        # After a failed try, the failure explains the wait better than the next request.
        if self.failure is not None:
            return
        match command:
            case Call() | Start(Call()) | CallMany():
                call = command if isinstance(command, Call) else _first(command)
            case Finish(pending):
                call = pending.call
            case FinishAny(pending_many) if pending_many:
                call = pending_many[0].call
            case _:
                return
        if call is not None:
            self.what = f"an answer of {call.address} ({call.request.API.name})"
            self.reason = f"{call.address}"

    def failed(self, error: QuiverlogError, until_s: float) -> None:
        self.failure, self.is_failing = error, True
        self.what = error.message
        self.reason = type(error).__name__
        self.until_s = until_s


def _first(command: Start | CallMany) -> Call | None:
    if isinstance(command, Start):
        return command.call
    return command.calls[0] if command.calls else None


class Waiter(Protocol):
    def waiting(self) -> Wait | None:
        """Return the present wait. Safe from any thread."""


class Waits:
    """All present waits of one client. `others`: its producers and consumers."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._open: dict[int, Wait] = {}
        self._latest = 0
        # A consumer retries without a deadline.
        self.are_endless = False
        self.others: WeakSet[Waiter] = WeakSet()

    @contextlib.contextmanager
    def of(self, seconds: float) -> Iterator[Wait]:
        now_s = self._clock()
        self._latest += 1
        number = self._latest
        wait = self._open[number] = Wait(now_s, now_s + seconds)
        try:
            yield wait
        finally:
            self._open.pop(number, None)

    def log_long(self, wait: Wait) -> set[str]:
        """Log a warning where the wait is long and its reason new; return the logged reasons."""
        now_s = self._clock()
        if now_s - wait.since_s < LOG_AFTER_S or wait.reason in wait.logged_reasons:
            return wait.logged_reasons
        wait.logged_reasons.add(wait.reason)
        import logging  # most programs never come here

        left_s = max(0.0, wait.until_s - now_s)
        until = f"{left_s:.0f} s from now" if math.isfinite(left_s) else ""
        logging.getLogger("quiverlog.waiting").warning("%s", wait.text_until(until))
        return wait.logged_reasons

    def longest(self) -> Wait | None:
        """Merge all waits: the earliest start, a failing one's text, the earliest end."""
        found = list(self._open.values())
        with contextlib.suppress(RuntimeError):  # another thread has added one: next time
            found += [one for other in list(self.others) if (one := other.waiting()) is not None]
        if not found:
            return None
        failing = [one for one in found if one.is_failing]
        chosen = (failing or found)[-1]
        since_s = min(one.since_s for one in found)
        until_s = math.inf if self.are_endless else min(one.until_s for one in found)
        text = chosen.what, chosen.reason
        return Wait(since_s, until_s, *text, is_failing=chosen.is_failing)
