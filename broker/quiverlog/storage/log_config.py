"""What a topic's configuration means for its logs.

Owns the values and what follows from several of them together.
"""

from __future__ import annotations

from dataclasses import dataclass

from quiverlog.limits import (
    INDEX_INTERVAL_BYTES,
    RETENTION_MS_DEFAULT,
    SEGMENT_BYTES_DEFAULT,
    SEGMENT_MS_DEFAULT,
)

__all__ = ["LogConfig"]


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
