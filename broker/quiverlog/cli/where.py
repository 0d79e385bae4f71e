"""`--where`: rows chosen by an SQL expression.

Owns how DuckDB is asked: it gives a yes or no per row and never the rows, whose values so stay what
they are. It reads no files and sees nothing but the batch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from quiverlog.cli.failures import CommandFailed, ExitCode

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["RowFilter"]


class RowFilter:
    """One expression over columns of one schema."""

    def __init__(self, expression: str, schema: pa.Schema) -> None:
        """Raises CommandFailed: the expression is no condition on these columns."""
        try:
            import duckdb
        except ModuleNotFoundError as error:
            raise CommandFailed("--where needs DuckDB: pip install duckdb") from error
        self._error: type[Exception] = duckdb.Error
        self._database: Any = duckdb.connect(config={"enable_external_access": "false"})
        self._database.execute("set timezone='UTC'").fetchall()
        # On a line of its own, so that a comment at its end stays one.
        self._project = f"coalesce((\n{expression}\n), false) as chosen"
        self.chosen(_empty(schema))

    def chosen(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows for which the expression is true, neither false nor null."""
        import pyarrow as pa

        try:
            relation = self._database.from_arrow(pa.Table.from_batches([batch]))
            found = pa.table(relation.project(self._project)).column(0).combine_chunks()
        except self._error as error:
            said = str(error).splitlines()[0].removesuffix("!")
            raise CommandFailed(f"--where: {said}.", ExitCode.USAGE) from error
        if len(found) != batch.num_rows or not pa.types.is_boolean(found.type):
            raise CommandFailed("--where is one condition on a row.", ExitCode.USAGE)
        return batch.filter(found)


def _empty(schema: pa.Schema) -> pa.RecordBatch:
    import pyarrow as pa

    return pa.RecordBatch.from_arrays([pa.nulls(0, f.type) for f in schema], schema=schema)
