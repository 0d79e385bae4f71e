"""`--where`: rows chosen by an SQL expression.

Owns the words of the command line about it; how rows are chosen is the client's `row_filter`.
"""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING

from quiverlog.cli.failures import CommandFailed, ExitCode
from quiverlog.client.rows.place import SqlFilter
from quiverlog.errors import InvalidArgument
from quiverlog.installing import install_line

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["RowFilter"]


class RowFilter:
    """One expression over columns of one schema."""

    def __init__(self, expression: str, schema: pa.Schema) -> None:
        """Raises CommandFailed: the expression is no condition on these columns."""
        if importlib.util.find_spec("duckdb") is None:
            raise CommandFailed(f"--where needs DuckDB: {install_line('sql', 'duckdb')}")
        try:
            self._filter = SqlFilter(expression, schema)
        except InvalidArgument as error:
            raise _failed(error) from error

    def chosen(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows for which the expression is true, neither false nor null."""
        try:
            return self._filter.chosen(batch)
        except InvalidArgument as error:
            raise _failed(error) from error


def _failed(error: InvalidArgument) -> CommandFailed:
    return CommandFailed(f"--{error.message}", ExitCode.USAGE)
