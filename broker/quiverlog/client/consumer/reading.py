"""The blocking client's bounded reads.

Generated from `consumer/async_reading.py` by scripts/generate_client.py; do not edit.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from quiverlog.client.base.arguments import counted, extra, names
from quiverlog.client.base.misuse import blocking_only
from quiverlog.client.cluster.routing import Cluster
from quiverlog.client.drivers.blocking import BlockingDriver
from quiverlog.client.rows.arrow_stream import stream_of_reading
from quiverlog.client.rows.python_values import data_frame

from .consumer import Consumer
from .core import ConsumerCore
from .reading_plan import ReadPlan, ReadProgress, html_of_reading

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl

__all__ = ["Reading"]


@blocking_only
class Reading:
    """Rows between fixed offsets; made by `Client.read`.

    Each iteration reads the same rows anew, and holds about the rows of two fetches.
    """

    def __init__(
        self,
        plan: ReadPlan,
        cluster: Cluster,
        driver: BlockingDriver,
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

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        plan = self._plan
        rows_read = 0
        self._report(rows_read)
        core = ConsumerCore(self._cluster, plan.topic, plan.options)
        with Consumer(core, self._driver) as consumer:
            while batches := deque(consumer._following_many()):
                while batches:  # Keeps no reference while the answer after the next arrives.
                    rows_read += len(batches[0])
                    rows = plan.shaped(batches.popleft())
                    if rows.num_rows:
                        yield rows
                    del rows
                    self._report(rows_read)

    def to_arrow(self) -> pa.Table:
        """Return all rows as a table, without a copy of those that are not compressed."""
        batches = list(self)
        return pa.Table.from_batches(batches, self.schema)

    def to_pandas(self, **options: Any) -> pd.DataFrame:
        """Return all rows as a data frame of pandas.

        Args:
            options: those of `pyarrow.Table.to_pandas`.

        Raises:
            UnsupportedValue: Python or pandas have no such value.
        """
        extra("pandas", "to_pandas")
        frame: pd.DataFrame = data_frame(self.to_arrow(), self.topic, options)
        return frame

    def to_polars(self) -> pl.DataFrame:
        """Return all rows as a data frame of polars."""
        polars = extra("polars", "to_polars")
        frame: pl.DataFrame = polars.from_arrow(self.to_arrow())
        return frame

    def __repr__(self) -> str:
        rows = counted(self.rows_total, "row", "rows")
        partitions = counted(len(self._plan.ranges), "partition", "partitions")
        return (
            f"<{type(self).__name__} of {self.topic}: {rows} in {partitions}, "
            f"columns {names(self.schema.names)}>"
        )

    __arrow_c_stream__ = stream_of_reading

    def _repr_html_(self) -> str:
        first = Reading(self._plan.first(), self._cluster, self._driver, None)
        return html_of_reading(repr(self), first, self._plan)

    def _report(self, rows: int) -> None:
        if self._progress is not None:
            self._progress(ReadProgress(self.topic, rows, self.rows_total))
