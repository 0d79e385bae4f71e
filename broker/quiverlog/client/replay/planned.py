"""The rows of a micro-batch by its checkpoint, and which of them the cluster no longer has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from quiverlog.errors import InvalidArgument, error_from_code
from quiverlog.types import EARLIEST, LATEST, NO_EPOCH, TopicPartition

from .checkpoint import Checkpoint, LoggedBatch
from .stream_offsets import Position, SourceOffset, begin_positions

if TYPE_CHECKING:
    from quiverlog.client.base.results import ClusterMetadata, OffsetAndEpoch

__all__ = ["GoneRows", "PlannedRange", "ReplayClient", "look", "planned_ranges", "topics_left"]


_DELETED: Final = "went with their topic, which was deleted"
_NOT_KEPT: Final = "are no longer kept"
_TRUNCATED: Final = "were truncated after they were read"


class PlannedRange(NamedTuple):
    """Rows [start, end) of a partition. `start` None: the first row that the partition had."""

    topic: str
    topic_id: bytes
    partition: int
    start: Position | None
    end: Position

    @property
    def where(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)


class ReplayClient(Protocol):
    """The part of a client that is used here, which lies below its class."""

    def metadata(self, topics: Sequence[str] | None = None) -> ClusterMetadata: ...

    def offsets_with_epochs(
        self, at: Mapping[TopicPartition, int], *, topic_ids: Mapping[str, bytes] | None = None
    ) -> tuple[int, dict[TopicPartition, OffsetAndEpoch]]: ...

    def epoch_end_offsets(
        self,
        epochs: Mapping[TopicPartition, int],
        *,
        topic_ids: Mapping[str, bytes] | None = None,
    ) -> dict[TopicPartition, OffsetAndEpoch]: ...

    def read(
        self,
        topic: str,
        *,
        columns: Sequence[str] | None = None,
        start: Any = "earliest",
        end: Any = "latest",
        partitions: Sequence[int] | None = None,
        progress: Any = None,
    ) -> Any:
        """Read a topic: a `Reading`."""


class GoneRows(NamedTuple):
    """Rows [start, end) of the micro-batch that cannot be read again, and why."""

    topic: str
    partition: int
    start: int
    end: int
    why: str

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}: rows [{self.start}, {self.end}) {self.why}"


def planned_ranges(
    checkpoint: Checkpoint, number: int, source: str | None
) -> tuple[LoggedBatch, list[PlannedRange]]:
    """Return what micro-batch `number` has read from a source; empty ranges are left out.

    Args:
        source: as the checkpoint names it ("0", "1"); None: the only one of quiverlog.

    Raises:
        InvalidArgument: the checkpoint does not have it, or not where it began; the source is not
            there, or several are.
    """
    batch = checkpoint.batch(number)
    name = _source(checkpoint, batch, source)
    end = batch.ends[name]
    start = SourceOffset({}, is_start=True)
    if number:
        if number - 1 not in checkpoint.numbers:
            raise InvalidArgument(
                f"micro-batch {number} begins where {number - 1} ended, whose offsets Spark has"
                f" deleted: the first that can be read again is {number + 1}."
            )
        start = checkpoint.batch(number - 1).ends.get(name) or start
    assert end is not None
    found = []
    for (topic, partition), first in begin_positions(start, end).items():
        positions = end.topics[topic]
        last = positions.partitions[partition]
        if first is None or first.offset < last.offset:
            topic_id = bytes.fromhex(positions.topic_id)
            found.append(PlannedRange(topic, topic_id, partition, first, last))
    return batch, found


def _source(checkpoint: Checkpoint, batch: LoggedBatch, wanted: str | None) -> str:
    sources = batch.sources
    if wanted is None and len(sources) == 1:
        return sources[0]
    if wanted in sources:
        return str(wanted)
    there = ", ".join(sources) or "none"
    what = "has several sources of quiverlog" if wanted is None and sources else "has no such one"
    if not sources:
        what = "has no source of quiverlog"
    raise InvalidArgument(
        f"micro-batch {batch.number} of {checkpoint.location!r} {what}: choose `source` of {there}."
    )


def look(
    client: ReplayClient, ranges: list[PlannedRange]
) -> tuple[dict[TopicPartition, tuple[int, int]], list[GoneRows]]:
    """Ask the leaders which of these rows they have.

    Returns:
        What can be read, without empty ranges; and what cannot.
    """
    ids = {one.topic: one.topic_id for one in ranges}
    there = {one.where: one for one in ranges if one.topic in topics_left(client, ids)}
    gone = [
        _gone(one, 0 if one.start is None else one.start.offset, one.end.offset, _DELETED)
        for one in ranges
        if one.where not in there
    ]
    if not there:
        return {}, gone
    ids = {one.topic: one.topic_id for one in there.values()}
    firsts = _offsets(client.offsets_with_epochs(dict.fromkeys(there, EARLIEST), topic_ids=ids)[1])
    ends = _offsets(client.offsets_with_epochs(dict.fromkeys(there, LATEST), topic_ids=ids)[1])
    epochs = {where: one.end.epoch for where, one in there.items() if one.end.epoch != NO_EPOCH}
    if epochs:
        # Where the epoch of the batch's last row ended: what lies above replaced its rows.
        replaced = _offsets(client.epoch_end_offsets(epochs, topic_ids=ids))
        ends |= {where: min(ends[where], at) for where, at in replaced.items() if at >= 0}
    left = {}
    for where, one in there.items():
        first = firsts[where] if one.start is None else one.start.offset
        start, end = max(first, firsts[where]), min(one.end.offset, ends[where])
        if start > first:
            gone.append(_gone(one, first, min(start, one.end.offset), _NOT_KEPT))
        if end < one.end.offset:
            gone.append(_gone(one, max(end, start), one.end.offset, _TRUNCATED))
        if start < end:
            left[where] = (start, end)
    return left, [one for one in gone if one.start < one.end]


def _gone(one: PlannedRange, start: int, end: int, why: str) -> GoneRows:
    return GoneRows(one.topic, one.partition, start, end, why)


def topics_left(client: ReplayClient, ids: Mapping[str, bytes]) -> set[str]:
    """Return the names that are still those topics'."""
    known = client.metadata().topics
    return {name for name, one in ids.items() if name in known and known[name].topic_id == one}


def _offsets(found: Mapping[TopicPartition, OffsetAndEpoch]) -> dict[TopicPartition, int]:
    for where, one in found.items():
        if one.error_code:
            raise error_from_code(one.error_code, f"{where}: {one.error_message}")
    return {where: one.offset for where, one in found.items()}
