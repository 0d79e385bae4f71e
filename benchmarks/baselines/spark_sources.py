"""Bare Spark sources and sinks in Python: what any Python data source costs, and nothing else.

The source yields one ready-made Arrow batch again and again, from memory: no socket, no decoding,
no check. The sink drops the Arrow batches that Spark hands it. What a source or sink of ours costs
beyond these two is ours.

`BareSource` options: `rows` (in all), `rowsPerTrigger`, `partitions`, `batchRows`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows
from pyspark.sql.types import StructType

from benchmarks.rows import SPARK_SCHEMA, make_batch

__all__ = ["BareSink", "BareSource"]


@dataclass
class Slice(InputPartition):
    """How many rows a task yields, in batches of how many."""

    rows: int
    batch_rows: int


class Options:
    """The source's options, as numbers."""

    def __init__(self, options: dict[str, str]) -> None:
        self.rows = int(options.get("rows", 1_000_000))
        self.rows_per_trigger = int(options.get("rowspertrigger", self.rows))
        self.partitions = int(options.get("partitions", 4))
        self.batch_rows = int(options.get("batchrows", 65_536))

    def slices(self, rows: int) -> list[InputPartition]:
        return [Slice(rows // self.partitions, self.batch_rows)] * self.partitions


@cache
def batch_of(rows: int) -> pa.RecordBatch:
    """Made once per worker process: the baseline must not pay for making rows."""
    return make_batch(rows)


def batches(part: Slice) -> Iterator[pa.RecordBatch]:
    left = part.rows
    while left > 0:
        yield batch_of(min(left, part.batch_rows))
        left -= part.batch_rows


class BareReader(DataSourceReader):
    def __init__(self, options: Options) -> None:
        self.options = options

    def partitions(self) -> list[InputPartition]:
        return self.options.slices(self.options.rows)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Slice)
        return batches(partition)


class BareStreamReader(DataSourceStreamReader):
    def __init__(self, options: Options) -> None:
        self.options = options

    def initialOffset(self) -> dict[str, int]:
        return {"rows": 0}

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self.options.rows_per_trigger)

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:
        step = self.options.rows if isinstance(limit, ReadAllAvailable) else limit.max_rows
        return {"rows": min(self.options.rows, start["rows"] + step)}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        return self.options.slices(end["rows"] - start["rows"])

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Slice)
        return batches(partition)


class BareSource(DataSource):
    """`spark.read.format("bare_source")` and its streaming twin."""

    @classmethod
    def name(cls) -> str:
        return "bare_source"

    def schema(self) -> str:
        return SPARK_SCHEMA

    def reader(self, schema: StructType) -> BareReader:
        return BareReader(Options(self.options))

    def streamReader(self, schema: StructType) -> BareStreamReader:
        return BareStreamReader(Options(self.options))


class Dropping:
    """Takes every batch and keeps the count of its rows, as any sink must look at them."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        for batch in iterator:
            assert batch.num_rows > 0
        return WriterCommitMessage()


class DroppingWriter(Dropping, DataSourceArrowWriter):
    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        pass


class DroppingStreamWriter(Dropping, DataSourceStreamArrowWriter):
    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        pass

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        pass


class BareSink(DataSource):
    """`df.write.format("bare_sink")` and its streaming twin."""

    @classmethod
    def name(cls) -> str:
        return "bare_sink"

    def writer(self, schema: StructType, overwrite: bool) -> Any:
        return DroppingWriter()

    def streamWriter(self, schema: StructType, overwrite: bool) -> Any:
        return DroppingStreamWriter()
