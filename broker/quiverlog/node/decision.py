"""A decision of the controller on its way from being made to being true.

Must not know: how it becomes durable (metadata.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from quiverlog.core.controller.records import Record, TopicRecord
from quiverlog.node.jobs import Then

__all__ = ["Decision", "Directories", "names_created"]

Directories = Mapping[str, bytes]
"""Topic id by partition name: directories that must be there before the records are logged."""


class Decision(NamedTuple):
    """`made`: those of the directories that were made for it, and hold nothing yet."""

    records: list[Record]
    entry: bytes
    directories: Directories
    made: set[str]
    then: Then
    after: list[Then]  # Others who wait until it holds or has failed.

    def note_made(self, made: Directories) -> None:
        """These directories were made, for this decision and others."""
        self.made.update(n for n, topic_id in self.directories.items() if made.get(n) == topic_id)


def names_created(records: Sequence[Record]) -> list[str]:
    """Names of the topics that these records create."""
    return [record.name for record in records if isinstance(record, TopicRecord)]
