"""The replies of one connection between the node and the socket.

Invariant: every response becomes exactly one frame: itself, or an error where it cannot be encoded.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Final, get_args

import msgspec

from quiverlog.errors import QuiverlogError
from quiverlog.server.observe.logs import Logger
from quiverlog.server.observe.metrics import ServerMetrics
from quiverlog.wire.frames import encode, encode_error
from quiverlog.wire.messages import Response
from quiverlog.wire.registry import APIS

__all__ = ["Replies", "path_hider"]


_COPIES: Final = frozenset((bytes, bytearray))
"""Owners of the process's own memory; any other view is of a mapped file and costs none."""


class Replies:
    """Encodes and gathers replies. `hide_paths` removes the broker's paths from error messages."""

    __slots__ = (
        "_copied_sent_bytes",
        "_has_body",
        "_hide_paths",
        "_log",
        "_metrics",
        "_unsent_since_us",
        "copied_bytes",
        "gathered_bytes",
        "parts",
    )

    def __init__(
        self, metrics: ServerMetrics, log: Logger, *, hide_paths: Callable[[str], str]
    ) -> None:
        self._metrics = metrics
        self._log = log
        self._hide_paths = hide_paths
        self._has_body = False
        self._copied_sent_bytes = 0
        self._unsent_since_us = 0
        self.parts: list[bytes | memoryview] = []
        """Heads and bodies in order."""
        self.gathered_bytes = 0
        self.copied_bytes = 0
        """Gathered bytes that are no views of mapped files."""

    def add(self, response: Response, correlation_id: int, body: Sequence[memoryview] = ()) -> None:
        body_bytes = copied_bytes = 0
        for view in body:
            body_bytes += view.nbytes
            if type(view.obj) in _COPIES:
                copied_bytes += view.nbytes
        self._count_errors(response)
        try:
            head = encode(response, correlation_id, body_bytes)
        except Exception as error:
            head = self._encode_failure(response, correlation_id, error)
            body, body_bytes, copied_bytes = (), 0, 0
        self.parts.append(head)
        if body:
            self._has_body = True
            self.parts.extend(body)
        self.gathered_bytes += len(head) + body_bytes
        self.copied_bytes += len(head) + copied_bytes

    def take(self) -> tuple[list[bytes | memoryview], int]:
        """Return the gathered replies, to be sent now: (parts, bytes)."""
        assert self.parts
        parts, gathered_bytes = self.parts, self.gathered_bytes
        self._copied_sent_bytes += self.copied_bytes
        if not self._has_body and len(parts) > 1:
            # Small heads: joining is cheaper than one vector each.
            parts = [b"".join(parts)]
        self.clear()
        return parts, gathered_bytes

    def unsent(self, waiting_bytes: int, now_us: Callable[[], int]) -> tuple[int, int]:
        """Return (own memory in replies that the client has not taken, since when; 0: none wait).

        Args:
            waiting_bytes: what the transport holds.
        """
        assert waiting_bytes >= 0
        if not waiting_bytes:
            self.all_taken()
        elif not self._unsent_since_us:
            self._unsent_since_us = now_us()
        # The transport does not report which of the sent bytes wait: at most all copies do.
        unsent_bytes = self.copied_bytes + min(waiting_bytes, self._copied_sent_bytes)
        return unsent_bytes, self._unsent_since_us

    def all_taken(self) -> None:
        self._copied_sent_bytes = 0
        self._unsent_since_us = 0

    def clear(self) -> None:
        self.parts = []
        self.gathered_bytes = 0
        self.copied_bytes = 0
        self._has_body = False

    def _encode_failure(self, response: Response, correlation_id: int, error: Exception) -> bytes:
        if not isinstance(error, QuiverlogError):  # else: larger than a frame may be
            self._metrics.node.internal_errors += 1
            self._log.error("internal error", during="encoding a response", exc_info=error)
            error = QuiverlogError()
        self._metrics.count_error(error.code)
        return encode_error(error, api=int(response.API), correlation_id=correlation_id)

    def _count_errors(self, response: Response) -> None:
        if response.error_code:
            self._metrics.count_error(response.error_code)
            response.error_message = self._hide_paths(response.error_message)
        part_name = _PARTS[response.API]
        if part_name:
            for part in getattr(response, part_name):
                if part.error_code:
                    self._metrics.count_error(part.error_code)
                    if message := getattr(part, "error_message", ""):
                        part.error_message = self._hide_paths(message)


def _parts_with_errors(response: type[Response]) -> str:
    for field in msgspec.structs.fields(response):
        if field.name in ("partitions", "topics", "results"):
            (parts,) = get_args(get_args(field.type)[0])  # A list that has a bound.
            return field.name if "error_code" in parts.__struct_fields__ else ""
    return ""


_PARTS: Final = tuple(
    _parts_with_errors(APIS[api].response) if api in APIS else "" for api in range(max(APIS) + 1)
)
"""By API: the field of a response whose parts carry errors."""


def path_hider(*directories: str) -> Callable[[str], str]:
    """Return a function that makes paths below `directories` relative to them.

    Clients see partition and file, and not where the operator keeps the data.
    """
    names = sorted({d.rstrip("/") for d in directories if d.strip("./")}, key=len, reverse=True)
    absolute = "|".join(re.escape(name) for name in names if name.startswith("/")) or "(?!)"
    relative = "|".join(re.escape(name) for name in names if not name.startswith("/")) or "(?!)"
    # Only whole names at a path's beginning: a relative directory may be any word.
    found = re.compile(
        rf"(?<![\w.-])(?:{absolute})/"
        rf"|(?<![\w./-])(?:{relative})/"
        rf"|(?<![\w.-])(?P<itself>{absolute})(?![\w-]|\.\w)"
    )

    def hide_paths(text: str) -> str:
        return found.sub(lambda match: "the data directory" if match["itself"] else "", text)

    return hide_paths
