"""How a command waits for the cluster: pace, passing errors, and progress on stderr (a bar on a
terminal, else lines)."""

from __future__ import annotations

import contextlib
import logging
import math
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

from quiverlog.cli.console.output import console
from quiverlog.cli.console.terminal import printable
from quiverlog.client.base.waits import LOG_AFTER_S
from quiverlog.errors import QuiverlogError

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from quiverlog.client.base.waits import Waits

__all__ = ["Patience", "Waiting", "polls", "shown_waiting", "shown_waits"]

_T = TypeVar("_T")
_LINE_EVERY_S: Final = 5.0
_POLL_S: Final = 0.25
_SILENCE_S_MAX: Final = 60.0
"""A wait fails after this time without an answer."""
_SILENCE_S_SHOWN: Final = 5.0


def polls(wait_s: float = float("inf")) -> Iterator[bool]:
    """Yield at once, and after each pause until `wait_s` is over: whether this is the last time."""
    until_s = time.monotonic() + wait_s
    while time.monotonic() < until_s:
        yield False
        time.sleep(max(0.0, min(_POLL_S, until_s - time.monotonic())))
    yield True


class Patience:
    """Tolerates retriable errors, such as a controller's failure, for up to `silence_s`."""

    def __init__(self, silence_s: float = _SILENCE_S_MAX) -> None:
        self._silence_s = silence_s
        self._last_answer_s = time.monotonic()

    def ask(self, question: Callable[[], _T]) -> _T | None:
        """Return the answer; None: a retriable error."""
        try:
            answer = question()
        except QuiverlogError as error:
            if not error.retriable or time.monotonic() - self._last_answer_s > self._silence_s:
                raise
            return None
        self._last_answer_s = time.monotonic()
        return answer

    @property
    def note(self) -> str:
        is_long = time.monotonic() - self._last_answer_s > _SILENCE_S_SHOWN
        return "; no controller answers" if is_long else ""


@contextlib.contextmanager
def shown_waits(waits: Waits, deadline_s: Callable[[], float]) -> Iterator[None]:
    """Print a line about each wait above two seconds, and again when its reason changes.

    Args:
        deadline_s: when the command gives up, by the monotonic clock.
    """
    logging.getLogger("quiverlog.waiting").disabled = True  # its records are for programs
    over = threading.Event()
    printer = threading.Thread(
        target=_print_waits, args=(waits, deadline_s, over), name="quiverlog-waits", daemon=True
    )
    printer.start()
    try:
        yield
    finally:
        over.set()


def _print_waits(waits: Waits, deadline_s: Callable[[], float], over: threading.Event) -> None:
    printed: set[str] = set()
    was_quiet = False
    while not over.wait(_POLL_S):
        wait = waits.longest()
        if wait is None:
            # Two polls in a row: between two steps of one wait there is none for a moment.
            if was_quiet and printed:
                printed.clear()
                if waits.are_endless:
                    print("quiverlog: it answers again; reading on.", file=sys.stderr, flush=True)
            was_quiet = True
            continue
        was_quiet = False
        now_s = time.monotonic()
        if now_s - wait.since_s < LOG_AFTER_S or wait.reason in printed:
            continue
        printed.add(wait.reason)
        until_s = min(wait.until_s, deadline_s())
        moment = ""
        if until_s < math.inf:
            moment = time.strftime("%H:%M:%S", time.localtime(time.time() + until_s - now_s))
        line = printable(f"quiverlog: {wait.text_until(moment)}")
        print(line, file=sys.stderr, flush=True)


class Waiting(Protocol):
    def show(self, done: float, total: float, text: str) -> None: ...


class _Lines:
    def __init__(self, title: str) -> None:
        self._title = title
        self._text = ""
        self._shown_s = 0.0

    def show(self, done: float, total: float, text: str) -> None:
        now_s = time.monotonic()
        if text == self._text or now_s - self._shown_s < _LINE_EVERY_S:
            return
        self._text, self._shown_s = text, now_s
        print(f"{self._title}: {printable(text)}", file=sys.stderr, flush=True)


class _Bar:
    def __init__(self, bar: Progress, task: TaskID) -> None:
        self._bar, self._task = bar, task

    def show(self, done: float, total: float, text: str) -> None:
        self._bar.update(self._task, completed=done, total=total or None, text=printable(text))


@contextlib.contextmanager
def shown_waiting(title: str) -> Iterator[Waiting]:
    """Show a bar on a terminal, which is removed afterwards; else lines."""
    shown = console(stderr=True)
    if not shown.is_terminal:
        yield _Lines(title)
        return
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    with Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=24),
        TimeElapsedColumn(),
        TextColumn("{task.fields[text]}", markup=False),
        console=shown,
        transient=True,
    ) as bar:
        yield _Bar(bar, bar.add_task(title, total=None, text=""))
