"""What a topic's configuration means for its logs.

Owns the values and what follows from several of them together.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from quiverlog.limits import (
    INDEX_INTERVAL_BYTES,
    RETENTION_MS_DEFAULT,
    SEGMENT_BYTES_DEFAULT,
    SEGMENT_MS_DEFAULT,
)

__all__ = ["LogConfig"]

_LATE_ROLL_MS_MIN: Final = 60_000
"""No segment is finished for its late rows before that: files are not free."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogConfig:
    """A topic's settings for its logs; -1 keeps for ever, or without bound."""

    segment_bytes: int = SEGMENT_BYTES_DEFAULT
    segment_ms: int = SEGMENT_MS_DEFAULT
    index_interval_bytes: int = INDEX_INTERVAL_BYTES
    retention_ms: int = RETENTION_MS_DEFAULT
    retention_bytes: int = -1

    @property
    def roll_bytes(self) -> int:
        """Segments are at most an eighth of `retention_bytes`, so that the bound can hold."""
        if self.retention_bytes < 0:
            return self.segment_bytes
        return max(1, min(self.segment_bytes, self.retention_bytes // 8))

    def roll_us(self, *, has_late: bool) -> int:
        """At this age a segment is finished.

        One with late rows soon: all its rows from the first of them on stay as long as the last.
        """
        if not has_late or self.retention_ms < 0:
            return self.segment_ms * 1000
        assert self.segment_ms > 0
        return min(self.segment_ms, max(self.retention_ms // 8, _LATE_ROLL_MS_MIN)) * 1000
