"""The broker's log: structured lines on standard error, as logfmt or JSON.

Lines of one kind are bounded, so that clients cannot fill the disk; those left out are counted. A
write that fails does not stop the broker.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Final, NamedTuple, TextIO

import msgspec

__all__ = [
    "KINDS_MAX",
    "STDERR",
    "STDOUT",
    "LeftOut",
    "LineRate",
    "LogControl",
    "Logger",
    "bridge_logging",
    "hold_standard_streams",
    "make_logger",
    "write_line",
]


WINDOW_S: Final = 10.0
LINES_PER_WINDOW: Final = 100
"""Bound on a kind that operators and the node cause."""
CLIENT_LINES_PER_WINDOW: Final = 10
"""Bound on a kind that any client can cause."""
CLIENT_KINDS: Final = frozenset(
    {
        "protocol error",
        "connection closed",
        "connection refused",
        "connection overdue",
        "connections cannot be accepted",
        "http request refused",
        "http connection cut off",
    }
)
WHOLE_KINDS: Final = frozenset(
    {
        "retention took rows",
        "torn tail cut",
        "damaged rows found",
        "partition file",
        "partition offline",
        "partition fault",
        "corrupt log",
        "rows of an unknown topic set aside",
    }
)
"""Never left out, and bounded by the node: each once for a partition in a start or a lifetime, or
(retention) once a second for a topic."""
KINDS_MAX: Final = 1_000
"""Kinds counted separately; all others count as one."""
_OTHER_KINDS: Final = "other lines"


class LeftOut(NamedTuple):
    kind: str
    lines: int


class _Window:
    __slots__ = ("began_s", "left_out", "written")

    def __init__(self, began_s: float) -> None:
        self.began_s = began_s
        self.written = 0
        self.left_out = 0


class LineRate:
    """Bounds the log lines of each kind."""

    def __init__(self) -> None:
        self._windows: dict[str, _Window] = {}
        self.left_out_total = 0

    def admit(self, kind: str, now_s: float) -> LeftOut | None:
        """Return None to leave this line out; else the count of those left out before it."""
        if kind in WHOLE_KINDS:
            return LeftOut(kind, 0)
        window = self._windows.get(kind)
        if window is None:
            if len(self._windows) >= KINDS_MAX and kind != _OTHER_KINDS:
                return self.admit(_OTHER_KINDS, now_s)
            window = self._windows[kind] = _Window(now_s)
        left_out = 0
        if now_s - window.began_s >= WINDOW_S:
            left_out = window.left_out
            window.began_s, window.written, window.left_out = now_s, 0, 0
        most = CLIENT_LINES_PER_WINDOW if kind in CLIENT_KINDS else LINES_PER_WINDOW
        if window.written >= most:
            window.left_out += 1
            self.left_out_total += 1
            return None
        window.written += 1
        return LeftOut(kind, left_out)

    def ended(self, now_s: float) -> list[LeftOut]:
        """Return, once each, the counts of windows that ended without another line."""
        found = []
        for kind, window in list(self._windows.items()):
            if now_s - window.began_s >= WINDOW_S:
                if window.left_out:
                    found.append(LeftOut(kind, window.left_out))
                del self._windows[kind]
        return found


STDOUT: Final = 1
STDERR: Final = 2


def hold_standard_streams() -> None:
    """Open /dev/null in place of closed standard streams."""
    # Else the next file that the broker opens gets their number, and log lines go into it.
    for number in range(STDERR + 1):
        try:
            os.fstat(number)
        except OSError:
            found = os.open(os.devnull, os.O_RDWR)
            if found != number:
                os.dup2(found, number)
                os.close(found)
            os.set_inheritable(number, True)
    if sys.stdout is None:
        sys.stdout = open(STDOUT, "w", closefd=False)  # noqa: SIM115
    if sys.stderr is None:
        sys.stderr = open(STDERR, "w", closefd=False)  # noqa: SIM115


def write_line(line: str, number: int) -> None:
    """Write a line at once; a closed pipe or a full disk is ignored."""
    assert number in (STDOUT, STDERR)
    # Past Python's stream, which keeps what it could not write and fails again when the process
    # ends, with exit code 120.
    rest = f"{line}\n".encode(errors="backslashreplace")
    with contextlib.suppress(OSError):
        while rest:
            rest = rest[os.write(number, rest) :]


LEVELS: Final = {"debug": 10, "info": 20, "warning": 30, "error": 40}


class LogControl:
    """The level of a logger, which may change while it is in use, and its line rates."""

    def __init__(self, level: str, *, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._clock_s = clock_s
        self._rate = LineRate()
        # The node's threads log too.
        self._lock = threading.Lock()
        self.level = LEVELS[level]

    def set_level(self, level: str) -> None:
        self.level = LEVELS[level]

    @property
    def left_out_total(self) -> int:
        return self._rate.left_out_total

    def write_left_out(self, logger: Logger) -> None:
        """Log the counts of kinds without new lines. Called periodically."""
        with self._lock:
            ended = self._rate.ended(self._clock_s())
        for kind, count in ended:
            logger.warning("log lines left out", kind=kind, count=count)

    def admit(self, level: str, kind: str) -> LeftOut | None:
        """Return None to leave this line out; else the count of those left out before it."""
        if LEVELS[level] < self.level:
            return None
        with self._lock:
            return self._rate.admit(kind, self._clock_s())


class Logger:
    """
    Args:
        render: makes the line.
        stream: None: standard error. One that fails (a closed pipe, a full disk) is ignored.
    """

    def __init__(
        self,
        control: LogControl,
        render: Callable[[Mapping[str, object]], str],
        stream: TextIO | None,
    ) -> None:
        self._control = control
        self._render = render
        self._stream = stream

    def debug(self, event: str, /, **fields: object) -> None:
        self._write("debug", event, fields)

    def info(self, event: str, /, **fields: object) -> None:
        self._write("info", event, fields)

    def warning(self, event: str, /, **fields: object) -> None:
        self._write("warning", event, fields)

    def error(self, event: str, /, **fields: object) -> None:
        """`exc_info`: an exception, which becomes the field `exception` with its traceback."""
        self._write("error", event, fields)

    def _write(self, level: str, event: str, fields: dict[str, object]) -> None:
        admitted = self._control.admit(level, str(fields.get("library") or event))
        if admitted is None:
            return
        error = fields.pop("exc_info", None)
        now = datetime.now(UTC).isoformat().replace("+00:00", "Z")
        head = {"timestamp": now, "level": level, "event": event}
        # Twice: the head is first, and no field takes its place.
        entry: dict[str, object] = {**head, **fields, **head}
        if admitted.lines:
            entry["left_out"] = admitted.lines
        if isinstance(error, BaseException):
            entry["exception"] = "".join(traceback.format_exception(error)).removesuffix("\n")
        line = self._render({key: _plain(value) for key, value in entry.items()})
        if self._stream is None:
            write_line(line, STDERR)
        else:
            with contextlib.suppress(OSError, ValueError):
                self._stream.write(f"{line}\n")
                self._stream.flush()


def make_logger(
    *,
    level: str,
    format: str,
    stream: TextIO | None = None,
    control: LogControl | None = None,
) -> Logger:
    """
    Args:
        format: `logfmt` or `json`.
        stream: None: standard error.
    """
    render = _to_json if format == "json" else _to_logfmt
    return Logger(control or LogControl(level), render, stream)


def bridge_logging(logger: Logger) -> None:
    """Send warnings and errors of libraries that use `logging` (asyncio, aiohttp) to `logger`."""
    root = logging.getLogger()
    root.handlers[:] = [_Bridge(logger)]
    root.setLevel(logging.WARNING)


class _Bridge(logging.Handler):
    def __init__(self, logger: Logger) -> None:
        super().__init__()
        self._logger = logger

    def emit(self, record: logging.LogRecord) -> None:
        level = "error" if record.levelno >= logging.ERROR else "warning"
        error = record.exc_info[1] if record.exc_info else None
        getattr(self._logger, level)(record.getMessage(), library=record.name, exc_info=error)


def _to_json(entry: Mapping[str, object]) -> str:
    return msgspec.json.encode(entry).decode()


def _to_logfmt(entry: Mapping[str, object]) -> str:
    return " ".join(f"{key}={_logfmt_value(value)}" for key, value in entry.items())


def _logfmt_value(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    text = str(value)
    if not any(c in text for c in ' ="'):
        return text
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _plain(value: object) -> object:
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value[:64]).hex()
    if isinstance(value, bool | int | float | None):
        return value
    return _printable(value if isinstance(value, str) else str(value))


def _printable(text: str) -> str:
    # A client's text must not steer the terminal that shows the log.
    text = text.replace("\n", " | ")
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in text)
