"""From the bytes of a fetch to record batches in the reader's schema; a consumer's batches.

Batches are sliced at both ends of the asked range. Decoded columns point into the body. Invariants:

- Batches cover the rows from the asked offset on, without gap or repetition; others are refused, so
  no row is skipped silently.
- A damaged batch is a CorruptBatch that names topic, partition and offset; it names an end only if
  something confirms the number of rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from quiverlog.batch.codec import check_crc, decode_batch, split_batches
from quiverlog.batch.header import MAGIC, BatchHeader
from quiverlog.batch.ipc_metadata import claimed_size
from quiverlog.client.base.arguments import ROWS_SHOWN_MAX, cells, html_table, names
from quiverlog.client.base.commands import Operation
from quiverlog.client.base.results import FetchedPartition
from quiverlog.client.cluster.answers import OFFSET_MAX, named
from quiverlog.client.cluster.replica_choice import LEADER
from quiverlog.client.cluster.routing import Cluster
from quiverlog.errors import (
    CorruptBatch,
    CorruptLog,
    InvalidResponse,
    LogTruncated,
    OffsetOutOfRange,
    QuiverlogError,
    UnknownTopic,
    UnknownTopicId,
    error_from_code,
)
from quiverlog.limits import BATCH_HEADER_BYTES, BATCH_ROWS_MAX
from quiverlog.types import NO_EPOCH

if TYPE_CHECKING:
    import pyarrow as pa

    from quiverlog.batch.schema import SchemaHistory

__all__ = ["BatchDecoder", "ConsumerBatch", "StoredBatch", "stored_batches"]


@dataclass(frozen=True, slots=True)
class ConsumerBatch:
    """Rows of one partition that were stored together, or a slice of them.

    The row `data[i]` has the offset `base_offset + i`.
    """

    data: pa.RecordBatch
    topic: str
    partition: int
    base_offset: int
    leader_epoch: int
    timestamp_us: int
    """Microseconds since 1970, UTC: when the producer closed the batch."""

    @property
    def next_offset(self) -> int:
        """The offset after this batch's last row."""
        return self.base_offset + int(self.data.num_rows)

    @property
    def timestamps(self) -> pa.Array:
        """Return the rows' timestamps, `timestamp[us, UTC]`; equal within a batch."""
        import pyarrow as pa

        from quiverlog.batch.numbers import integer

        moment = integer(self.timestamp_us, pa.timestamp("us", tz="UTC"))
        return pa.repeat(moment, self.data.num_rows)

    @property
    def offsets(self) -> pa.Array:
        """Return the rows' offsets, int64."""
        import pyarrow as pa

        return pa.arange(self.base_offset, self.next_offset)

    def to_pylist(self) -> list[dict[str, Any]]:
        """Return the rows as dictionaries.

        Raises:
            UnsupportedValue: Python has no such value (a year above 9999, nanoseconds of a day);
                `data` has it.
        """
        from .python_values import python_rows

        return python_rows(self.data, f"{self.topic}-{self.partition}", self.base_offset)

    def __len__(self) -> int:
        return int(self.data.num_rows)

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({self.topic}-{self.partition}, offsets "
            f"[{self.base_offset}, {self.next_offset}), columns {names(self.data.schema.names)})"
        )

    def _repr_html_(self) -> str:
        shown = self.data.slice(0, ROWS_SHOWN_MAX)
        columns = [cells(column) for column in shown.columns]
        offsets = range(self.base_offset, self.base_offset + shown.num_rows)
        return html_table(
            repr(self),
            ("offset", *self.data.schema.names),
            [(offset, *(c[i] for c in columns)) for i, offset in enumerate(offsets)],
            left_out=len(self) - int(shown.num_rows),
        )

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Return the rows as Arrow's C stream, for polars, duckdb, pandas, pyarrow."""
        import pyarrow as pa

        reader = pa.RecordBatchReader.from_batches(self.data.schema, [self.data])
        return reader.__arrow_c_stream__(requested_schema)


class StoredBatch(NamedTuple):
    """A stored batch, and the part of it that was asked for.

    `follower`: the node id of its sender, or LEADER. `is_followed`: another batch begins where this
    one ends. `damage`: why it cannot be decoded.
    """

    partition: int
    header: BatchHeader
    view: memoryview
    start: int
    end: int
    follower: int = LEADER
    is_followed: bool = False
    damage: str = ""

    @property
    def next_offset(self) -> int:
        return min(self.header.next_offset, self.end)


def stored_batches(
    fetched: FetchedPartition,
    topic: str,
    start: int,
    end: int | None,
    *,
    follower: int = LEADER,
) -> list[StoredBatch]:
    """Return the batches of one partition that hold rows in [start, end).

    Raises:
        CorruptBatch: the bytes are not whole batches, and none precedes them.
        InvalidResponse: the first batch does not hold row `start`, or one does not follow another.
    """
    assert start >= 0
    found: list[StoredBatch] = []
    expected = start
    try:
        for header, view in split_batches(fetched.body):
            if found:
                found[-1] = _followed(found[-1], header.base_offset, end)
                expected = found[-1].header.next_offset
            if end is not None and header.base_offset >= end:
                break
            _check_batch(header, view, fetched, expected, is_first=not found)
            damage = ""
            if not 0 <= header.leader_epoch <= fetched.leader_epoch:
                # No checksum covers it, and a later fetch must not send an epoch that never was.
                damage = f"leader epoch {header.leader_epoch} is not one of its leaders'."
                header = header._replace(leader_epoch=NO_EPOCH)
            first = max(expected, header.base_offset)
            found.append(
                StoredBatch(
                    fetched.partition,
                    header,
                    view,
                    first,
                    _cut(header, end),
                    follower,
                    False,
                    damage,
                )
            )
            expected = header.next_offset
    except CorruptBatch as error:
        if not found:  # Else the batches before it are returned; the next answer begins with it.
            error.details.setdefault("offset", expected)
            named(error, topic, fetched.partition)
            raise
    except QuiverlogError as error:
        error.details.setdefault("offset", expected)
        named(error, topic, fetched.partition)
        raise
    return found


def _cut(header: BatchHeader, end: int | None) -> int:
    return header.next_offset if end is None else min(end, header.next_offset)


def _followed(before: StoredBatch, base_offset: int, end: int | None) -> StoredBatch:
    """Mark the batch before row `base_offset` as followed."""
    # A row count that contradicts that offset is damaged where its checksum is wrong.
    header = before.header
    rows = base_offset - header.base_offset
    if rows != header.row_count:
        if base_offset <= before.start or rows > BATCH_ROWS_MAX or _is_whole(before.view, header):
            return before
        header = header._replace(row_count=rows)
    return before._replace(header=header, end=_cut(header, end), is_followed=True)


def _is_whole(view: memoryview, header: BatchHeader) -> bool:
    try:
        check_crc(view, header)
    except CorruptBatch:
        return False
    return True


def _check_batch(
    header: BatchHeader,
    view: memoryview,
    fetched: FetchedPartition,
    expected: int,
    *,
    is_first: bool,
) -> None:
    """Raises CorruptBatch: it is damaged; InvalidResponse: it is whole, and another is expected."""
    if header.magic != MAGIC or not 0 < header.row_count <= BATCH_ROWS_MAX:
        raise CorruptBatch(
            f"what came at offset {expected} is no batch of this format (magic {header.magic}, "
            f"{header.row_count} rows)."
        )
    base, after = header.base_offset, header.next_offset
    fits = base <= expected < after if is_first else base == expected
    is_shown = after <= min(fetched.high_watermark, OFFSET_MAX)
    if (base < 0 or not fits or not is_shown) and not _is_whole(view, header):
        raise CorruptBatch(f"the batch that came at offset {expected} is damaged.")
    if base < 0 or not fits:
        raise InvalidResponse(f"rows [{base}, {after}) came where row {expected} was to come.")
    if not is_shown:
        raise InvalidResponse(
            f"rows [{base}, {after}) came from above the high watermark {fetched.high_watermark}."
        )


class BatchDecoder:
    """Decodes the batches of one topic; without `reader_schema` to the newest that is cached."""

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
        """Fetch the schema history; return the schema of the rows. `schema_id`: the topic's newest,
        if known."""
        history = yield from self._cluster.history(self._topic_id, self._topic, needed_id=schema_id)
        if not set(self._columns or ()).issubset(history.current.names):
            # The column may be newer than the cached history.
            history = yield from self._cluster.history(self._topic_id, self._topic, fresh=True)
        self._history = history
        return self.schema

    @property
    def schema(self) -> pa.Schema:
        if self._reader_schema is not None:
            return self._reader_schema
        assert self._history is not None, "prepare comes first"
        if self._columns is not None:
            return self._history.projected(self._columns)
        return self._history.current

    def decode(self, stored: StoredBatch) -> Operation[ConsumerBatch]:
        """Raises CorruptBatch, which names `offset` and, if confirmed, `next_offset`."""
        header = stored.header
        if stored.damage:
            raise self._corrupt(stored, stored.damage)
        history = self._history
        if history is None or header.schema_id not in history:
            self._check_crc(stored)
            history = yield from self._newer_history(header.schema_id)
        data = self._decoded(stored, history)
        return ConsumerBatch(
            data=data,
            topic=self._topic,
            partition=stored.partition,
            base_offset=stored.start,
            leader_epoch=header.leader_epoch,
            timestamp_us=header.timestamp_max_us,
        )

    def _check_crc(self, stored: StoredBatch) -> None:
        # Before its schema id is asked for, which no broker may have.
        if self._verify_crc:
            try:
                check_crc(stored.view, stored.header)
            except CorruptBatch as error:
                raise self._corrupt(stored, error.message) from error

    def _decoded(self, stored: StoredBatch, history: SchemaHistory) -> pa.RecordBatch:
        try:
            return decode_batch(
                stored.view,
                stored.header,
                history,
                self._columns,
                verify_crc=self._verify_crc,
                reader_schema=self._reader_schema,
                start=stored.start - stored.header.base_offset,
                stop=stored.end - stored.header.base_offset,
            )
        except CorruptBatch as error:
            if "row" not in error.details:
                raise self._corrupt(stored, error.message) from error
            raise self._wrong_value(stored, error) from error
        except QuiverlogError as error:
            named(error, self._topic, stored.partition)
            raise
        except Exception as error:  # Arrow's own errors, of any type
            raise self._corrupt(stored, f"{type(error).__name__}: {error}") from error

    def _wrong_value(self, stored: StoredBatch, error: CorruptBatch) -> CorruptBatch:
        column, row = error.details["column"], error.details["row"]
        offset = stored.header.base_offset + row
        why = error.message.replace(f"of row {row}", f"at offset {offset}", 1)
        found = self._corrupt(stored, f"{why} The other columns can be read (`columns`).")
        found.details.update(column=column, row_offset=offset)
        return found

    def _corrupt(self, stored: StoredBatch, why: str) -> CorruptBatch:
        base, after = stored.header.base_offset, stored.header.next_offset
        error = CorruptBatch(
            f"{self._topic}-{stored.partition}: the stored batch with the rows [{base}, {after}) "
            f"cannot be decoded: {why}",
            topic=self._topic,
            partition=stored.partition,
            offset=base,
            next_offset=after,
        )
        if not _end_is_known(stored):
            # The row count of a damaged header might skip good rows.
            del error.details["next_offset"]
            error.message += (
                " Nothing confirms how many rows it has, so no reader can step over it."
            )
        return error

    def _newer_history(self, needed_id: int) -> Operation[SchemaHistory]:
        def attempt() -> Operation[SchemaHistory]:
            history = yield from self._cluster.history(
                self._topic_id, self._topic, needed_id=needed_id
            )
            history.schema(needed_id)  # raises the retriable UnknownSchema
            return history

        try:
            self._history = yield from self._cluster.retrying(attempt)
        except QuiverlogError as error:
            named(error, self._topic)
            raise
        return self._history


def _end_is_known(stored: StoredBatch) -> bool:
    # The header's row count has a good checksum, or matches the rows.
    header = stored.header
    if stored.is_followed or _is_whole(stored.view, header):
        return True
    claimed = claimed_size(stored.view[BATCH_HEADER_BYTES:])
    return claimed is not None and claimed[1] == header.row_count


def fetch_error(fetched: FetchedPartition, topic: str, offset: int) -> QuiverlogError | None:
    """Return a fetched partition's error, with the offsets at which to go on."""
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
    if isinstance(error, CorruptLog) and fetched.damage_end_offset > offset:
        first = max(offset, fetched.damage_start_offset)
        return CorruptLog(
            f"{where}: the rows [{first}, {fetched.damage_end_offset}) are damaged in the log.",
            topic=topic,
            partition=fetched.partition,
            offset=first,
            next_offset=fetched.damage_end_offset,
        )
    if isinstance(error, (UnknownTopic, UnknownTopicId)):
        return UnknownTopicId(f"Topic {topic!r} is gone.", topic=topic)
    return named(error, topic, fetched.partition)
