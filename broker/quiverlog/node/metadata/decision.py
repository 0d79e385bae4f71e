"""A decision of the controller until it is applied or has failed."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from quiverlog.core.controller.records import Record, TopicRecord, topic_of
from quiverlog.errors import OutcomeUnknown, QuiverlogError
from quiverlog.node.runtime.jobs import Then

__all__ = ["Decision", "Directories", "names_created", "outcome_unknown", "take_refused", "why"]

Directories = Mapping[str, bytes]
"""Topic id by partition name: directories that must exist before the records are logged."""


class Decision(NamedTuple):
    """`made`: directories made for it, still empty; `after`: callers that wait for its end."""

    records: list[Record]
    entry: bytes
    directories: Directories
    made: set[str]
    then: Then
    after: list[Then]

    def note_made(self, made: Directories) -> None:
        self.made.update(n for n, topic_id in self.directories.items() if made.get(n) == topic_id)


def names_created(records: Sequence[Record]) -> list[str]:
    return [record.name for record in records if isinstance(record, TopicRecord)]


def take_refused(
    decisions: deque[Decision], failed: Mapping[bytes, BaseException]
) -> list[tuple[Decision, BaseException]]:
    """Remove and return the decisions about these topics, each with its error."""
    refused: list[tuple[Decision, BaseException]] = []
    count = len(decisions)
    for decision in list(decisions):
        # A decision about a topic rests on the one that creates it, which fails too.
        topic_ids = {*decision.directories.values(), *map(topic_of, decision.records)}
        found = next((t for t in topic_ids if t is not None and t in failed), None)
        if found is not None:
            decisions.remove(decision)
            refused.append((decision, failed[found]))
    assert len(decisions) + len(refused) == count
    return refused


def outcome_unknown(error: BaseException) -> OutcomeUnknown:
    """Return the error for a proposal that may be on some disk, here or elsewhere."""
    reason = error.message if isinstance(error, QuiverlogError) else why(error)
    return OutcomeUnknown(f"the decision was interrupted after it was proposed: {reason}")


def why(error: BaseException) -> str:
    return (isinstance(error, OSError) and error.strerror) or str(error) or type(error).__name__
