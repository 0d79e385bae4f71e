"""Looking at the data directory every second, in a thread of its own: is it ours, is there room.

Each look waits for as long as a disk or a network file system does not answer, and the loop never
does. Not a job: those may be under way for seconds, and another directory in the place of ours must
be noticed meanwhile.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Final, NamedTuple

__all__ = ["DiskLook", "DiskWatch"]

_PERIOD_S: Final = 1.0


class DiskLook(NamedTuple):
    """One look. `free_bytes` None: it cannot be measured; `error` is the reason."""

    is_owned: bool
    free_bytes: int | None
    error: str = ""


class DiskWatch:
    """Looks until `stop`.

    Args:
        is_owned: whether the directory is still the locked one; called in the thread.
        free_bytes: room on its file system; may raise OSError; called in the thread.
        found: called on the loop with each look, until `stop`.
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
        # Not joined, but a daemon: a look may wait for a disk that hangs, which must not keep the
        # process from ending.
        self._thread = threading.Thread(target=self._run, name="disk-watch", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Look no more; drop the result of a look under way."""
        self._stopped.set()

    def _run(self) -> None:
        while not self._stopped.is_set():
            look = self._look()
            try:
                self._loop.call_soon_threadsafe(self._report, look)
            except RuntimeError:
                return  # The loop is closed.
            self._stopped.wait(self._period_s)

    def _look(self) -> DiskLook:
        try:
            free_bytes: int | None = self._free_bytes()
            error = ""
        except OSError as failure:
            free_bytes, error = None, str(failure)
        return DiskLook(self._is_owned(), free_bytes, error)

    def _report(self, look: DiskLook) -> None:
        if not self._stopped.is_set():
            self._found(look)
