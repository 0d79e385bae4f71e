"""What the coordinator of groups reads of topics; its shell brings it."""

from __future__ import annotations

from typing import Protocol

__all__ = ["Topics"]


class Topics(Protocol):
    """The metadata image of this moment."""

    def find(self, name: str) -> tuple[bytes, int] | None:
        """Return the id and the number of partitions of a topic that is not internal."""

    def partitions(self, topic_id: bytes) -> int:
        """Return the number of partitions, 0 where there is no such topic."""
