"""How long a client pauses between tries. Pure functions; jitter is handed in."""

from __future__ import annotations

from quiverlog.errors import QuiverlogError
from quiverlog.limits import (
    ELSEWHERE_BACKOFF_MS_MAX,
    ELSEWHERE_TRIES,
    RETRY_BACKOFF_MS_MAX,
    RETRY_BACKOFF_MS_MIN,
)

__all__ = ["backoff_s", "empty_pause_s", "pause_s"]


def backoff_s(attempt: int, jitter: float) -> float:
    """The pause before try number `attempt + 1`; `jitter` lies in [0, 1)."""
    assert attempt >= 0
    ceiling_ms: int = min(RETRY_BACKOFF_MS_MAX, RETRY_BACKOFF_MS_MIN << min(attempt, 16))
    return jitter * ceiling_ms / 1000


def pause_s(error: QuiverlogError, attempt: int, jitter: float) -> float:
    """As `backoff_s`, after `error`: short while somebody else may be elected in these seconds."""
    found_s = backoff_s(attempt, jitter)
    if error.refresh_metadata and attempt < ELSEWHERE_TRIES:
        found_s = min(found_s, jitter * ELSEWHERE_BACKOFF_MS_MAX / 1000)
    return found_s


def empty_pause_s(attempt: int, jitter: float) -> float:
    """The pause after a long poll that was answered early and without rows.

    At least half the ceiling: a pause that may be 0 bounds no rate of requests.
    """
    return (backoff_s(attempt, 1.0) + backoff_s(attempt, jitter)) / 2
