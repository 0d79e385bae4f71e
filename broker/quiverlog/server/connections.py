"""The table of client connections, and the rules by which one outstays its welcome.

Owns the limits, the table and the verdict (`overdue`); pure, so that every rule is tested with a
clock made of numbers. What a verdict leads to is the protocol's.

- `idle`: nothing came, nothing is in flight, nothing waits to be sent.
- `frame`: a request was begun (or nothing was ever said) and not finished in time (slow loris).
- `write`: a reply waits, and the client has taken nothing of it for too long.
"""

from __future__ import annotations

import resource
from dataclasses import dataclass
from typing import TYPE_CHECKING

from quiverlog.server.config import BrokerConfig
from quiverlog.storage.posix import FILES_OPEN_MAX

if TYPE_CHECKING:
    from quiverlog.server.protocol import ClientProtocol

__all__ = [
    "ConnectionLimits",
    "ConnectionState",
    "ConnectionTable",
    "log_files_max",
    "overdue",
    "raise_file_limit",
]

OTHER_FILES = 256
"""Descriptors kept for HTTP, metadata and the rest when connections are counted."""


def log_files_max(files_max: int) -> int:
    """Log files that may be open at once, of `files_max` descriptors that the process has."""
    return max(8, min(FILES_OPEN_MAX, files_max // 8))


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionLimits:
    """What one connection, and all of them together, may take."""

    connections_max: int
    idle_us: int
    frame_us: int
    write_stall_us: int
    write_buffer_bytes: int
    in_flight_max: int
    frame_bytes_max: int

    @classmethod
    def from_config(cls, config: BrokerConfig, *, files_max: int) -> ConnectionLimits:
        """The configuration's, bounded by the descriptors that the process may open."""
        # A mapped log file holds a second descriptor.
        room = max(1, files_max - 2 * log_files_max(files_max) - OTHER_FILES)
        return cls(
            connections_max=min(config.connections_max, room),
            idle_us=config.connections_idle_ms * 1000,
            frame_us=config.connections_frame_timeout_ms * 1000,
            write_stall_us=config.connections_write_stall_ms * 1000,
            write_buffer_bytes=config.connections_write_buffer_bytes,
            in_flight_max=config.connections_in_flight_max,
            frame_bytes_max=config.frame_bytes_max,
        )

    @property
    def check_s(self) -> float:
        """How often connections are looked at: often enough for the shortest limit."""
        shortest = min(self.idle_us, self.frame_us, self.write_stall_us) / 1e6
        return min(1.0, max(0.02, shortest / 4))


class ConnectionState:
    """The moments (monotonic microseconds) and counts that `overdue` looks at."""

    __slots__ = ("frame_since_us", "in_flight", "last_read_us", "taken_bytes", "taken_since_us")

    def __init__(self, now_us: int) -> None:
        self.last_read_us = now_us
        # Until the first request is complete, the connection counts as in the middle of one.
        self.frame_since_us = now_us
        self.in_flight: dict[int, int] = {}
        """Correlation id -> when its bytes arrived, in nanoseconds of the performance counter."""
        self.taken_bytes = 0
        self.taken_since_us = 0


def overdue(
    state: ConnectionState, limits: ConnectionLimits, now_us: int, *, sent: int, waiting: int
) -> str | None:
    """Why the connection is to be closed, or None.

    Args:
        sent: bytes handed to the socket since the connection began.
        waiting: those of them that the client has not taken yet.
    """
    if waiting:
        taken = sent - waiting
        if taken != state.taken_bytes or not state.taken_since_us:
            state.taken_bytes = taken
            state.taken_since_us = now_us
        return "write" if now_us - state.taken_since_us > limits.write_stall_us else None
    state.taken_since_us = 0
    if state.frame_since_us and now_us - state.frame_since_us > limits.frame_us:
        return "frame"
    if not state.in_flight and now_us - state.last_read_us > limits.idle_us:
        return "idle"
    return None


class ConnectionTable:
    """Open connections by id. Ids count up and are never used twice."""

    __slots__ = ("_next_id", "by_id", "limits", "lingering")

    def __init__(self, limits: ConnectionLimits) -> None:
        self.limits = limits
        self.by_id: dict[int, ClientProtocol] = {}
        self._next_id = 1
        self.lingering = 0

    def add(self, connection: ClientProtocol) -> int:
        """Take it in; returns its id, or -1 when there is no room."""
        if len(self.by_id) >= self.limits.connections_max:
            return -1
        connection_id = self._next_id
        self._next_id += 1
        self.by_id[connection_id] = connection
        return connection_id

    def remove(self, connection_id: int) -> None:
        """It is gone."""
        self.by_id.pop(connection_id, None)

    def __len__(self) -> int:
        return len(self.by_id)


def raise_file_limit() -> int:
    """Let the process open as many files as its hard limit says. Returns that number."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 1_048_576 if hard == resource.RLIM_INFINITY else hard
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return wanted if soft == resource.RLIM_INFINITY else soft
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    except (OSError, ValueError):
        return soft
    return wanted
