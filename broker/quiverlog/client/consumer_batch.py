"""A batch of rows as a consumer hands it out.

Owns what a program can ask of it: rows, offsets, times, and Arrow's C stream, so that data frames
and query engines take it as it is. Rows are never copied here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .display import ROWS_SHOWN_MAX, cells, html_table, names

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["ConsumerBatch"]


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
        """Where to go on reading after this batch."""
        return self.base_offset + int(self.data.num_rows)

    @property
    def timestamps(self) -> pa.Array:
        """The rows' timestamps, `timestamp[us, UTC]`; equal within a batch."""
        import pyarrow as pa

        from quiverlog.batch.numbers import integer

        moment = integer(self.timestamp_us, pa.timestamp("us", tz="UTC"))
        return pa.repeat(moment, self.data.num_rows)

    @property
    def offsets(self) -> pa.Array:
        """The rows' offsets, int64."""
        import pyarrow as pa

        return pa.arange(self.base_offset, self.next_offset)

    def to_pylist(self) -> list[dict[str, Any]]:
        """The rows as dictionaries.

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
            f"ConsumerBatch({self.topic}-{self.partition}, offsets "
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
        """The rows for whoever speaks Arrow's C stream: polars, duckdb, pandas, pyarrow."""
        import pyarrow as pa

        reader = pa.RecordBatchReader.from_batches(self.data.schema, [self.data])
        return reader.__arrow_c_stream__(requested_schema)
