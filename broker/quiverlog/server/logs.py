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
from collections.abc import Callable
from typing import Any, Final, TextIO

import msgspec
import structlog

from quiverlog.server.log_rate import LineRate
from quiverlog.server.streams import STDERR, say

__all__ = ["LogControl", "Logger", "bridge_logging", "make_logger"]

LEVELS: Final = {"debug": 10, "info": 20, "warning": 30, "error": 40}

Logger = structlog.typing.FilteringBoundLogger


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

    def process(self, _logger: object, method: str, event: Any) -> Any:
        """A processor of structlog's: drops lines by level and by rate."""
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
    """Lines go out at once: Python's stream keeps what it could not write (see `say`)."""

    def write(self, text: str) -> None:
        say(text.removesuffix("\n"), STDERR)

    def flush(self) -> None: ...


class _PatientStream:
    """Writes to a stream and ignores that it fails (a closed pipe, a full disk)."""

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
    """A logger that writes to `stream` (None: standard error).

    Args:
        level: the least important level that is written: debug, info, warning, error.
        format: `logfmt` or `json`.
        control: made for `level` when it is not given.
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
    """Send warnings of libraries that use `logging` (asyncio, aiohttp) the same way."""
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
    """Values as people read them: bytes as hex, other values that are no number as text.

    Control characters go: what a client sends must not steer the terminal that shows the log.
    """
    for key, value in event.items():
        if isinstance(value, bytes | bytearray | memoryview):
            event[key] = bytes(value[:64]).hex()
        elif not isinstance(value, bool | int | float | None):
            event[key] = _printable(value if isinstance(value, str) else str(value))
    return event


def _printable(text: str) -> str:
    text = text.replace("\n", " | ")
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in text)
