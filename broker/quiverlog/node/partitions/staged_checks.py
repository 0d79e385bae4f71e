"""Checking rows that PRODUCE stages for transactions in `__staged`.

A row carries a batch of another topic, which is published as it is: the rules are that topic's, as
if the batch came by PRODUCE itself. One bad row refuses its whole entry, and is named.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Literal

import pyarrow as pa

from quiverlog.batch.header import BatchHeader
from quiverlog.batch.validate import CheckedBatch, check_batch, check_rows
from quiverlog.core.controller.internal_topics import INTERNAL_TOPICS, STAGED, refuse_internal
from quiverlog.core.controller.topic_image import TopicImage
from quiverlog.core.transactions.staged_rows import KIND_BATCH, StagedRow
from quiverlog.errors import (
    BatchTooLarge,
    CorruptBatch,
    InvalidRequest,
    QuiverlogError,
    UnknownPartition,
    UnknownTopicId,
)
from quiverlog.limits import (
    BATCH_DECODED_BYTES_MAX,
    BATCH_ROWS_MAX,
    PRODUCE_BATCHES_MAX,
    TRANSACTION_ATTEMPT_BYTES,
)
from quiverlog.wire.transaction_messages import check_epoch_and_sequence, check_transactional_id

__all__ = ["STAGED_SCHEMAS", "InnerChecks", "named_row"]

_SCHEMA: Final = INTERNAL_TOPICS[STAGED].schema
# Rows with nulls pass as a batch and are refused here: by their numbers.
STAGED_SCHEMAS: Final[Mapping[int, pa.Schema]] = {
    1: pa.schema([field.with_nullable(True) for field in _SCHEMA])
}
_Code = Literal["b", "i", "q"]
_SIZES: Final[dict[_Code, int]] = {"b": 1, "i": 4, "q": 8}
_CODES: Final[dict[pa.DataType, _Code]] = {pa.int8(): "b", pa.int32(): "i", pa.int64(): "q"}
_FORMATS: Final = tuple(_CODES.get(field.type) for field in _SCHEMA)
"""Of each column; None: its values have any length."""


class InnerChecks:
    """The batches in the rows of one entry.

    Args:
        topics: by id; the image's own, so a job sees those of its moment.
    """

    __slots__ = (
        "_checked", "_topics", "decoded_bytes", "named", "row_count", "rows", "rows_cost"
    )  # fmt: skip

    def __init__(self, topics: Mapping[bytes, TopicImage]) -> None:
        self._topics = topics
        self._checked: list[tuple[CheckedBatch, bool]] = []
        self.rows: list[StagedRow] = []
        self.named: dict[tuple[str, bytes], int] = {}
        """The transactional ids and topics of the rows, up to a bad one, each with its first row.
        """
        self.row_count = self.decoded_bytes = self.rows_cost = 0

    def structure(self, outer: Sequence[CheckedBatch], now_wall_us: int) -> None:
        """Check all but the rows of the batches. Raises what PRODUCE answers, with the row."""
        assert not self.rows, "each check of an entry begins with rules of its own"
        count = sum(batch.header.row_count for batch in outer)
        assert count <= PRODUCE_BATCHES_MAX, "the request was weighed by its headers"
        for batch in outer:
            if batch.header.is_compressed:
                # They are published, and their index is made, from views of the log.
                raise InvalidRequest("staged rows are not compressed; the batches in them may be.")
            for values in _rows_of(batch, len(self.rows)):
                try:
                    self._take(now_wall_us, *values)
                except QuiverlogError as error:
                    raise named_row(error, len(self.rows)) from None
        if count > 1 and self.row_count > BATCH_ROWS_MAX:
            raise BatchTooLarge(
                f"an entry stages {self.row_count} rows, allowed are {BATCH_ROWS_MAX}."
            )
        if self.decoded_bytes > BATCH_DECODED_BYTES_MAX:
            raise BatchTooLarge(
                f"an entry claims to stage {self.decoded_bytes} bytes, allowed are"
                f" {BATCH_DECODED_BYTES_MAX}."
            )

    def check_rows(self) -> None:
        for number, (batch, full) in enumerate(self._checked):
            try:
                check_rows(batch, full=full)
            except QuiverlogError as error:
                raise named_row(error, number) from None

    def _take(
        self,
        now_wall_us: int,
        kind: int,
        transactional_id: memoryview,
        epoch: int,
        sequence: int,
        attempt: memoryview,
        topic_id: memoryview,
        partition: int,
        row_count: int,
        view: memoryview,
    ) -> None:
        if kind != KIND_BATCH:
            raise InvalidRequest(f"kind {kind}: clients stage kind {KIND_BATCH} only.")
        name = _text(transactional_id)
        check_transactional_id(name)
        check_epoch_and_sequence(epoch, sequence)
        if len(attempt) != TRANSACTION_ATTEMPT_BYTES:
            raise InvalidRequest(
                f"an attempt has {TRANSACTION_ATTEMPT_BYTES} bytes, this one {len(attempt)}."
            )
        self.named.setdefault((name, bytes(topic_id)), len(self.rows))
        topic = self._target(bytes(topic_id), partition)
        config = topic.config
        batch = check_batch(
            view,
            schemas=topic.schemas,
            bytes_max=config.batch_bytes_max,
            full=config.validate_full,
            now_wall_us=now_wall_us,
            behind_ms_max=config.behind_ms_max,
            ahead_ms_max=config.ahead_ms_max,
        )
        _check_unstamped(batch.header)
        if batch.header.row_count != row_count:
            raise CorruptBatch(
                f"`row_count` is {row_count}, the batch has {batch.header.row_count} rows."
            )
        self._checked.append((batch, config.validate_full))
        self.row_count += row_count
        self.decoded_bytes += batch.metadata.decoded_bytes
        self.rows_cost += batch.rows_cost
        self.rows.append(
            StagedRow(
                name,
                epoch,
                sequence,
                bytes(attempt),
                topic.topic_id,
                partition,
                row_count,
                len(view),
            )
        )

    def _target(self, topic_id: bytes, partition: int) -> TopicImage:
        topic = self._topics.get(topic_id)
        if topic is None:
            raise UnknownTopicId(f"there is no topic with id {topic_id[:16].hex()}.")
        refuse_internal(topic.name, "no transaction writes it")
        if not 0 <= partition < len(topic.partitions):
            raise UnknownPartition(
                f"topic {topic.name!r} has partitions 0 to {len(topic.partitions) - 1},"
                f" not {partition}."
            )
        return topic


def named_row(error: QuiverlogError, row: int) -> QuiverlogError:
    return type(error)(f"staged row {row}: {error.message}", **{**error.details, "row": row})


def _check_unstamped(header: BatchHeader) -> None:
    # What publishes it writes its own numbers there, and finds none of another producer.
    stamps = (header.base_offset, header.leader_epoch)
    producer = (header.producer_id, header.producer_epoch, header.base_sequence)
    if stamps != (0, 0) or producer != (-1, -1, -1):
        raise CorruptBatch(
            f"offset and leader epoch of a staged batch are 0, not {stamps}; producer id, epoch and"
            f" sequence -1, not {producer}."
        )


# --- columns ------------------------------------------------------------------------------------
def _rows_of(batch: CheckedBatch, first_row: int) -> Iterator[tuple[Any, ...]]:
    """The values of each row, in the order of the columns; texts and binaries are views.

    From the buffers: Arrow's arrays and scalars would cost a small transaction ten times as much.
    """
    check_rows(batch, full=False)  # Offsets and lengths are good from here on.
    metadata, count = batch.metadata, batch.header.row_count
    assert len(metadata.nodes) == 2 * len(_FORMATS)
    pieces = _pieces(batch.message[metadata.body_at :], metadata.buffers)
    columns: list[list[Any]] = []
    for number, code in enumerate(_FORMATS):
        valid = next(pieces)
        if metadata.nodes[2 * number + 1]:
            row = next(row for row in range(count) if not valid[row >> 3] >> (row & 7) & 1)
            name = _SCHEMA.names[number]
            raise named_row(InvalidRequest(f"{name!r} is null."), first_row + row)
        if code is not None:
            columns.append(_numbers(next(pieces), code, count))
        else:
            ends, data = _numbers(next(pieces), "i", count + 1), next(pieces)
            columns.append([data[ends[row] : ends[row + 1]] for row in range(count)])
    return zip(*columns, strict=True)


def _pieces(body: memoryview, buffers: tuple[int, ...]) -> Iterator[memoryview]:
    for offset, length in zip(buffers[::2], buffers[1::2], strict=True):
        yield body[offset : offset + length]


def _numbers(data: memoryview, code: _Code, count: int) -> list[int]:
    return data[: count * _SIZES[code]].cast(code).tolist()


def _text(value: memoryview) -> str:
    try:
        return str(value, "utf-8")
    except UnicodeDecodeError:
        raise InvalidRequest("its transactional id is no UTF-8.") from None
