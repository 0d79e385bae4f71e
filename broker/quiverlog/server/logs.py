"""The broker's log: structured lines on standard error, as logfmt or JSON.

Owns how a line looks, which level is written, how many lines of one kind, and what happens when
nobody takes them: a log that cannot be written never stops the broker. Lines are for events that a
person would want to know of (a start, a fault, a client thrown out), never for a request: a line
costs 10 microseconds. Foreign libraries' warnings (`logging`) come out in the same shape.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
import traceback
from collections.abc import Callable
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Final, TextIO

import msgspec

from quiverlog.server.log_rate import LineRate
from quiverlog.server.streams import STDERR, say

__all__ = ["LogControl", "Logger", "bridge_logging", "make_logger"]

LEVELS: Final = {"debug": 10, "info": 20, "warning": 30, "error": 40}

Raised = BaseException | tuple[type[BaseException], BaseException, TracebackType | None] | None


class LogControl:
    """What may change while a logger is in use: its level. Counts the lines that were left out."""

    def __init__(self, level: str, *, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._clock_s = clock_s
        self._rate = LineRate()
        # The node's threads log, too.
        self._lock = threading.Lock()
        self.level = LEVELS[level]

    def set_level(self, level: str) -> None:
        """From now on, write lines of this level and above."""
        self.level = LEVELS[level]

    @property
    def left_out_total(self) -> int:
        """Lines that were left out, since the start."""
        return self._rate.left_out_total

    def write_left_out(self, logger: Logger) -> None:
        """Say how many lines were left out of kinds that have stopped. Call it now and then."""
        with self._lock:
            ended = self._rate.ended(self._clock_s())
        for kind, count in ended:
            logger.warning("log lines left out", kind=kind, count=count)

    def admit(self, level: str, kind: str) -> int | None:
        """How many lines of its kind were left out before this one; None leaves it out, too."""
        if LEVELS[level] < self.level:
            return None
        with self._lock:
            admitted = self._rate.admit(kind, self._clock_s())
        return None if admitted is None else admitted.lines


class Logger:
    """Writes lines: an event, and fields by name. Any thread may.

    Args:
        render: makes a line of what it is to tell, in this order.
        write: takes a whole line, without its end.
    """

    __slots__ = ("_control", "_lock", "_render", "_write")

    def __init__(
        self,
        control: LogControl,
        render: Callable[[dict[str, Any]], str],
        write: Callable[[str], None],
    ) -> None:
        self._control = control
        self._lock = threading.Lock()  # A line is written as a whole.
        self._render = render
        self._write = write

    def debug(self, event: str, **fields: Any) -> None:
        """For whoever looks for a fault."""
        self._log("debug", event, fields)

    def info(self, event: str, **fields: Any) -> None:
        """What an operator may want to know."""
        self._log("info", event, fields)

    def warning(self, event: str, *, exc_info: Raised = None, **fields: Any) -> None:
        """What an operator should look at. `exc_info`: its traceback goes along."""
        self._log("warning", event, fields, exc_info)

    def error(self, event: str, *, exc_info: Raised = None, **fields: Any) -> None:
        """What an operator must look at. `exc_info`: its traceback goes along."""
        self._log("error", event, fields, exc_info)

    def _log(self, level: str, event: str, fields: dict[str, Any], exc_info: Raised = None) -> None:
        left_out = self._control.admit(level, str(fields.get("library") or event))
        if left_out is None:
            return
        if left_out:
            fields["left_out"] = left_out
        if exc_info is not None:
            error = exc_info[1] if isinstance(exc_info, tuple) else exc_info
            fields["exception"] = "".join(traceback.format_exception(error)).rstrip("\n")
        at = datetime.now(UTC).isoformat().replace("+00:00", "Z")
        line = self._render(_plain({"timestamp": at, "level": level, "event": event, **fields}))
        with self._lock:
            self._write(line)


class _PatientStream:
    """Writes to a stream and ignores that it fails (a closed pipe, a full disk)."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, line: str) -> None:
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
    """A logger that writes to `stream` (None: standard error).

    Args:
        level: the least important level that is written: debug, info, warning, error.
        format: `logfmt` or `json`.
        control: made for `level` when it is not given.
    """
    # Lines go out at once: Python's stream keeps what it could not write (see `say`).
    write = _PatientStream(stream).write if stream is not None else _to_standard_error
    return Logger(control or LogControl(level), _json if format == "json" else _logfmt, write)


def _to_standard_error(line: str) -> None:
    say(line, STDERR)


def bridge_logging(logger: Logger) -> None:
    """Send warnings of libraries that use `logging` (asyncio) the same way."""
    root = logging.getLogger()
    root.handlers[:] = [_Bridge(logger)]
    root.setLevel(logging.WARNING)


class _Bridge(logging.Handler):
    def __init__(self, logger: Logger) -> None:
        super().__init__()
        self._logger = logger

    def emit(self, record: logging.LogRecord) -> None:
        raised: Any = record.exc_info if record.exc_info and record.exc_info[0] else None
        write = self._logger.error if record.levelno >= logging.ERROR else self._logger.warning
        write(record.getMessage(), library=record.name, exc_info=raised)


# --- how a line looks -----------------------------------------------------------------------------
def _json(line: dict[str, Any]) -> str:
    return msgspec.json.encode(line).decode()


def _logfmt(line: dict[str, Any]) -> str:
    return " ".join(f"{name}={_logfmt_value(value)}" for name, value in line.items())


def _logfmt_value(value: str | bool | float | None) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    text = str(value)
    if " " in text or "=" in text or '"' in text:
        text = text.replace("\\", "\\\\").replace('"', '\\"')
        return f'"{text}"'
    return text


def _plain(line: dict[str, Any]) -> dict[str, Any]:
    """Values as people read them: bytes as hex, other values that are no number as text.

    Control characters go: what a client sends must not steer the terminal that shows the log.
    """
    for key, value in line.items():
        if isinstance(value, bytes | bytearray | memoryview):
            line[key] = bytes(value[:64]).hex()
        elif not isinstance(value, bool | int | float | None):
            line[key] = _printable(value if isinstance(value, str) else str(value))
    return line


def _printable(text: str) -> str:
    text = text.replace("\n", " | ")
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in text)
