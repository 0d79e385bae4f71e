"""An executor's read: the ranges of one task, as Arrow batches for Spark.

Batches are prefetched, sliced, converted to Spark's schema (`schema.Normalizer`), and small ones
gathered. Rows lost after planning show in a fetch's valid range, leader epoch or topic id.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

import pyarrow as pa

from quiverlog.batch.numbers import integer, text
from quiverlog.errors import (
    CorruptBatch,
    CorruptLog,
    IncompatibleSchema,
    InvalidOption,
    LogTruncated,
    OffsetOutOfRange,
    QuiverlogError,
    UnknownTopic,
    UnknownTopicId,
)

from . import pool, worker_process
from ._compat import InputPartition, to_arrow_schema
from .option_types import Secret
from .options import ReadOptions
from .planning.losses import Losses
from .planning.ranges import Range
from .schema import Normalizer, unreadable

__all__ = ["COALESCE_BYTES", "COALESCE_ROWS", "LogSplit", "SplitReader", "coalesce", "rack"]

COALESCE_ROWS: Final = 65_536
COALESCE_BYTES: Final = 4 * 1024 * 1024
RACK: Final = "QUIVERLOG_CLIENT_RACK"
"""Environment variable of an executor: its rack."""

logger = logging.getLogger("pyspark_quiverlog")


def rack(options: ReadOptions) -> str:
    """Return this task's rack: the query's, or this executor's, or "".

    Raises:
        InvalidOption: `fetchFrom` is nearest, and no rack is set.
    """
    found = options.client_rack or os.environ.get(RACK, "").strip()
    if options.fetch_from == "nearest" and not found:
        raise InvalidOption(
            "option `fetchFrom` is nearest, and this executor has no rack: set"
            f" {RACK} in its environment (spark.executorEnv.{RACK}), or the option `client.rack`."
        )
    return found


class LogSplit(InputPartition):  # type: ignore[misc]
    """The ranges of one Spark task, in order. Pickled for every task, so small.

    `token`: for a task's login; each micro-batch has one that counts.
    """

    def __init__(self, ranges: list[Range], token: Secret | None = None) -> None:
        self.value = [tuple(r) for r in ranges]
        self.token = token

    @property
    def ranges(self) -> list[Range]:
        return [Range._make(r) for r in self.value]

    @property
    def rows(self) -> int:
        return sum(piece.rows for piece in self.ranges)


class SplitReader(worker_process.SentToTasks):
    """Reads splits under one query's options and schema. Pickled to the executors, without the
    credentials of the driver: each split has a token."""

    def __init__(self, options: ReadOptions, schema: Any) -> None:
        self.options = options
        self.schema: pa.Schema = to_arrow_schema(schema)

    def __getstate__(self) -> dict[str, Any]:
        return super().__getstate__() | {"options": pool.options_for_tasks(self.options)}

    def normalizer(self) -> Normalizer:
        return Normalizer(self.schema, metadata=self.options.include_metadata)

    def read(self, split: Any) -> Iterator[pa.RecordBatch]:
        """Yield a split's rows under exactly the query's schema.

        Raises:
            DataLoss: rows of the split are gone, and `failOnDataLoss` is true.
            CorruptBatch, CorruptLog: rows cannot be read, and `failOnCorruptData` is true, or where
                they end is not known.
            IncompatibleSchema, InvalidOption: as `unreadable` and `rack`.
        """
        ranges = split.ranges if isinstance(split, LogSplit) else []  # Spark's empty plan: None
        if ranges and split.token is not None and not pool.access_of(self.options).is_drivers:
            self.options = replace(self.options, token=split.token)
        yield from coalesce(batch for piece in ranges for batch in self._read_range(piece))
        worker_process.end_of_work()

    def _read_range(self, piece: Range) -> Iterator[pa.RecordBatch]:
        position, epoch = piece.start, piece.epoch
        normalizer = self.normalizer()
        while position < piece.end:
            try:
                rest = piece._replace(start=position, epoch=epoch)
                for next_offset, batch in self._fetch(rest, normalizer):
                    position = next_offset
                    yield batch
            except (OffsetOutOfRange, LogTruncated, UnknownTopic, UnknownTopicId) as error:
                epoch = -1  # of the row before, which is not known here any more
                position = self._after_loss(piece, position, error)
            except (CorruptBatch, CorruptLog) as error:
                epoch = -1
                position = self._after_corruption(piece, position, error)
            else:
                return

    def _fetch(self, piece: Range, normalizer: Normalizer) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Yield (offset after the batch, the batch under Spark's schema), in order."""
        from quiverlog.client.tables.fetcher import PartitionFetcher

        fetcher = PartitionFetcher(
            pool.client(pool.endpoint(self.options)),
            piece.topic,
            piece.partition,
            piece.start,
            piece.end,
            topic_id=bytes.fromhex(piece.topic_id),
            reader_schema=normalizer.stored_target,
            bytes_max=self.options.fetch_bytes,
            last_epoch=piece.epoch,
            fetch_from=self.options.fetch_from,
            client_rack=rack(self.options),
        )
        next_offset = piece.start
        with fetcher:
            try:
                for stored in fetcher:
                    if 0 <= piece.end_epoch < stored.leader_epoch:
                        # Its rows belong to a later batch of the query, which begins here again.
                        raise OffsetOutOfRange("they were truncated, others took their offsets")
                    metadata = None
                    if normalizer.metadata_names:
                        metadata = metadata_columns(normalizer.metadata_names, stored)
                    # Spark counts no offsets: it would take a row twice, or of the next batch.
                    assert next_offset <= stored.base_offset, "a row twice"
                    assert stored.next_offset <= piece.end, "a row after the range"
                    next_offset = stored.next_offset
                    yield next_offset, normalizer(stored.data, metadata)
            except IncompatibleSchema as error:
                where = f"topic {piece.topic!r}, partition {piece.partition}, offset {next_offset}"
                raise unreadable(error, where) from None

    def _after_loss(self, piece: Range, position: int, error: QuiverlogError) -> int:
        where = f"{piece.topic}-{piece.partition}"
        first = error.details.get("log_start_offset")
        if isinstance(error, OffsetOutOfRange) and isinstance(first, int) and first > position:
            resume = min(first, piece.end)
            what = f"{where}: rows [{position}, {resume}) are no longer kept"
        elif isinstance(error, LogTruncated):
            resume = position  # what is there now, without a check of the epoch before
            what = f"{where}: rows before {position} were truncated after they were read"
        else:
            resume = piece.end
            what = f"{where}: rows [{position}, {piece.end}) are gone ({error.message})"
        assert position <= resume <= piece.end
        Losses(fail=self.options.fail_on_data_loss).report(what, error)
        return resume

    def _after_corruption(self, piece: Range, position: int, error: QuiverlogError) -> int:
        after = error.details.get("next_offset")
        if self.options.fail_on_corrupt_data or not isinstance(after, int) or after <= position:
            raise error
        resume = min(after, piece.end)
        logger.warning(
            "stepping over rows [%d, %d) of %s-%d (failOnCorruptData=false): %s",
            position,
            resume,
            piece.topic,
            piece.partition,
            error.message,
        )
        return resume


def metadata_columns(names: Iterable[str], stored: Any) -> Mapping[str, pa.Array]:
    rows = stored.data.num_rows
    result = {}
    for name in names:
        if name == "_topic":
            result[name] = pa.repeat(text(stored.topic), rows)
        elif name == "_partition":
            result[name] = pa.repeat(integer(stored.partition, pa.int32()), rows)
        elif name == "_offset":
            result[name] = pa.arange(stored.base_offset, stored.next_offset)
        else:
            result[name] = stored.timestamps
    return result


def coalesce(
    batches: Iterable[pa.RecordBatch],
    rows_min: int = COALESCE_ROWS,
    bytes_min: int = COALESCE_BYTES,
) -> Iterator[pa.RecordBatch]:
    # Each batch has a fixed cost in Spark; a large one is not copied.
    waiting: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        if batch.num_rows == 0:
            continue
        large = batch.num_rows >= rows_min or batch.nbytes >= bytes_min
        if large and waiting:
            yield _concat(waiting)
            waiting, rows, size = [], 0, 0
        if large:
            yield batch
            continue
        waiting.append(batch)
        rows += batch.num_rows
        size += batch.nbytes
        if rows >= rows_min or size >= bytes_min:
            yield _concat(waiting)
            waiting, rows, size = [], 0, 0
    if waiting:
        yield _concat(waiting)


def _concat(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)
