"""Topics as tables of DuckDB.

A topic looks like a dataset of pyarrow, which DuckDB asks for a scanner. Unused columns are not
decoded, and bounds on `_partition`, `_offset` and `_timestamp` narrow what is fetched. A scan ends
at the topic's end as of its start.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from quiverlog.client.rows.metadata_columns import table_schema
from quiverlog.client.rows.python_values import check_maps
from quiverlog.client.rows.sql_database import connect_duckdb
from quiverlog.errors import QuiverlogError, UnknownTopic

if TYPE_CHECKING:
    from quiverlog.client.base.readers import TopicReader
    from quiverlog.client.consumer.reading import Reading

__all__ = ["TopicTable", "open_database", "register_topics"]


class TopicTable(ds.Dataset):  # type: ignore[misc]
    def __init__(
        self, client: TopicReader, topic: str, schema: pa.Schema, failures: list[QuiverlogError]
    ) -> None:
        self._client = client
        self._topic = topic
        self._schema = table_schema(schema)
        self._failures = failures

    @property
    def schema(self) -> pa.Schema:
        return self._schema

    def scanner(
        self,
        columns: list[str] | None = None,
        filter: pc.Expression | None = None,
        **_batching: Any,
    ) -> _Scan:
        # DuckDB replaces an error raised here by its own, with the same text.
        names = columns or self._schema.names
        try:
            reading = self._client.read(self._topic, columns=names, where=filter)
        except QuiverlogError as error:
            self._failures.append(error)
            raise
        return _Scan(reading, self._failures)


class _Scan:
    def __init__(self, reading: Reading, failures: list[QuiverlogError]) -> None:
        self._reading = reading
        self._failures = failures

    def to_reader(self) -> pa.RecordBatchReader:
        return pa.RecordBatchReader.from_batches(self._reading.schema, self._rows())

    def _rows(self) -> Iterator[pa.RecordBatch]:
        # DuckDB replaces errors here, too.
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
    """Open a connection of DuckDB with these topics (None: all) as tables."""
    database = connect_duckdb("SQL", files=files)
    register_topics(database, client, client.list_topics() if topics is None else topics)
    return database


def register_topics(
    database: Any,
    client: TopicReader,
    topics: Iterable[str],
    failures: list[QuiverlogError] | None = None,
) -> None:
    """Make tables of these topics, without those deleted meanwhile.

    Args:
        failures: receives the original errors that end scans.
    """
    failures = [] if failures is None else failures
    for topic in topics:
        try:
            schema = client.schemas(topic).current
        except UnknownTopic:
            continue
        database.register(topic, TopicTable(client, topic, schema, failures))
