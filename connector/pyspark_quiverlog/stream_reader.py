"""`spark.readStream.format("quiverlog")`: passes Spark's calls to the planner.

One instance lives in the driver's source process for the query run; copies are pickled to the
executors. Offsets are the JSON of `quiverlog.client.replay.stream_offsets`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from . import pool
from ._compat import DataSourceStreamReader, SupportsTriggerAvailableNow, hand_over, limit_class
from .driver_read import DriverRead
from .options import Use, parse_read_options
from .planning.ranges import split_ranges
from .planning.stream_planner import StreamPlanner
from .progress import ProgressReporter
from .reader import LogSplit, SplitReader
from .refusals import in_one_frame
from .source import check_query_schema, open_view

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["LogStreamReader"]


class LogStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]
    def __init__(self, raw: Mapping[str, str], schema: Any) -> None:
        self._options = parse_read_options(raw, Use.STREAM_READ)
        self._splits = SplitReader(self._options, schema)
        self._planner: StreamPlanner | None = None
        self._driver_read: DriverRead | None = None
        self._progress: ProgressReporter | None = None

    def __getstate__(self) -> dict[str, Any]:
        # Executors only read: no connections, no threads.
        options = pool.options_for_tasks(self._options)
        return self.__dict__ | {
            "_planner": None,
            "_driver_read": None,
            "_progress": None,
            "_options": options,
        }

    def _plan(self) -> StreamPlanner:
        if self._planner is None:
            view = open_view(self._options)
            view.refresh()
            check_query_schema(view, self._splits.normalizer())
            self._planner = StreamPlanner(view)
            if self._options.report_progress:
                self._progress = ProgressReporter(self._options)
            if DriverRead.is_wanted(self._options):
                self._driver_read = DriverRead(self._options, self._splits.read)
        return self._planner

    @in_one_frame
    def initialOffset(self) -> dict[str, Any]:
        return self._plan().initial_offset()

    def getDefaultReadLimit(self) -> Any:
        # Spark has no limit that combines rows, bytes and a minimum, so the planner applies them.
        # Spark passes `ReadAllAvailable` when that is the default, or the trigger needs all rows.
        options = self._options
        rows, size = options.max_rows_per_trigger, options.max_bytes_per_trigger
        if rows is None and size is None and options.min_rows_per_trigger is None:
            return limit_class("ReadAllAvailable")()
        return limit_class("ReadMaxRows")(rows or 2**62)

    @in_one_frame
    def latestOffset(self, start: dict[str, Any] | None = None, limit: Any = None) -> Any:
        """Return the end of the next micro-batch, or `start`. PySpark 4.0 and 4.1 give no
        arguments."""
        all_available = limit_class("ReadAllAvailable")
        unlimited = all_available is not None and isinstance(limit, all_available)
        end = self._plan().latest_offset(start, unlimited=unlimited)
        if self._progress is not None:
            self._progress.moved(start)
        if self._driver_read is not None and start is not None and end != start:
            self._driver_read.begin((start, end), self._tasks(start, end))
        return end

    @in_one_frame
    def reportLatestOffset(self) -> dict[str, Any] | None:
        return self._plan().report_latest()

    @in_one_frame
    def prepareForTriggerAvailableNow(self) -> None:
        self._plan().prepare_available_now()

    @in_one_frame
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[Any]:
        tasks = self._tasks(start, end)
        rows = self._driver_read and self._driver_read.take((start, end), tasks)
        if rows:
            hand_over(self, rows)
        return tasks

    def _tasks(self, start: dict[str, Any], end: dict[str, Any]) -> list[LogSplit]:
        tasks = split_ranges(
            self._plan().ranges(start, end),
            tasks_min=self._options.min_partitions,
            rows_max=self._options.max_rows_per_task,
            rows_min=self._options.min_rows_per_task,
        )
        token = pool.task_token(self._options)
        return [LogSplit(task, token) for task in tasks]

    def commit(self, end: dict[str, Any]) -> None:
        """Keep nothing: the checkpoint holds the position. PySpark 4.0 and 4.1 bring no start."""
        if self._progress is not None and limit_class("ReadAllAvailable") is None:
            self._progress.moved(end)

    def stop(self) -> None:
        """Do nothing: the process ends after this."""

    # --- executors ----------------------------------------------------------------------------
    def read(self, partition: Any) -> Iterator[pa.RecordBatch]:
        return self._splits.read(partition)
