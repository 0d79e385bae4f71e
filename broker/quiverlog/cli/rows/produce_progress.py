"""Progress of `produce` on stderr: a bar on a terminal; elsewhere lines if the input's size is
unknown (a pipe, a compressed file), else nothing."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from quiverlog.cli.console.output import console, counted, human_count
from quiverlog.cli.console.terminal import printable

if TYPE_CHECKING:
    from quiverlog.cli.formats.read_files import Source

__all__ = ["Progress", "shown_progress"]

_LINE_EVERY_S = 10.0


class Progress(Protocol):
    def show(self, done: int) -> None: ...


class _Nothing:
    def show(self, done: int) -> None:
        pass


class _Rate:
    def __init__(self, rows: Callable[[], int]) -> None:
        self._count = rows
        self._since_s = time.monotonic()
        self._before = 0

    def has_grown(self) -> bool:
        return self._count() != self._before

    def words(self, *, is_kept: bool = True) -> str:
        """Return the rate since the beginning; since the last call unless `is_kept`."""
        rows, now_s = self._count(), time.monotonic()
        rate = (rows - self._before) / max(1e-3, now_s - self._since_s)
        if not is_kept:
            self._before, self._since_s = rows, now_s
        shown = human_count(rate) if rate >= 10 or not rate else f"{rate:.1f}"
        return f"{counted(rows, 'row', 'rows')}, {shown} rows/s"


@contextlib.contextmanager
def _lines(rate: _Rate) -> Iterator[Progress]:
    """Print a line every `_LINE_EVERY_S` in which rows were acknowledged."""
    # From a thread: the last rows are acknowledged while the pipe is silent.
    ended = threading.Event()

    def print_lines() -> None:
        while not ended.wait(_LINE_EVERY_S):
            if rate.has_grown():
                print(rate.words(is_kept=False), file=sys.stderr, flush=True)

    thread = threading.Thread(target=print_lines, name="quiverlog-progress", daemon=True)
    thread.start()
    try:
        yield _Nothing()
    finally:
        ended.set()
        thread.join()


class _Bar:
    def __init__(self, bar: Any, task: Any) -> None:
        self._bar = bar
        self._task = task

    def show(self, done: int) -> None:
        self._bar.update(self._task, completed=done)


@contextlib.contextmanager
def shown_progress(
    file: str, source: Source, rows: Callable[[], int], *, is_quiet: bool
) -> Iterator[Progress]:
    """Show progress for the time of a `with`; `rows` returns how many are acknowledged."""
    if is_quiet:
        yield _Nothing()
        return
    shown = console(stderr=True)
    if not shown.is_terminal:
        is_endless = source.total is None
        with _lines(_Rate(rows)) if is_endless else contextlib.nullcontext(_Nothing()) as progress:
            yield progress
        return
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        MofNCompleteColumn,
        ProgressColumn,
        Task,
        TextColumn,
        TimeRemainingColumn,
    )
    from rich.progress import Progress as RichProgress
    from rich.text import Text

    rate = _Rate(rows)

    class RowsColumn(ProgressColumn):
        def render(self, task: Task) -> Text:
            return Text(rate.words())

    # A pipe has no end to draw a bar to.
    ends = [BarColumn(), TimeRemainingColumn()] if source.total is not None else []
    amount = MofNCompleteColumn() if source.total_is_rows else DownloadColumn()
    with RichProgress(
        TextColumn("{task.description}", markup=False),
        *ends,
        amount,
        RowsColumn(),
        console=shown,
        transient=True,
    ) as bar:
        name = "stdin" if file == "-" else printable(Path(file).name)
        yield _Bar(bar, bar.add_task(name, total=source.total))
