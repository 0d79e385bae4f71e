"""The part of a client that tables use, which lie below its class."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from quiverlog.batch.schema import SchemaHistory

__all__ = ["TopicReader"]


class TopicReader(Protocol):
    def list_topics(self) -> list[str]: ...

    def schemas(self, topic: str) -> SchemaHistory: ...

    def read(self, topic: str, *, columns: Sequence[str] | None = None, where: Any = None) -> Any:
        """Read a topic to its present end: iterable, with `schema`."""
