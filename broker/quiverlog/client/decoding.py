"""From the bytes of a fetch to record batches in the reader's schema.

Owns the cutting of a body into whole batches, the slicing at both ends of the range that was asked
for (offsets may lie inside a batch, whole batches travel) and the asking for a schema that is newer
than what the client knows. Decoded columns point into the body: nothing is copied.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from quiverlog.batch.codec import decode_batch, split_batches
from quiverlog.batch.header import FLAG_CONTROL, BatchHeader
from quiverlog.errors import (
    CorruptBatch,
    LogTruncated,
    OffsetOutOfRange,
    QuiverlogError,
    UnknownTopic,
    UnknownTopicId,
    error_from_code,
)

from .commands import Operation
from .results import ConsumerBatch, FetchedPartition
from .routing import Cluster

if TYPE_CHECKING:
    import pyarrow as pa

    from quiverlog.batch.schema import SchemaHistory

__all__ = ["BatchDecoder", "StoredBatch", "stored_batches"]


class StoredBatch(NamedTuple):
    """A batch as it came, and the part of it that was asked for."""

    partition: int
    header: BatchHeader
    view: memoryview
    start: int
    end: int

    @property
    def next_offset(self) -> int:
        return min(self.header.next_offset, self.end)


def stored_batches(fetched: FetchedPartition, start: int, end: int | None) -> list[StoredBatch]:
    """The batches of one partition that hold rows in [start, end).

    Raises:
        CorruptBatch: the bytes are not whole batches, or not in order.
    """
    found: list[StoredBatch] = []
    expected = start
    for header, view in split_batches(fetched.body):
        if header.next_offset <= expected:
            if found or header.row_count == 0:
                raise CorruptBatch(
                    f"Partition {fetched.partition}: offset {header.base_offset} came after "
                    f"{expected}."
                )
            continue
        if end is not None and header.base_offset >= end:
            break
        upper = header.next_offset if end is None else min(end, header.next_offset)
        found.append(
            StoredBatch(fetched.partition, header, view, max(expected, header.base_offset), upper)
        )
        expected = header.next_offset
    return found


class BatchDecoder:
    """Decodes the batches of one topic.

    Args:
        columns: only these, in this order; None takes all.
        reader_schema: what rows shall look like; None takes the newest schema that is known.
        verify_crc: check each batch's checksum.
    """

    def __init__(
        self,
        cluster: Cluster,
        topic: str,
        topic_id: bytes,
        *,
        columns: Sequence[str] | None = None,
        reader_schema: pa.Schema | None = None,
        verify_crc: bool = True,
    ) -> None:
        self._cluster = cluster
        self._topic = topic
        self._topic_id = topic_id
        self._columns = None if columns is None else list(columns)
        self._reader_schema = reader_schema
        self._verify_crc = verify_crc
        self._history: SchemaHistory | None = None

    def prepare(self, schema_id: int = -1) -> Operation[pa.Schema]:
        """Fetch the schema history; returns what rows will look like.

        Args:
            schema_id: the topic's newest, if it is known.

        Raises:
            InvalidArgument: a column that the topic does not have.
        """
        history = yield from self._cluster.history(self._topic_id, needed_id=schema_id)
        if not set(self._columns or ()).issubset(history.current.names):
            # The column may be younger than what is remembered here.
            history = yield from self._cluster.history(self._topic_id, fresh=True)
        self._history = history
        if self._reader_schema is not None:
            return self._reader_schema
        if self._columns is not None:
            return history.projected(self._columns)
        return history.current

    def decode(self, stored: StoredBatch) -> Operation[ConsumerBatch | None]:
        """The rows asked for; None where there are none for a reader (a control batch)."""
        header = stored.header
        if header.flags & FLAG_CONTROL:
            return None
        history = self._history
        if history is None or header.schema_id not in history:
            history = yield from self._newer_history(header.schema_id)
        data = decode_batch(
            stored.view,
            header,
            history,
            self._columns,
            verify_crc=self._verify_crc,
            reader_schema=self._reader_schema,
        )
        rows = stored.end - stored.start
        if rows != header.row_count:
            data = data.slice(stored.start - header.base_offset, rows)
        return ConsumerBatch(
            data=data,
            topic=self._topic,
            partition=stored.partition,
            base_offset=stored.start,
            leader_epoch=header.leader_epoch,
            timestamp_us=header.timestamp_max_us,
        )

    def _newer_history(self, needed_id: int) -> Operation[SchemaHistory]:
        def attempt() -> Operation[SchemaHistory]:
            history = yield from self._cluster.history(self._topic_id, needed_id=needed_id)
            history.schema(needed_id)  # raises the retriable UnknownSchema
            return history

        self._history = yield from self._cluster.retrying(attempt)
        return self._history


def fetch_error(fetched: FetchedPartition, topic: str, offset: int) -> QuiverlogError | None:
    """The error of one partition of a fetch, with all that a person needs to go on."""
    where = f"{topic}-{fetched.partition}"
    if fetched.diverging_end_offset >= 0:
        return LogTruncated(
            f"{where} was read up to offset {offset}, but its log now diverges from offset "
            f"{fetched.diverging_end_offset} on.",
            topic=topic,
            partition=fetched.partition,
            offset=offset,
            diverging_epoch=fetched.diverging_epoch,
            diverging_end_offset=fetched.diverging_end_offset,
        )
    if not fetched.error_code:
        return None
    error = error_from_code(fetched.error_code, fetched.error_message)
    if isinstance(error, OffsetOutOfRange):
        low, high = fetched.log_start_offset, fetched.high_watermark
        return OffsetOutOfRange(
            f"Offset {offset} of {where} is out of range: the valid offsets are {low} to {high}.",
            topic=topic,
            partition=fetched.partition,
            offset=offset,
            log_start_offset=low,
            high_watermark=high,
        )
    if isinstance(error, (UnknownTopic, UnknownTopicId)):
        return UnknownTopicId(f"Topic {topic!r} is gone.", topic=topic)
    return error
