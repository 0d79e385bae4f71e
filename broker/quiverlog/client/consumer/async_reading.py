"""Bounded reads with asyncio; `reading.py` is generated from here."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from quiverlog.client.base.arguments import counted, extra, names
from quiverlog.client.base.misuse import asyncio_only
from quiverlog.client.cluster.routing import Cluster
from quiverlog.client.drivers.asynchronous import AsyncDriver
from quiverlog.client.rows.python_values import data_frame

# blocking: from quiverlog.client.rows.arrow_stream import stream_of_reading
from .async_consumer import AsyncConsumer
from .core import ConsumerCore
from .reading_plan import ReadPlan, ReadProgress

# blocking: from .reading_plan import html_of_reading

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl

__all__ = ["AsyncReading"]


@asyncio_only
class AsyncReading:
    """Rows between fixed offsets; made by `AsyncClient.read`.

    Each iteration reads the same rows anew, and holds about the rows of two fetches.
    """

    def __init__(
        self,
        plan: ReadPlan,
        cluster: Cluster,
        driver: AsyncDriver,
        progress: Callable[[ReadProgress], object] | None,
    ) -> None:
        self._plan = plan
        self._cluster = cluster
        self._driver = driver
        self._progress = progress

    @property
    def topic(self) -> str:
        """The topic's name."""
        return self._plan.topic

    @property
    def schema(self) -> pa.Schema:
        """The columns of all batches."""
        return self._plan.schema

    @property
    def ranges(self) -> dict[int, tuple[int, int]]:
        """Partition -> first offset and the offset after the last one; without empty ones."""
        return dict(self._plan.ranges)

    @property
    def rows_total(self) -> int:
        """Rows in the ranges, before a condition selects some."""
        return self._plan.rows_total

    async def __aiter__(self) -> AsyncIterator[pa.RecordBatch]:
        plan = self._plan
        rows_read = 0
        self._report(rows_read)
        core = ConsumerCore(self._cluster, plan.topic, plan.options)
        async with AsyncConsumer(core, self._driver) as consumer:
            while batches := deque(await consumer._following_many()):
                while batches:  # Keeps no reference while the answer after the next arrives.
                    rows_read += len(batches[0])
                    rows = plan.shaped(batches.popleft())
                    if rows.num_rows:
                        yield rows
                    del rows
                    self._report(rows_read)

    async def to_arrow(self) -> pa.Table:
        """Return all rows as a table, without a copy of those that are not compressed."""
        batches = [batch async for batch in self]
        return pa.Table.from_batches(batches, self.schema)

    async def to_pandas(self, **options: Any) -> pd.DataFrame:
        """Return all rows as a data frame of pandas.

        Args:
            options: those of `pyarrow.Table.to_pandas`.

        Raises:
            UnsupportedValue: Python or pandas have no such value.
        """
        extra("pandas", "to_pandas")
        frame: pd.DataFrame = data_frame(await self.to_arrow(), self.topic, options)
        return frame

    async def to_polars(self) -> pl.DataFrame:
        """Return all rows as a data frame of polars."""
        polars = extra("polars", "to_polars")
        frame: pl.DataFrame = polars.from_arrow(await self.to_arrow())
        return frame

    def __repr__(self) -> str:
        rows = counted(self.rows_total, "row", "rows")
        partitions = counted(len(self._plan.ranges), "partition", "partitions")
        return (
            f"<{type(self).__name__} of {self.topic}: {rows} in {partitions}, "
            f"columns {names(self.schema.names)}>"
        )

    # blocking: __arrow_c_stream__ = stream_of_reading

    # blocking: def _repr_html_(self) -> str:
    # blocking:     first = Reading(self._plan.first(), self._cluster, self._driver, None)
    # blocking:     return html_of_reading(repr(self), first, self._plan)

    def _report(self, rows: int) -> None:
        if self._progress is not None:
            self._progress(ReadProgress(self.topic, rows, self.rows_total))
