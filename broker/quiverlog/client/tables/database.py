"""`client.duckdb()`: the method of the blocking client, without what it costs to import."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

    from quiverlog.client.base.readers import TopicReader

__all__ = ["database_of"]


def database_of(client: TopicReader, *, files: bool = False) -> DuckDBPyConnection:
    """Open a connection of DuckDB in which the topics of `list_topics` are tables.

    Tables have the topic's columns, and `_partition`, `_offset` and `_timestamp`. Columns that a
    query does not use are not decoded; conditions on these three narrow what is fetched. Close it
    before the client.

    Args:
        files: let queries use files, the network and DuckDB's extensions, and change any setting.
            By default their text reaches tables alone; `register` makes one of a data frame.

    Raises:
        InvalidArgument: duckdb is not installed.
    """
    from .duckdb import open_database

    database: DuckDBPyConnection = open_database(client, files=files)
    return database
