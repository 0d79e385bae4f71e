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
from collections.abc import Callable
from typing import Any, Final, NamedTuple, TextIO

import msgspec
import structlog

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

Logger = structlog.typing.FilteringBoundLogger


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

    def process(self, _logger: object, method: str, event: Any) -> Any:
        if LEVELS.get(method, 50) < self.level:
            raise structlog.DropEvent
        kind = str(event.get("library") or event.get("event"))
        with self._lock:
            admitted = self._rate.admit(kind, self._clock_s())
        if admitted is None:
            raise structlog.DropEvent
        if admitted.lines:
            event["left_out"] = admitted.lines
        return event


class _StandardError:
    def write(self, text: str) -> None:
        write_line(text.removesuffix("\n"), STDERR)

    def flush(self) -> None: ...


class _PatientStream:
    """Ignores a stream's failures (a closed pipe, a full disk)."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> None:
        with contextlib.suppress(OSError, ValueError):
            self._stream.write(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError, ValueError):
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
    renderer: Any
    if format == "json":
        renderer = structlog.processors.JSONRenderer(serializer=_to_json)
    else:
        renderer = structlog.processors.LogfmtRenderer(
            key_order=["timestamp", "level", "event"], bool_as_flag=False
        )
    lines: Any = _StandardError() if stream is None else _PatientStream(stream)
    logger: Logger = structlog.wrap_logger(
        structlog.WriteLogger(lines),
        processors=[
            (control or LogControl(level)).process,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            _plain,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(LEVELS["debug"]),
        cache_logger_on_first_use=True,
    )
    return logger


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
        exc_info: Any = record.exc_info if record.exc_info and record.exc_info[0] else None
        getattr(self._logger, level)(record.getMessage(), library=record.name, exc_info=exc_info)


def _to_json(value: object, **_: object) -> str:
    return msgspec.json.encode(value, enc_hook=str).decode()


def _plain(_logger: object, _method: str, event: Any) -> Any:
    for key, value in event.items():
        if isinstance(value, bytes | bytearray | memoryview):
            event[key] = bytes(value[:64]).hex()
        elif not isinstance(value, bool | int | float | None):
            event[key] = _printable(value if isinstance(value, str) else str(value))
    return event


def _printable(text: str) -> str:
    # A client's text must not steer the terminal that shows the log.
    text = text.replace("\n", " | ")
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in text)
