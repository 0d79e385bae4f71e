"""`df.write` and `df.writeStream` with `format("quiverlog")`.

The driver checks the schema before any task runs, against the topic where the options name it; each
task sends through idempotent producers and returns what was acknowledged. Delivery is at least
once: a producer's retry stores a batch once, but a task or micro-batch that Spark repeats is
written again, and `abort()` removes nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from quiverlog.errors import InvalidOption, QuiverlogError

from . import pool, worker_process
from ._compat import (
    HAS_STREAM_ARROW_WRITER,
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
    arrow_from_rows,
    to_arrow_schema,
)
from .options import Use, WriteOptions, parse_write_options
from .routing import Route, check_write, split_by_route, topic_schema
from .topic_creation import create_missing

__all__ = ["LogBatchWriter", "LogStreamWriter", "TaskReport"]

LINGER_S = 60.0
"""Batches are closed by size and at the end of the task before this."""

logger = logging.getLogger("pyspark_quiverlog")


@dataclass
class Written:
    """A task's acknowledged rows in one partition; rows of other tasks may be between them."""

    rows: int
    first_offset: int
    next_offset: int
    durability: str


@dataclass
class TaskReport(WriterCommitMessage):  # type: ignore[misc]
    """What one task attempt wrote. `query_id` and `batch_id`: empty and -1 for a batch write."""

    query_id: str = ""
    batch_id: int = -1
    partition_id: int = -1
    attempt: int = -1
    written: dict[tuple[str, int], Written] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        return sum(w.rows for w in self.written.values())


class _Writer(worker_process.SentToTasks):
    def __init__(self, options: WriteOptions, schema: Any, overwrite: bool) -> None:
        if overwrite:
            raise InvalidOption(
                'a topic only supports appends: use mode("append") or outputMode("append"). '
                "For complete or update results, write in foreachBatch and mark there what "
                "replaces an earlier row; to start over, `quiverlog topic trim` first."
            )
        self.options = options
        self.schema: pa.Schema = to_arrow_schema(schema)
        self.route = check_write(options, self.schema)

    def run(self, batches: Iterator[pa.RecordBatch]) -> TaskReport:
        report = WriteTask(self.options, self.route, self.schema).run(batches)
        worker_process.end_of_work()
        return report


class LogBatchWriter(DataSourceArrowWriter):  # type: ignore[misc]
    def __init__(self, raw: Mapping[str, str], schema: Any, overwrite: bool) -> None:
        self._writer = _Writer(parse_write_options(raw, Use.BATCH_WRITE), schema, overwrite)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskReport:
        return self._writer.run(iterator)

    def commit(self, messages: list[Any]) -> None:
        """Do nothing more: all rows are acknowledged."""
        _finish(messages, "the batch write")

    def abort(self, messages: list[Any]) -> None:
        """Warn that rows of other tasks stay in the log (at least once)."""
        _give_up(messages, "the batch write")


class LogStreamWriter(DataSourceStreamArrowWriter):  # type: ignore[misc]
    """Made again for every micro-batch, and for its commit."""

    def __init__(self, raw: Mapping[str, str], schema: Any, overwrite: bool) -> None:
        self._writer = _Writer(parse_write_options(raw, Use.STREAM_WRITE), schema, overwrite)
        # PySpark 4.0 passes rows, which become Arrow under this schema.
        self._spark_schema = None if HAS_STREAM_ARROW_WRITER else schema

    def write(self, iterator: Iterator[Any]) -> TaskReport:
        if self._spark_schema is not None:
            rows_max = self._writer.options.batch_rows
            iterator = arrow_from_rows(iterator, self._spark_schema, rows_max)
        return self._writer.run(iterator)

    def commit(self, messages: list[Any], batchId: int) -> None:
        """Do nothing more: all rows are acknowledged."""
        _finish(messages, f"micro-batch {batchId}")

    def abort(self, messages: list[Any], batchId: int) -> None:
        """Warn that written rows stay in the log, and Spark runs the batch again."""
        _give_up(messages, f"micro-batch {batchId}")


def _finish(messages: list[Any], what: str) -> None:
    # Spark passes None for a task that has failed.
    logger.debug("%s: %d rows", what, sum(m.rows for m in messages if m is not None))
    worker_process.end_of_work()


def _give_up(messages: list[Any], what: str) -> None:
    rows = sum(m.rows for m in messages if m is not None)
    if rows:
        logger.warning(
            "%s failed after tasks had written %d rows; they stay in the log and are written "
            "again when Spark repeats it (at least once)",
            what,
            rows,
        )


# --- a task ---------------------------------------------------------------------------------------
class WriteTask:
    """One attempt at one task. Keeps what it sent until all of it is acknowledged."""

    def __init__(self, options: WriteOptions, route: Route, schema: pa.Schema) -> None:
        self._options = options
        self._route = route
        self._schema = schema
        self._producers: dict[str, Any] = {}
        self._not_opened: QuiverlogError | None = None
        self._sent: list[tuple[str, Any]] = []
        self._routes: dict[str, Route] = {}
        self._where = pool.endpoint(options)
        self._settings = _producer_settings(options)

    def run(self, batches: Iterator[pa.RecordBatch]) -> TaskReport:
        """Send all rows, wait for all acknowledgements.

        Raises:
            QuiverlogError: why rows were not stored.
        """
        assert not self._sent, "rows of an earlier run would be reported again"
        report = _new_report()
        rows_sent = 0
        self._open_ahead()
        try:
            for batch in batches:
                before = rows_sent
                for topic, partition, rows in split_by_route(batch, self._route, self._route_to):
                    future = self._producer(topic).send(rows, partition=partition)
                    self._sent.append((topic, future))
                    rows_sent += rows.num_rows
                assert rows_sent - before == batch.num_rows, "each row has one topic and partition"
            for producer in self._producers.values():
                producer.flush()
        except BaseException:
            # The next task of this process would inherit rows that are not acknowledged.
            for producer in self._producers.values():
                pool.drop_producer(producer)
            raise
        for topic, future in self._sent:
            _add_results(report, topic, future.result())
        assert report.rows == rows_sent, f"{report.rows} rows of {rows_sent} were acknowledged"
        return report

    def _route_to(self, topic: str) -> Route:
        route = self._route
        known = route if route.topic_column is None else self._routes.get(topic)
        if known is None:
            known = route
            if self._options.create_topic:
                routing = (route.topic_column, route.partition_column)
                create_missing(self._options, topic, self._schema, routing)
            names = () if route.is_partition_named else topic_schema(self._options, topic).names
            if route.partition_column in names:  # the topic's own column is data
                known = replace(route, partition_column=None)
            self._routes[topic] = known
        return known

    def _open_ahead(self) -> None:
        """Check the one topic's producer while Spark prepares the first rows."""
        topic = self._route.topic
        # A task without rows opens no connection, and does not fail.
        if topic is None or not pool.has_producer(self._where, topic, **self._settings):
            return
        try:
            self._producer(topic)
        except QuiverlogError as error:
            self._not_opened = error  # for the first row

    def _producer(self, topic: str) -> Any:
        if self._not_opened is not None:
            raise self._not_opened
        producer = self._producers.get(topic)
        if producer is None:
            producer = pool.producer(self._where, topic, **self._settings)
            self._producers[topic] = producer
        return producer


def _producer_settings(options: WriteOptions) -> dict[str, Any]:
    settings: dict[str, Any] = {
        "batch_rows": options.batch_rows,
        "batch_bytes": options.batch_bytes,
        "linger": LINGER_S,
        "delivery_timeout": options.delivery_timeout,
    }
    if options.compression != "topic_default":
        settings["compression"] = options.compression
    if options.durability != "topic_default":
        settings["durability"] = options.durability
    return settings


def _new_report() -> TaskReport:
    from pyspark import TaskContext

    context = TaskContext.get()
    if context is None:
        return TaskReport()
    return TaskReport(  # local properties: also inside foreachBatch
        query_id=context.getLocalProperty("sql.streaming.queryId") or "",
        batch_id=int(context.getLocalProperty("streaming.sql.batchId") or -1),
        partition_id=context.partitionId(),
        attempt=context.attemptNumber(),
    )


def _add_results(report: TaskReport, topic: str, results: list[Any]) -> None:
    for result in results:
        key = (topic, result.partition)
        known = report.written.get(key)
        if known is None:
            report.written[key] = Written(
                result.rows, result.base_offset, result.next_offset, result.durability.label
            )
        else:
            known.rows += result.rows
            known.first_offset = min(known.first_offset, result.base_offset)
            known.next_offset = max(known.next_offset, result.next_offset)
