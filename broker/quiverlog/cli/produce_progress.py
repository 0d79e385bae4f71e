"""How far `produce` has come, on stderr: rows stored so far and rows per second.

Owns how that looks: a bar that renews itself on a terminal, a line now and then elsewhere for what
comes through a pipe and may go on for days, nothing for a file.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from quiverlog.cli.output import console, human_count
from quiverlog.cli.terminal import printable

if TYPE_CHECKING:
    from quiverlog.cli.read_files import Source

__all__ = ["Progress", "shown_progress"]

_LINE_EVERY_S = 10.0


class Progress(Protocol):
    """Takes how much of the input was read, and the rows that are acknowledged."""

    def show(self, done: int, rows: int) -> None: ...


class _Nothing:
    def show(self, done: int, rows: int) -> None:
        pass


class _Lines:
    """A line when it has been so long since the last one, and rows have come since."""

    def __init__(self) -> None:
        self._started_s = self._shown_s = time.monotonic()
        self._rows = 0

    def show(self, done: int, rows: int) -> None:
        now_s = time.monotonic()
        if now_s - self._shown_s < _LINE_EVERY_S or rows == self._rows:
            return
        rate = (rows - self._rows) / (now_s - self._shown_s)
        self._shown_s, self._rows = now_s, rows
        print(f"{human_count(rows)} rows, {human_count(rate)} rows/s", file=sys.stderr, flush=True)


class _Bar:
    def __init__(self, bar: Any, task: Any) -> None:
        self._bar = bar
        self._task = task
        self._started_s = time.monotonic()

    def show(self, done: int, rows: int) -> None:
        rate = rows / max(1e-3, time.monotonic() - self._started_s)
        self._bar.update(
            self._task, completed=done, rows=f"{human_count(rows)} rows, {human_count(rate)} rows/s"
        )


@contextlib.contextmanager
def shown_progress(file: str, source: Source, *, is_quiet: bool) -> Iterator[Progress]:
    """Show it for the time of a `with`."""
    if is_quiet:
        yield _Nothing()
        return
    shown = console(stderr=True)
    if not shown.is_terminal:
        yield _Nothing() if source.total is not None else _Lines()
        return
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        MofNCompleteColumn,
        TextColumn,
        TimeRemainingColumn,
    )
    from rich.progress import Progress as RichProgress

    # What comes by and by has no end to draw a bar to.
    ends = [BarColumn(), TimeRemainingColumn()] if source.total is not None else []
    amount = MofNCompleteColumn() if source.total_is_rows else DownloadColumn()
    with RichProgress(
        TextColumn("{task.description}"),
        *ends,
        amount,
        TextColumn("{task.fields[rows]}"),
        console=shown,
        transient=True,
    ) as bar:
        name = "stdin" if file == "-" else printable(Path(file).name).replace("[", "\\[")
        yield _Bar(bar, bar.add_task(name, total=source.total, rows="0 rows"))
