"""How a command shows that it waits for the cluster: a bar on a terminal, lines elsewhere.

Owns how that looks, on stderr, so that stdout has the result alone.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, Protocol

from quiverlog.cli.output import console
from quiverlog.cli.terminal import printable

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

__all__ = ["Waiting", "shown_waiting"]

_LINE_EVERY_S: Final = 5.0


class Waiting(Protocol):
    """Takes how much is done of how much, and what is waited for."""

    def show(self, done: float, total: float, text: str) -> None: ...


class _Lines:
    """A line when another thing is waited for, and now and then when it takes long."""

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
        shown = printable(text).replace("[", "\\[")
        self._bar.update(self._task, completed=done, total=total or None, text=shown)


@contextlib.contextmanager
def shown_waiting(title: str) -> Iterator[Waiting]:
    """Show it for the time of a `with`; the bar is gone afterwards."""
    shown = console(stderr=True)
    if not shown.is_terminal:
        yield _Lines(title)
        return
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    with Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        TimeElapsedColumn(),
        TextColumn("{task.fields[text]}"),
        console=shown,
        transient=True,
    ) as bar:
        yield _Bar(bar, bar.add_task(title, total=None, text=""))
