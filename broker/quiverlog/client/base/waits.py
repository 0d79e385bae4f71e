"""What a client waits for, since when and until when.

Owns what of it is told: what takes longer than `TELL_AFTER_S` and fails again and again, once as a
warning of the logger `quiverlog.waiting`, and again only when it fails for another reason. The
command line looks at `longest` instead, which also has what no answer has come to yet.

Must not know: how it is shown. A thread may look while another one waits.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from typing import Final, Protocol
from weakref import WeakSet

from quiverlog.errors import QuiverlogError

from .commands import Call, CallMany, Command, Finish, FinishAny, Start

__all__ = ["TELL_AFTER_S", "Wait", "Waits"]

TELL_AFTER_S: Final = 2.0
"""An election takes a second, and is not worth a line."""


class Wait:
    """One operation that goes on, or the rows of a producer that are not acknowledged.

    `what`: is waited for, or has failed and is tried again (`is_failing`). `reason`: its kind, for
    those who do not repeat themselves.
    """

    __slots__ = ("failure", "is_failing", "reason", "since_s", "told", "until_s", "what")

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
        self.told: set[str] = set()

    def told_until(self, until: str) -> str:
        """A line about it, and about when it gives up; "": never."""
        limit = f" until {until}" if until else ""
        if self.is_failing:
            return f"{self.what.rstrip('.')}: trying again{limit}."
        return f"waiting for {self.what}{limit}."

    def asks(self, command: Command) -> None:
        """Something is asked. Where a try has failed before, that stays what is waited for."""
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
        """A try has failed, and another one follows."""
        self.failure, self.is_failing = error, True
        self.what = error.message
        self.reason = type(error).__name__
        self.until_s = until_s


def _first(command: Start | CallMany) -> Call | None:
    if isinstance(command, Start):
        return command.call
    return command.calls[0] if command.calls else None


class Waiter(Protocol):
    """Waits for something that is no operation with a deadline."""

    def waiting(self) -> Wait | None:
        """What for, if for anything. Any thread may ask."""


class Waits:
    """All that one client waits for now. `others`: its producers and consumers."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._open: dict[int, Wait] = {}
        self._latest = 0
        self.are_endless = False
        """A consumer whose tries all fail goes on for as long as it takes."""
        self.others: WeakSet[Waiter] = WeakSet()

    @contextlib.contextmanager
    def of(self, seconds: float) -> Iterator[Wait]:
        """An operation that has so long."""
        now_s = self._clock()
        self._latest += 1
        number = self._latest
        wait = self._open[number] = Wait(now_s, now_s + seconds)
        try:
            yield wait
        finally:
            self._open.pop(number, None)

    def tell(self, wait: Wait) -> set[str]:
        """Warn the program, if it has taken long and was not told of it; what it was told of."""
        now_s = self._clock()
        if now_s - wait.since_s < TELL_AFTER_S or wait.reason in wait.told:
            return wait.told
        wait.told.add(wait.reason)
        import logging  # most programs never come here

        logging.getLogger("quiverlog.waiting").warning(
            "%s", wait.told_until(f"{max(0.0, wait.until_s - now_s):.0f} s from now")
        )
        return wait.told

    def longest(self) -> Wait | None:
        """Since when anything is waited for, what exactly, and when the first of all gives up."""
        found = list(self._open.values())
        with contextlib.suppress(RuntimeError):  # another one has come just now: next time
            found += [one for other in list(self.others) if (one := other.waiting()) is not None]
        if not found:
            return None
        failing = [one for one in found if one.is_failing]
        chosen = (failing or found)[-1]
        since_s = min(one.since_s for one in found)
        until_s = math.inf if self.are_endless else min(one.until_s for one in found)
        told = chosen.what, chosen.reason
        return Wait(since_s, until_s, *told, is_failing=chosen.is_failing)
