"""`spark.read.format("quiverlog")`: a bounded read.

The driver resolves both ends once, when it plans; a second action on the same DataFrame reads the
same rows again. A new `load()` sees what came in between.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from quiverlog.errors import DataLoss

from ._compat import DataSourceReader
from .options import Use, parse_read_options
from .planning import Range, split_ranges
from .reader import LogSplit, SplitReader
from .source import check_query_schema, open_view

if TYPE_CHECKING:
    import pyarrow as pa

    from .log_view import LogView

__all__ = ["LogBatchReader", "batch_ranges"]

logger = logging.getLogger("pyspark_quiverlog")


class LogBatchReader(DataSourceReader):  # type: ignore[misc]
    """Plans in the driver, reads in the executors. Pickled in between."""

    def __init__(self, raw: Mapping[str, str], schema: Any) -> None:
        self._options = parse_read_options(raw, Use.BATCH_READ)
        self._splits = SplitReader(self._options, schema)

    def partitions(self) -> list[Any]:
        """One element per Spark task."""
        view = open_view(self._options)
        view.refresh(required=True)
        check_query_schema(view, self._splits.normalizer())
        tasks = split_ranges(
            batch_ranges(view),
            tasks_min=self._options.min_partitions,
            rows_max=self._options.max_rows_per_task,
            rows_min=self._options.min_rows_per_task,
        )
        return [LogSplit(task) for task in tasks]

    def read(self, partition: Any) -> Iterator[pa.RecordBatch]:
        """The rows of one element of `partitions()`."""
        return self._splits.read(partition)


def batch_ranges(view: LogView) -> list[Range]:
    """The rows of a batch read, per partition.

    Raises:
        InvalidOption, DataLoss: a start before the first row that is kept.
    """
    starts = view.starting(Use.BATCH_READ)
    ends = view.ending()
    firsts = view.earliest(starts)
    ranges = []
    for where, start in sorted(starts.items()):
        first, end = firsts[where], ends[where]
        if first.offset > start.offset:
            what = f"{where}: rows [{start.offset}, {first.offset}) are no longer kept"
            if view.options.fail_on_data_loss:
                raise DataLoss(f"{what}.")
            logger.warning("data loss, going on (failOnDataLoss=false): %s", what)
            start = first
        topic_id = view.topics[where.topic].topic_id
        ranges.append(
            Range(where.topic, topic_id, where.partition, start.offset, end.offset, start.epoch)
        )
    return ranges
