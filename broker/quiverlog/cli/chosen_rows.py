"""Which rows a reader sees, and with which columns: between the consumer and a sink.

Owns the filter's place, and the count of rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from quiverlog.client.rows.place import placed

if TYPE_CHECKING:
    from quiverlog.cli.where import RowFilter
    from quiverlog.cli.write_files import Sink
    from quiverlog.client.rows.decoding import ConsumerBatch

__all__ = ["ChosenRows"]


class ChosenRows:
    """Takes batches as they come and hands on the chosen rows, in the chosen columns."""

    def __init__(
        self,
        sink: Sink,
        *,
        max_rows: int | None,
        columns: list[str] | None,
        places: Sequence[str],
        row_filter: RowFilter | None,
        is_placed: bool,
    ) -> None:
        """
        Args:
            columns: those to write; None writes all, also those that the topic gains meanwhile.
            places: the columns to write that say where each row was.
            is_placed: the filter or the sink needs to know where each row was.
        """
        self._sink = sink
        self._filter = row_filter
        self._is_placed = is_placed
        self._names = None if columns is None else [*columns, *places]
        self._drops_place = is_placed and not places
        self._left = max_rows

    @property
    def is_full(self) -> bool:
        """So many rows were written as were asked for."""
        return self._left == 0

    def take(self, batch: ConsumerBatch) -> None:
        self._write(self._chosen(batch))

    def take_last(self, batches: Iterator[ConsumerBatch], count: int) -> None:
        """Of all these rows only the last ones, by their time and then their place."""

        found = [(b.timestamp_us, b.partition, b.base_offset, self._chosen(b)) for b in batches]
        found.sort(key=lambda entry: entry[:3])
        kept: list[pa.RecordBatch] = []
        for *_, rows in reversed(found):
            if count <= 0:
                break
            kept.append(rows.slice(max(0, rows.num_rows - count)))
            count -= rows.num_rows
        for rows in reversed(kept):
            if not self.is_full:
                self._write(rows)
        self.flush()

    def flush(self) -> None:
        self._sink.flush()

    def _chosen(self, batch: ConsumerBatch) -> pa.RecordBatch:
        data = placed(batch) if self._is_placed else batch.data
        rows = data if self._filter is None else self._filter.chosen(data)
        return rows.select(batch.data.schema.names) if self._drops_place else rows

    def _write(self, rows: pa.RecordBatch) -> None:
        if self._names is not None:
            rows = rows.select(self._names)
        if self._left is not None:
            rows = rows.slice(0, self._left)
            self._left -= rows.num_rows
        if rows.num_rows:
            self._sink.write(rows)
