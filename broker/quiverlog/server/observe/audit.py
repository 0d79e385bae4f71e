"""The audit log: JSON lines in a file of their own, or among the log's on standard error.

Denials, failed logins and changes, and reads and writes of audited topics that are alike are
written once in a window, and then with their count; other changes and logins are each a line. A
thread writes, so that a slow disk holds up no request.

Invariant: a line that is left out (too many kinds, too many lines waiting, a full disk) is counted,
and the next line that can be written has the count.
"""

from __future__ import annotations

import contextlib
import os
import queue
import threading
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Final

import msgspec

from quiverlog.server.observe.logs import STDERR

__all__ = ["LOG_STREAM", "AuditLog"]

LOG_STREAM: Final = "log"
"""In place of a file's path: standard error."""
WINDOW_S: Final = 10.0
KINDS_MAX: Final = 1_000
"""Of each event, so that one of them, which clients may cause, takes no place of the others."""
LINES_WAITING_MAX: Final = 10_000
CLOSE_S: Final = 5.0
"""For what waits to be written at the end: what should read may be stuck."""
_ALLOWED: Final = "allowed"
_ALIKE: Final = (
    *("event", "address", "listener", "principal", "mechanism", "api", "resource", "operation"),
    *("result", "rule"),
)


class _Window:
    __slots__ = ("began_s", "fields", "more")

    def __init__(self, began_s: float, fields: Mapping[str, object]) -> None:
        self.began_s = began_s
        self.fields = fields
        self.more = 0


class AuditLog:
    """Safe to be used by several threads.

    Args:
        broker: its node id, which each line has.
        path: the file, or LOG_STREAM. It is opened again when another file is at its place.
    """

    def __init__(
        self,
        broker: int,
        path: str,
        *,
        clock_s: Callable[[], float] = time.monotonic,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._broker = broker
        self._path = path
        self._clock_s = clock_s
        self._now = now
        self._windows: dict[object, dict[tuple[object, ...], _Window]] = {}
        """By event."""
        self._lock = threading.Lock()
        self._queue: queue.Queue[bytes | None] = queue.Queue(LINES_WAITING_MAX)
        self._lost = 0
        self.lost_total = 0
        self._descriptor = -1
        if path != LOG_STREAM:
            self._open()
        self._thread = threading.Thread(target=self._write_all, name="audit", daemon=True)
        self._thread.start()

    # --- taking --------------------------------------------------------------------------------
    def take(self, fields: Mapping[str, object]) -> None:
        is_bounded = fields["event"] == _ALLOWED or fields.get("result") != "ok"
        with self._lock:
            if is_bounded and not self._is_first(fields):
                return
            self._put(fields)

    def _is_first(self, fields: Mapping[str, object]) -> bool:
        windows = self._windows.setdefault(fields["event"], {})
        key = tuple(fields.get(name) for name in _ALIKE)
        count = fields.get("count", 1)
        assert isinstance(count, int)
        window = windows.get(key)
        if window is not None:
            window.more += count
            return False
        if len(windows) >= KINDS_MAX:
            self._lose(count)
            return False
        windows[key] = _Window(self._clock_s(), fields)
        return True

    def tick(self) -> None:
        """Write the counts of windows that are over. Called periodically."""
        with self._lock:
            self._end_windows(self._clock_s() - WINDOW_S)
            self._put_lost()

    def _end_windows(self, before_s: float) -> None:
        # The first line of each was written when it came.
        for windows in self._windows.values():
            for key, window in list(windows.items()):
                if window.began_s <= before_s:
                    del windows[key]
                    if window.more:
                        self._put({**window.fields, "count": window.more})

    def _put(self, fields: Mapping[str, object]) -> None:
        self._put_lost()
        if not self._enqueue(self._line(fields)):
            count = fields.get("count", 1)
            self._lose(count if isinstance(count, int) else 1)

    def _put_lost(self) -> None:
        if self._lost and self._enqueue(self._line({"event": "lost", "count": self._lost})):
            self._lost = 0

    def _lose(self, count: int) -> None:
        self._lost += count
        self.lost_total += count

    def _enqueue(self, line: bytes) -> bool:
        try:
            self._queue.put_nowait(line)
        except queue.Full:
            return False
        return True

    def _line(self, fields: Mapping[str, object]) -> bytes:
        head = {"time": self._now().isoformat(timespec="microseconds"), "broker": self._broker}
        return msgspec.json.encode({**head, **fields}) + b"\n"

    # --- writing -------------------------------------------------------------------------------
    def close(self) -> None:
        """Write what is known, with the counts, and end; CLOSE_S at most."""
        with self._lock:
            self._end_windows(self._clock_s())
            self._put_lost()
        until_s = time.monotonic() + CLOSE_S
        with contextlib.suppress(queue.Full):
            self._queue.put(None, timeout=CLOSE_S)
        self._thread.join(max(0.0, until_s - time.monotonic()))
        # A write that is stuck still has the descriptor; it ends with the process.
        if self._descriptor >= 0 and not self._thread.is_alive():
            os.close(self._descriptor)
            self._descriptor = -1

    def _write_all(self) -> None:
        while (line := self._queue.get()) is not None:
            try:
                self._write(line)
            except OSError:
                with self._lock:
                    self._lose(1)

    def _write(self, line: bytes) -> None:
        if self._path != LOG_STREAM and not self._is_in_place():
            self._open()
        descriptor = STDERR if self._path == LOG_STREAM else self._descriptor
        rest = memoryview(line)
        while rest:
            rest = rest[os.write(descriptor, rest) :]

    def _is_in_place(self) -> bool:
        """False where the file was moved away, as by logrotate."""
        try:
            found, own = os.stat(self._path), os.fstat(self._descriptor)
        except OSError:
            return False
        return (found.st_dev, found.st_ino) == (own.st_dev, own.st_ino)

    def _open(self) -> None:
        """Raises OSError."""
        made = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor = made
