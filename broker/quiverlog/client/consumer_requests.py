"""The fetches that a consumer has under way, and the leaders that it lets rest.

Owns what is remembered of each; the consumer's machine (consumer_core.py) decides.
"""

from __future__ import annotations

from dataclasses import dataclass

from .commands import PendingReply
from .results import Address

__all__ = ["Pause", "Request"]


@dataclass(slots=True)
class Request:
    """A fetch under way."""

    pending: PendingReply
    address: Address
    offsets: dict[int, int]
    """Partition -> the offset that was asked for; a seek makes the answer stale."""
    sent_s: float
    waited_s: float = 0.0
    """How long the consumer has waited for it: without what the caller did meanwhile."""


@dataclass(slots=True)
class Pause:
    """A leader whose last answers came early and without rows."""

    streak: int = 0
    until_s: float = 0.0
