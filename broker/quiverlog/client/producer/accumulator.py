"""From rows to encoded batches. No I/O, no thread, no clock.

    dicts -> converted together -> open batch of a partition -> closed: encoded and numbered

An open batch is closed when it is full, when it has lingered, or on demand. Rows without a key go
to one partition until its batch closes, then to the next ("sticky"). Rows of a partition keep their
order, but for dicts sent with and without a partition; a dict that does not fit the schema, or a
row that does not fit a batch, fails alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from quiverlog.batch.codec import encode_batch
from quiverlog.batch.numbers import integers
from quiverlog.client.base.arguments import partitions_of
from quiverlog.client.base.results import TopicInfo
from quiverlog.errors import (
    BatchTooLarge,
    InvalidArgument,
    QuiverlogError,
    SchemaMismatch,
    UnknownPartition,
)
from quiverlog.types import Now

from .identity import Numbering
from .types import Delivery, EncodedBatch, ProducerOptions, Receiver, RowsDelivery

if TYPE_CHECKING:
    from quiverlog.client.rows.convert import Converter

__all__ = ["Accumulator"]

# Of a dict, until a batch has been converted.
ROW_BYTES_GUESS = 256


@dataclass(slots=True)
class OpenBatch:
    opened_us: int
    pieces: list[tuple[pa.RecordBatch, Receiver]] = field(default_factory=list)
    row_count: int = 0
    byte_count: int = 0


@dataclass(slots=True)
class PendingRows:
    """Rows sent one by one, not yet converted."""

    opened_us: int
    rows: list[Mapping[str, Any]] = field(default_factory=list)
    deliveries: list[Delivery] = field(default_factory=list)
    # Estimated; counts against the buffer.
    byte_count: int = 0


class Accumulator:
    """The open batches of one producer.

    Args:
        closed: receives a partition's encoded batch.
        failed: receives rows that cannot become a batch.
    """

    def __init__(
        self,
        topic: TopicInfo,
        converter: Converter,
        schema_id: int,
        options: ProducerOptions,
        *,
        numbering: Callable[[int], Numbering],
        closed: Callable[[int, EncodedBatch], None],
        failed: Callable[[Receiver, QuiverlogError], None],
        jitter: Callable[[], float],
    ) -> None:
        self.topic = topic
        self.options = options
        # Of rows outside closed batches.
        self.buffered_bytes = 0
        self._converter = converter
        self._schema_id = schema_id
        self._numbering = numbering
        self._closed = closed
        self._failed = failed
        self._open: dict[int, OpenBatch] = {}
        self._pending: dict[int | None, PendingRows] = {}
        # Producers begin with different partitions.
        self._sticky = int(jitter() * len(topic.partitions))
        self._row_bytes = ROW_BYTES_GUESS
        self._encoded_bytes_max = topic.batch_bytes_max or options.batch_bytes * 2
        self._batch_bytes = min(options.batch_bytes, max(1, self._encoded_bytes_max * 7 // 8))

    def split(
        self, batch: pa.RecordBatch, partition: int | None
    ) -> Iterator[tuple[int | None, pa.RecordBatch]]:
        parts: Sequence[tuple[int | None, pa.RecordBatch]] = [(partition, batch)]
        if partition is None and self.topic.key_columns:
            # Imports pyarrow.compute, which takes as long as pyarrow itself.
            from quiverlog.batch.partitioner import partition_rows

            keys, count = self.topic.key_columns, len(self.topic.partitions)
            parts = partition_rows(batch, list(keys), count)
        for target, rows in parts:
            step = self._rows_per_batch(rows)
            for start in range(0, rows.num_rows, step):
                yield target, rows.slice(start, step) if step < rows.num_rows else rows

    def add(
        self, partition: int | None, batch: pa.RecordBatch, delivery: Delivery, now: Now
    ) -> bool:
        """Add rows of one partition (None: the sticky one). True: poll now."""
        if self._pending:
            self._convert_pending(now)  # keeps the order of sends
        return self._add(partition, batch, delivery, now)

    def add_row(
        self, partition: int | None, row: Mapping[str, Any], delivery: Delivery, now: Now
    ) -> bool:
        """Add a row, to be converted with its neighbours. True: poll now."""
        pending = self._pending.get(partition)
        if pending is None:
            if partition is not None:
                self.check_partition(partition)
            pending = self._pending[partition] = PendingRows(now.mono_us)
        delivery.add_piece()
        delivery.mark_complete()
        pending.rows.append(row)
        pending.deliveries.append(delivery)
        pending.byte_count += self._row_bytes
        self.buffered_bytes += self._row_bytes
        count = len(pending.rows)
        if count >= self.options.batch_rows or pending.byte_count >= self._batch_bytes:
            self._convert_pending(now)
            return True
        return count == 1

    def check_partition(self, partition: int) -> None:
        if not isinstance(partition, int):
            raise InvalidArgument(f"partition={partition!r} is not a number.")
        if not 0 <= partition < len(self.topic.partitions):
            raise UnknownPartition(
                f"{partitions_of(self.topic.name, len(self.topic.partitions))}; "
                f"{partition} is not one of them."
            )

    def close_all(self, now: Now) -> None:
        self._convert_pending(now)
        for partition in list(self._open):
            self._close(partition, now)
        assert not self._open
        assert not self._pending
        assert self.buffered_bytes == 0

    def close_lingered(self, now: Now) -> None:
        latest_us = now.mono_us - self.options.linger_us
        if any(group.opened_us <= latest_us for group in self._pending.values()):
            self._convert_pending(now)
            latest_us = now.mono_us  # these rows have lingered already
        for partition, opened in list(self._open.items()):
            if opened.opened_us <= latest_us:
                self._close(partition, now)

    def wake_at_us(self) -> int | None:
        opened = [group.opened_us for group in self._pending.values()]
        opened.extend(batch.opened_us for batch in self._open.values())
        return min(opened) + self.options.linger_us if opened else None

    def fail_all(self, error: QuiverlogError) -> None:
        pending, self._pending = self._pending, {}
        for group in pending.values():
            self.buffered_bytes -= group.byte_count
            for delivery in group.deliveries:
                self._failed(delivery, error)
        opened_batches, self._open = self._open, {}
        for opened in opened_batches.values():
            self.buffered_bytes -= opened.byte_count
            for _, receiver in opened.pieces:
                self._failed(receiver, error)
        assert self.buffered_bytes == 0

    def _rows_per_batch(self, batch: pa.RecordBatch) -> int:
        if not batch.num_rows:
            return 1
        by_bytes: int = self._batch_bytes * batch.num_rows // max(1, batch.nbytes)
        return max(1, min(self.options.batch_rows, by_bytes))

    def _add(
        self, partition: int | None, batch: pa.RecordBatch, delivery: Receiver, now: Now
    ) -> bool:
        assert 0 < batch.num_rows <= self.options.batch_rows
        target = self._sticky if partition is None else partition
        size = batch.nbytes
        opened = self._open.get(target)
        has_closed = False
        if opened is not None and (
            opened.row_count + batch.num_rows > self.options.batch_rows
            or opened.byte_count + size > self._batch_bytes
        ):
            self._close(target, now)
            has_closed = True
            target = self._sticky if partition is None else partition
            opened = self._open.get(target)
        if opened is None:
            self.check_partition(target)
            opened = self._open[target] = OpenBatch(now.mono_us)
        delivery.add_piece()
        opened.pieces.append((batch, delivery))
        opened.row_count += batch.num_rows
        opened.byte_count += size
        self.buffered_bytes += size
        is_first = len(opened.pieces) == 1
        if (
            self.options.linger_us == 0
            or opened.row_count >= self.options.batch_rows
            or opened.byte_count >= self._batch_bytes
        ):
            self._close(target, now)
            has_closed = True
        return has_closed or is_first

    def _convert_pending(self, now: Now) -> None:
        pending, self._pending = self._pending, {}
        for partition, group in pending.items():
            assert len(group.rows) == len(group.deliveries)
            self.buffered_bytes -= group.byte_count
            try:
                batch = self._converter.from_rows(group.rows)
            except Exception:  # a caller's rows may raise anything
                self._convert_singly(partition, group, now)
                continue
            assert batch.num_rows == len(group.rows)
            self._row_bytes = max(1, batch.nbytes // len(group.rows))
            self._add_converted(partition, batch, group.deliveries, now)

    def _convert_singly(self, partition: int | None, group: PendingRows, now: Now) -> None:
        for row, delivery in zip(group.rows, group.deliveries, strict=True):
            try:
                batch = self._converter.from_rows([row])
            except SchemaMismatch as error:
                self._failed(delivery, error)
                continue
            except Exception as error:
                why = f"The row cannot be read: {type(error).__name__}: {error}."
                self._failed(delivery, SchemaMismatch(why, topic=self.topic.name))
                continue
            self._add_converted(partition, batch, [delivery], now)

    def _add_converted(
        self,
        partition: int | None,
        batch: pa.RecordBatch,
        deliveries: list[Delivery],
        now: Now,
    ) -> None:
        if partition is None and self.topic.key_columns and len(self.topic.partitions) > 1:
            # Row numbers show each row's partition after the cut.
            numbers = integers(range(batch.num_rows), pa.int32())
            numbered = batch.append_column("\0row", numbers)
            for target, rows in self.split(numbered, None):
                indexes = rows.column(rows.num_columns - 1).to_pylist()
                plain = rows.select(range(rows.num_columns - 1))
                self._add(target, plain, RowsDelivery([deliveries[i] for i in indexes]), now)
            return
        done = 0
        for target, rows in self.split(batch, partition):
            part = RowsDelivery(deliveries[done : done + rows.num_rows])
            done += rows.num_rows
            self._add(target, rows, part, now)
        assert done == batch.num_rows, "each row has its receiver"

    def _close(self, partition: int, now: Now) -> None:
        opened = self._open.pop(partition)
        if partition == self._sticky:
            self._sticky = (self._sticky + 1) % len(self.topic.partitions)
        self.buffered_bytes -= opened.byte_count
        assert self.buffered_bytes >= 0
        self._encode(partition, opened.pieces, now)

    def _encode(
        self, partition: int, pieces: list[tuple[pa.RecordBatch, Receiver]], now: Now
    ) -> None:
        batches = [batch for batch, _ in pieces]
        data = batches[0] if len(batches) == 1 else pa.concat_batches(batches)
        numbering = self._numbering(partition)
        try:
            encoded = encode_batch(
                data,
                schema_id=self._schema_id,
                compression=self.options.compression,
                timestamp_us=now.wall_us,
                producer_id=numbering.identity.producer_id,
                producer_epoch=numbering.identity.producer_epoch,
                base_sequence=numbering.next_sequence,
            )
        except BatchTooLarge:
            self._encode_smaller(partition, pieces, data.nbytes, now)
            return
        if len(encoded) > self._encoded_bytes_max:
            self._encode_smaller(partition, pieces, len(encoded), now)
            return
        identity, sequence = numbering.take(data.num_rows)
        batch = EncodedBatch(
            encoded=encoded,
            row_count=data.num_rows,
            identity=identity,
            sequence=sequence,
            deadline_us=now.mono_us + self.options.delivery_timeout_us,
            pieces=[(delivery, rows.num_rows) for rows, delivery in pieces],
        )
        self._closed(partition, batch)

    def _encode_smaller(
        self,
        partition: int,
        pieces: list[tuple[pa.RecordBatch, Receiver]],
        size: int,
        now: Now,
    ) -> None:
        if len(pieces) > 1:
            middle = len(pieces) // 2
            self._encode(partition, pieces[:middle], now)
            self._encode(partition, pieces[middle:], now)
            return
        batch, delivery = pieces[0]
        if batch.num_rows == 1:
            self._failed(
                delivery,
                BatchTooLarge(
                    f"A single row takes {size} bytes; topic {self.topic.name!r} takes batches of "
                    f"at most {self._encoded_bytes_max}."
                ),
            )
            return
        middle = batch.num_rows // 2
        first, second = delivery.halves(middle)
        self._encode(partition, [(batch.slice(0, middle), first)], now)
        self._encode(partition, [(batch.slice(middle), second)], now)
