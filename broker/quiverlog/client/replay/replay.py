"""`client.replay`: the rows of a past trigger of a Spark query, outside of Spark."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from quiverlog.client.base.arguments import counted, extra, names
from quiverlog.errors import OffsetOutOfRange, UnknownTopicId
from quiverlog.types import TopicPartition

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl
    import pyarrow as pa

    from quiverlog.client.consumer.reading import Reading
    from quiverlog.client.consumer.reading_plan import ReadProgress

    from .planned import GoneRows, ReplayClient

__all__ = ["Replay", "replay_of"]


class Replay:
    """The rows of one micro-batch; made by `Client.replay`. Each iteration reads them anew.

    Attributes:
        batch: Spark's batch id.
        planned_at: when it was planned, by the driver's clock.
        is_committed: False for the one at which a query failed, or that still runs.
        ranges: partition -> first offset and the offset after the last one, of rows that are there.
        gone: rows of the micro-batch that are not, and why.
    """

    def __init__(
        self,
        batch: int,
        planned_at: datetime | None,
        ranges: dict[TopicPartition, tuple[int, int]],
        gone: list[GoneRows],
        readings: list[Reading],
        *,
        is_committed: bool,
    ) -> None:
        self.batch = batch
        self.planned_at = planned_at
        self.is_committed = is_committed
        self.ranges = ranges
        self.gone = gone
        self._readings = readings

    @property
    def rows_total(self) -> int:
        """Rows that are there."""
        return sum(end - start for start, end in self.ranges.values())

    @property
    def topics(self) -> list[str]:
        """The topics with rows that are there."""
        return [reading.topic for reading in self._readings]

    @property
    def schema(self) -> pa.Schema:
        """The columns of all batches; of several topics those of any of them."""
        import pyarrow as pa

        schemas = [reading.schema for reading in self._readings]
        return pa.unify_schemas(schemas, promote_options="permissive") if schemas else pa.schema([])

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        schema = self.schema
        for reading in self._readings:
            for rows in reading:
                if rows.schema.equals(schema):
                    yield rows
                    continue
                tables = [schema.empty_table(), pa.Table.from_batches([rows])]
                yield from pa.concat_tables(tables, promote_options="permissive").to_batches()

    def to_arrow(self) -> pa.Table:
        """Return all rows as a table."""
        import pyarrow as pa

        return pa.Table.from_batches(list(self), self.schema)

    def to_pandas(self, **options: Any) -> pd.DataFrame:
        """Return all rows as a data frame of pandas; `options` of `pyarrow.Table.to_pandas`.

        Raises:
            UnsupportedValue: Python or pandas have no such value.
        """
        extra("pandas", "to_pandas")
        from quiverlog.client.rows.python_values import data_frame

        frame: pd.DataFrame = data_frame(self.to_arrow(), ", ".join(self.topics), options)
        return frame

    def to_polars(self) -> pl.DataFrame:
        """Return all rows as a data frame of polars."""
        frame: pl.DataFrame = extra("polars", "to_polars").from_arrow(self.to_arrow())
        return frame

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        import pyarrow as pa

        reader = pa.RecordBatchReader.from_batches(self.schema, iter(self))
        return reader.__arrow_c_stream__(requested_schema)

    def __repr__(self) -> str:
        rows = counted(self.rows_total, "row", "rows")
        text = f"<Replay of micro-batch {self.batch}: {rows} of {names(self.topics) or 'no topic'}"
        return text + (f"; gone: {'; '.join(map(str, self.gone))}>" if self.gone else ">")


def replay_of(
    client: ReplayClient,
    checkpoint: str | os.PathLike[str],
    *,
    batch: int | None = None,
    source: str | None = None,
    columns: Sequence[str] | None = None,
    allow_gone: bool = False,
    progress: bool | Callable[[ReadProgress], object] | None = None,
) -> Replay:
    """Read again the rows of a past micro-batch of a Spark query.

    A failed stream in a notebook: `client.replay("checkpoints/late").to_pandas()` has the rows of
    the micro-batch at which it failed. Nothing is written, neither there nor at the brokers.

    Args:
        checkpoint: the query's `checkpointLocation`: a folder, or a URI that pyarrow's file systems
            open (`s3://`, `gs://`, `hdfs://`).
        batch: Spark's batch id; None: the last one that was planned.
        source: which source, as the checkpoint numbers them ("0", "1"), where a query reads
            quiverlog several times.
        columns: only these, in this order; may include `_topic`, `_partition`, `_offset` and
            `_timestamp`. By default the columns that the topics have now.
        allow_gone: return the rows that are left where some are gone; `Replay.gone` names them.
        progress: as in `read`.

    Raises:
        InvalidArgument: no checkpoint, not this micro-batch or source; Spark keeps the last 100.
        OffsetOutOfRange: rows are gone (retention, a deleted topic, a truncated log); names them.
        While rows are read, what `consumer` raises.
    """
    from .checkpoint import Checkpoint
    from .planned import look, planned_ranges, topics_left

    found = Checkpoint(checkpoint)
    number = found.newest() if batch is None else batch
    logged, planned = planned_ranges(found, number, source)
    ranges, gone = look(client, planned)
    if gone and not allow_gone:
        raise OffsetOutOfRange(
            f"micro-batch {number}: {'; '.join(map(str, gone))}. With allow_gone=True, the others"
            " are read."
        )
    readings = []
    for topic in sorted({where.topic for where in ranges}):
        of_topic = {w.partition: bounds for w, bounds in ranges.items() if w.topic == topic}
        readings.append(
            client.read(
                topic,
                start={p: start for p, (start, _) in of_topic.items()},
                end={p: end for p, (_, end) in of_topic.items()},
                partitions=sorted(of_topic),
                columns=columns,
                progress=progress,
            )
        )
    # A plan is bound to the topic that had the name when it was made.
    ids = {one.topic: one.topic_id for one in planned}
    if {reading.topic for reading in readings} - topics_left(client, ids):
        raise UnknownTopicId(f"micro-batch {number}: a topic was deleted meanwhile: ask again.")
    return Replay(
        number, logged.planned_at, ranges, gone, readings, is_committed=logged.is_committed
    )
