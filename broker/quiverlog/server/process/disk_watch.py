"""The check of the data directory every second, in its own thread: is it ours, is there room.

The thread waits while a disk or a network file system does not answer; the loop never does. Not a
job: jobs may run for seconds, and a foreign directory in place of ours must be noticed meanwhile.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Final, NamedTuple

__all__ = ["DiskLook", "DiskWatch"]

_PERIOD_S: Final = 1.0


class DiskLook(NamedTuple):
    """`free_bytes` None: it cannot be measured; `error` is the reason."""

    is_owned: bool
    free_bytes: int | None
    error: str = ""


class DiskWatch:
    """Checks until `stop`.

    Args:
        is_owned: whether the directory is still the locked one; called in the thread.
        free_bytes: room on its file system; may raise OSError; called in the thread.
        found: called on the loop with each result.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        *,
        is_owned: Callable[[], bool],
        free_bytes: Callable[[], int],
        found: Callable[[DiskLook], None],
        period_s: float = _PERIOD_S,
    ) -> None:
        self._loop = loop
        self._is_owned = is_owned
        self._free_bytes = free_bytes
        self._found = found
        self._period_s = period_s
        self._stopped = threading.Event()
        # A daemon that is never joined: a check may wait for a disk that hangs, which must not keep
        # the process from ending.
        self._thread = threading.Thread(target=self._run, name="disk-watch", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the checks; the result of one under way is dropped."""
        self._stopped.set()

    def _run(self) -> None:
        while not self._stopped.is_set():
            look = self._look()
            try:
                self._loop.call_soon_threadsafe(self._report, look)
            except RuntimeError:
                # The loop is closed: the broker has stopped.
                return
            self._stopped.wait(self._period_s)

    def _look(self) -> DiskLook:
        try:
            free_bytes: int | None = self._free_bytes()
            error = ""
        except OSError as failure:
            free_bytes, error = None, str(failure)
        return DiskLook(self._is_owned(), free_bytes, error)

    def _report(self, look: DiskLook) -> None:
        if not self._stopped.is_set():  # Else a check that was under way at `stop`.
            self._found(look)
