"""`spark.read.format("quiverlog")`: a bounded read.

The driver resolves both ends once per `load()`, so every action on a DataFrame reads the same rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from quiverlog.errors import InvalidOption

from . import pool
from ._compat import DataSourceReader
from .options import Use, parse_read_options
from .planning.bounds import ending, starting
from .planning.losses import Losses
from .planning.ranges import Range, split_ranges
from .reader import LogSplit, SplitReader
from .refusals import in_one_frame
from .source import check_query_schema, open_view

if TYPE_CHECKING:
    import pyarrow as pa

    from .planning.log_view import LogView

__all__ = ["LogBatchReader", "batch_ranges"]


class LogBatchReader(DataSourceReader):  # type: ignore[misc]
    """Plans in the driver, reads in the executors; pickled in between."""

    def __init__(self, raw: Mapping[str, str], schema: Any) -> None:
        self._options = parse_read_options(raw, Use.BATCH_READ)
        self._splits = SplitReader(self._options, schema)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_options": pool.options_for_tasks(self._options)}

    @in_one_frame
    def partitions(self) -> list[Any]:
        view = open_view(self._options)
        view.refresh(required=True)
        check_query_schema(view, self._splits.normalizer())
        tasks = split_ranges(
            batch_ranges(view),
            tasks_min=self._options.min_partitions,
            rows_max=self._options.max_rows_per_task,
            rows_min=self._options.min_rows_per_task,
        )
        token = pool.task_token(self._options)
        return [LogSplit(task, token) for task in tasks]

    def read(self, partition: Any) -> Iterator[pa.RecordBatch]:
        return self._splits.read(partition)


def batch_ranges(view: LogView) -> list[Range]:
    """Return one range for each partition that exists.

    Raises:
        InvalidOption: a start above its end, and as `starting` and `ending`.
        DataLoss: a start before the first row that is kept, or a topic that was deleted.
    """
    losses = Losses(fail=view.options.fail_on_data_loss)
    starts = starting(view, Use.BATCH_READ)
    ends = ending(view)
    firsts = view.earliest(starts)
    ranges = []
    for where in view.partitions:
        if where not in starts or where not in firsts or where not in ends:
            losses.report(f"topic {where.topic!r} was deleted: partition {where.partition}")
            continue
        start, first, end = starts[where], firsts[where], ends[where]
        if first.offset > start.offset:
            gone = f"rows [{start.offset}, {first.offset}) are no longer kept"
            losses.report(f"{where}: {gone}")
            start = first
        elif start.offset > end.offset:
            # Silently it would be a batch without rows.
            raise InvalidOption(
                f"{where}: the batch starts at {start.offset}, above its end {end.offset}; see the "
                "starting and the ending options."
            )
        topic_id = view.topics[where.topic].topic_id
        stop = max(start.offset, end.offset)  # the log may be trimmed beyond the end
        ranges.append(
            Range(where.topic, topic_id, where.partition, start.offset, stop, start.epoch)
        )
    return ranges
