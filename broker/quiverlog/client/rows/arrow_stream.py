"""Arrow's C stream of what a blocking client reads, for polars, duckdb, pandas, pyarrow.

Rows are read as the stream's consumer asks for them, from one thread at a time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Protocol

import pyarrow as pa

__all__ = ["stream_of_consumer", "stream_of_reading"]


class _Batch(Protocol):
    @property
    def data(self) -> pa.RecordBatch: ...


class _Consumer(Protocol):
    @property
    def schema(self) -> pa.Schema: ...

    def __iter__(self) -> Iterator[_Batch]: ...


class _Reading(Protocol):
    @property
    def schema(self) -> pa.Schema: ...

    def __iter__(self) -> Iterator[pa.RecordBatch]: ...


def stream_of_reading(reading: _Reading, requested_schema: object | None = None) -> object:
    return _stream(reading.schema, reading, requested_schema)


def stream_of_consumer(consumer: _Consumer, requested_schema: object | None = None) -> object:
    """Return further rows as a stream, without an end where the consumer follows."""
    schema = consumer.schema
    rows = (batch.data for batch in consumer)
    return _stream(schema, rows, requested_schema)


def _stream(
    schema: pa.Schema, batches: Iterable[pa.RecordBatch], requested_schema: object | None
) -> object:
    reader = pa.RecordBatchReader.from_batches(schema, iter(batches))
    return reader.__arrow_c_stream__(requested_schema)
