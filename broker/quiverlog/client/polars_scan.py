"""`quiverlog.scan_polars`: a topic as a lazy frame of polars.

Owns what of a query is left to the reader, by polars' IO plugins: columns that the query does not
use are not decoded, a limit ends the reading, and what a condition says of `_partition`,
`_offset` and `_timestamp` becomes the ranges that are fetched. The condition itself is tried
batch by batch, so at most two fetches are held of rows that are not chosen.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from .arguments import ANYTHING, NAME, START, checked
from .client import Client, connect
from .extras import extra
from .place import table_schema
from .polars_condition import place_condition

if TYPE_CHECKING:
    import polars as pl
    import pyarrow as pa

    from .consumer_options import StartAt

__all__ = ["scan_polars"]


@checked(topic=NAME, bootstrap=ANYTHING, client=ANYTHING, start=START, end=START)
def scan_polars(
    topic: str,
    *,
    bootstrap: str | Iterable[str] | None = None,
    client: Client | None = None,
    start: StartAt = "earliest",
    end: StartAt = "latest",
) -> pl.LazyFrame:
    """A lazy frame of a topic's rows, with `_partition`, `_offset` and `_timestamp` at the end.

    Rows are read when it is collected, each time up to the end that there is then.

    Args:
        bootstrap: as in `connect`; a client is opened for each reading.
        client: an open client, instead.
        start: as in `Client.read`. Conditions on `_partition`, `_offset` and `_timestamp` with
            constants narrow what is fetched as well.
        end: as in `Client.read`.
    """
    polars = extra("polars", "scan_polars")
    plugins = extra("polars.io.plugins", "scan_polars")

    @contextlib.contextmanager
    def opened() -> Iterator[Client]:
        if client is not None:
            yield client
            return
        with connect(bootstrap) as own:
            yield own

    def schema() -> pl.Schema:
        with opened() as opened_client:
            return _polars_schema(table_schema(opened_client.schemas(topic).current))

    def rows(
        with_columns: list[str] | None,
        predicate: pl.Expr | None,
        n_rows: int | None,
        _batch_size: int | None,
    ) -> Iterator[pl.DataFrame]:
        with opened() as opened_client:
            current = opened_client.schemas(topic).current
            names = table_schema(current).names if with_columns is None else with_columns
            used = [] if predicate is None else predicate.meta.root_names()
            columns = list(dict.fromkeys([*names, *used]))
            reading = opened_client.read(
                topic,
                columns=columns or None,
                start=start,
                end=end,
                where=None if predicate is None else place_condition(predicate, current),
            )
            left = n_rows
            for batch in reading:
                frame: pl.DataFrame = polars.from_arrow(batch)
                if predicate is not None:
                    frame = frame.filter(predicate)
                frame = frame.select(names).head(frame.height if left is None else left)
                if left is not None:
                    left -= frame.height
                yield frame
                if left == 0:
                    return

    found: pl.LazyFrame = plugins.register_io_source(rows, schema=schema)
    return found


def _polars_schema(schema: pa.Schema) -> pl.Schema:
    import polars as pl

    frame = pl.from_arrow(schema.empty_table())
    assert isinstance(frame, pl.DataFrame)
    return frame.schema
