"""Topics as tables of DuckDB.

Owns how a scan becomes a read: DuckDB asks a dataset of pyarrow for a scanner, with the columns and
the condition that it wants, and a topic answers as such a dataset would. Columns that are not asked
for are not decoded, and what the condition says of `_partition`, `_offset` and `_timestamp` becomes
the range of offsets that is fetched. Each scan ends where the topic ends as it begins.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from quiverlog.client.rows.place import table_schema
from quiverlog.client.rows.python_values import check_maps
from quiverlog.client.rows.sql_database import connect_duckdb
from quiverlog.errors import QuiverlogError, UnknownTopic

if TYPE_CHECKING:
    from quiverlog.client.base.readers import TopicReader
    from quiverlog.client.consumer.reading import Reading

__all__ = ["TopicTable", "open_database", "register_topics"]


class TopicTable(ds.Dataset):  # type: ignore[misc]
    """As much of a dataset as DuckDB uses."""

    def __init__(
        self, client: TopicReader, topic: str, schema: pa.Schema, failures: list[QuiverlogError]
    ) -> None:
        self._client = client
        self._topic = topic
        self._schema = table_schema(schema)
        self._failures = failures

    @property
    def schema(self) -> pa.Schema:
        """The topic's columns, and where a row was."""
        return self._schema

    def scanner(
        self,
        columns: list[str] | None = None,
        filter: pc.Expression | None = None,
        **_batching: Any,
    ) -> _Scan:
        """Rows for one scan, between offsets that leaders are asked for here.

        DuckDB makes an error of its own of what is raised here, and keeps its text.
        """
        names = columns or self._schema.names
        try:
            reading = self._client.read(self._topic, columns=names, where=filter)
        except QuiverlogError as error:
            self._failures.append(error)
            raise
        return _Scan(reading, self._failures)


class _Scan:
    """As much of a scanner as DuckDB uses."""

    def __init__(self, reading: Reading, failures: list[QuiverlogError]) -> None:
        self._reading = reading
        self._failures = failures

    def to_reader(self) -> pa.RecordBatchReader:
        return pa.RecordBatchReader.from_batches(self._reading.schema, self._rows())

    def _rows(self) -> Iterator[pa.RecordBatch]:
        """What is raised here, DuckDB makes an error of its own of, too."""
        try:
            for batch in self._reading:
                check_maps(batch, self._reading.topic)
                yield batch
        except QuiverlogError as error:
            self._failures.append(error)
            raise


def open_database(
    client: TopicReader, topics: Iterable[str] | None = None, *, files: bool = False
) -> Any:
    """A connection of DuckDB, in memory, in which these topics are tables; None takes all.

    `files` is that of `connect_duckdb`.
    """
    database = connect_duckdb("SQL", files=files)
    register_topics(database, client, client.list_topics() if topics is None else topics)
    return database


def register_topics(
    database: Any,
    client: TopicReader,
    topics: Iterable[str],
    failures: list[QuiverlogError] | None = None,
) -> None:
    """Make tables of these topics; a topic that has gone meanwhile is left out.

    Args:
        failures: gets the errors that end scans, as they were before DuckDB had them.
    """
    failures = [] if failures is None else failures
    for topic in topics:
        try:
            schema = client.schemas(topic).current
        except UnknownTopic:
            continue
        database.register(topic, TopicTable(client, topic, schema, failures))
