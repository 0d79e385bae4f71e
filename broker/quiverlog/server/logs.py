"""The broker's log: structured lines on standard error, as logfmt or JSON.

Owns how a line looks. Lines are for events that a person would want to know of (a start, a fault, a
client thrown out), never for a request: a line costs 10 microseconds. Foreign libraries' warnings
(`logging`) come out in the same shape.
"""

from __future__ import annotations

import logging
import sys
from typing import Any, Final, TextIO

import msgspec
import structlog

__all__ = ["Logger", "make_logger"]

LEVELS: Final = {"debug": 10, "info": 20, "warning": 30, "error": 40}

Logger = structlog.typing.FilteringBoundLogger


def make_logger(*, level: str, format: str, stream: TextIO | None = None) -> Logger:
    """A logger that writes to `stream` (standard error).

    Args:
        level: the least important level that is written: debug, info, warning, error.
        format: `logfmt` or `json`.
    """
    renderer: Any
    if format == "json":
        renderer = structlog.processors.JSONRenderer(serializer=_to_json)
    else:
        renderer = structlog.processors.LogfmtRenderer(
            key_order=["timestamp", "level", "event"], bool_as_flag=False
        )
    logger: Logger = structlog.wrap_logger(
        structlog.WriteLogger(stream or sys.stderr),
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            _plain,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(LEVELS[level]),
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
    """Values as people read them: bytes as hex, everything else that is no number as text."""
    for key, value in event.items():
        if isinstance(value, bytes | bytearray | memoryview):
            event[key] = bytes(value[:64]).hex()
        elif not isinstance(value, bool | int | float | str | None):
            event[key] = str(value)
        elif isinstance(value, str):
            event[key] = value.replace("\n", " | ")
    return event
