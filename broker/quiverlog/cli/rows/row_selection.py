"""Row selection between consumer and sink: number of rows, filter, columns."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from quiverlog.cli.console.failures import CommandFailed, ExitCode
from quiverlog.client.rows.metadata_columns import SqlFilter, add_metadata
from quiverlog.errors import InvalidArgument
from quiverlog.installing import install_line

if TYPE_CHECKING:
    from quiverlog.cli.formats.write_files import Sink
    from quiverlog.client.rows.decoding import ConsumerBatch

__all__ = ["RowFilter", "RowSelection"]


class RowSelection:
    def __init__(
        self,
        sink: Sink,
        *,
        max_rows: int | None,
        columns: list[str] | None,
        places: Sequence[str],
        row_filter: RowFilter | None,
        has_metadata: bool,
    ) -> None:
        """
        Args:
            columns: those to write; None: all, also those that the topic gains.
            places: the metadata columns to write.
            has_metadata: the filter or the sink needs the metadata columns.
        """
        self._sink = sink
        self._filter = row_filter
        self._has_metadata = has_metadata
        self._names = None if columns is None else [*columns, *places]
        self._drops_metadata = has_metadata and not places
        self._left = max_rows

    @property
    def left(self) -> int | None:
        """How many rows are still to be written; None: no bound."""
        return self._left

    @property
    def is_full(self) -> bool:
        return self._left == 0

    def take(self, batch: ConsumerBatch) -> None:
        self._write(self._chosen(batch))

    def take_last(self, batches: Iterator[ConsumerBatch], count: int) -> None:
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
        data = add_metadata(batch) if self._has_metadata else batch.data
        rows = data if self._filter is None else self._filter.chosen(data)
        return rows.select(batch.data.schema.names) if self._drops_metadata else rows

    def _write(self, rows: pa.RecordBatch) -> None:
        if self._names is not None:
            rows = rows.select(self._names)
        if self._left is not None:
            rows = rows.slice(0, self._left)
            self._left -= rows.num_rows
        if rows.num_rows:
            self._sink.write(rows)


class RowFilter:
    def __init__(self, expression: str, schema: pa.Schema) -> None:
        """Raises CommandFailed: not a condition on these columns."""
        if importlib.util.find_spec("duckdb") is None:
            raise CommandFailed(f"--where needs DuckDB: {install_line('sql', 'duckdb')}")
        try:
            self._filter = SqlFilter(expression, schema)
        except InvalidArgument as error:
            raise _failed(error) from error

    def chosen(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        try:
            return self._filter.chosen(batch)
        except InvalidArgument as error:
            raise _failed(error) from error


def _failed(error: InvalidArgument) -> CommandFailed:
    return CommandFailed(f"--{error.message}", ExitCode.USAGE)
