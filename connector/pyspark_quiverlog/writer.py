"""`df.write` and `df.writeStream` with `format("quiverlog")`.

The driver checks the schema before any task runs, against the topic where the options name it. A
task takes its rows to a target: it stages them for the driver's commit (`exactly_once`), or appends
them through idempotent producers. That is at least once: a producer's retry stores a batch once,
but what Spark repeats is written again, and `abort()` removes nothing.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from quiverlog.errors import InvalidOption, QuiverlogError

from . import exactly_once, pool, worker_process
from ._compat import (
    HAS_STREAM_ARROW_WRITER,
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
    arrow_from_rows,
    to_arrow_schema,
)
from .exactly_once import Staging, batch_settings, transaction_name
from .options import Use, WriteOptions, parse_write_options
from .refusals import in_one_frame
from .routing import Route, check_write, split_by_route, topic_schema
from .topic_creation import create_missing

if TYPE_CHECKING:
    from quiverlog.client.transactions.questions import StagedAttempt

__all__ = ["LogBatchWriter", "LogStreamWriter", "TaskReport"]

OF_A_RUN: Final = uuid.UUID(int=0)
"""In place of the id of a stream's writer, which Spark makes again for every micro-batch."""

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
    """What one task attempt wrote. `query_id` and `batch_id`: empty and -1 for a batch write.

    `written` at least once, `staged` and `instance` exactly once; `skipped`: rows that an earlier
    run has written.
    """

    query_id: str = ""
    batch_id: int = -1
    partition_id: int = -1
    attempt: int = -1
    written: dict[tuple[str, int], Written] = field(default_factory=dict)
    staged: StagedAttempt | None = None
    instance: bytes = b""
    skipped: int = 0

    @property
    def rows(self) -> int:
        staged = 0 if self.staged is None else self.staged.rows
        return staged + sum(w.rows for w in self.written.values())


class _Writer(worker_process.SentToTasks):
    def __init__(
        self, options: WriteOptions, schema: Any, overwrite: bool, writer_id: uuid.UUID
    ) -> None:
        if overwrite:
            raise InvalidOption(
                'a topic only supports appends: use mode("append") or outputMode("append"). '
                "For complete or update results, write in foreachBatch and mark there what "
                "replaces an earlier row; to start over, `quiverlog topic trim` first."
            )
        self.options = options
        self.schema: pa.Schema = to_arrow_schema(schema)
        self.id = writer_id
        if self.is_exactly_once:
            exactly_once.check_cluster(options)
        self.route = check_write(options, self.schema)

    def __getstate__(self) -> dict[str, Any]:
        # Each micro-batch's writer is pickled anew, with a token that counts.
        options = pool.options_for_tasks(self.options, pool.task_token(self.options))
        return super().__getstate__() | {"options": options}

    @property
    def is_exactly_once(self) -> bool:
        return self.options.delivery_mode == "exactly_once"

    def run(self, batches: Iterator[pa.RecordBatch]) -> TaskReport:
        report = WriteTask(self.options, self.route, self.schema, self.id).run(batches)
        worker_process.end_of_work()
        return report

    def commit(self, messages: list[Any], what: str) -> None:
        # Spark passes None for a task that has failed.
        reports = [one for one in messages if one is not None]
        logger.debug("%s: %d rows", what, sum(one.rows for one in reports))
        if self.is_exactly_once:
            staged = [one.staged for one in reports if one.staged is not None]
            skipped = sum(one.skipped for one in reports)
            instance = next((one.instance for one in reports if one.instance), b"")
            exactly_once.commit(self.options, self.id, staged, instance, skipped, what)
        worker_process.end_of_work()

    def abort(self, messages: list[Any], what: str) -> None:
        reports = [one for one in messages if one is not None]
        if self.is_exactly_once:
            staged = [one.staged for one in reports if one.staged is not None]
            exactly_once.abort(self.options, staged, what)
        elif rows := sum(one.rows for one in reports):
            logger.warning(
                "%s failed after tasks had written %d rows; they stay in the log and are written "
                "again when Spark repeats it (at least once)",
                what,
                rows,
            )


class LogBatchWriter(DataSourceArrowWriter):  # type: ignore[misc]
    def __init__(self, raw: Mapping[str, str], schema: Any, overwrite: bool) -> None:
        options = parse_write_options(raw, Use.BATCH_WRITE)
        self._writer = _Writer(options, schema, overwrite, uuid.uuid4())

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskReport:
        return self._writer.run(iterator)

    @in_one_frame
    def commit(self, messages: list[Any]) -> None:
        self._writer.commit(messages, "the batch write")

    def abort(self, messages: list[Any]) -> None:
        self._writer.abort(messages, "the batch write")


class LogStreamWriter(DataSourceStreamArrowWriter):  # type: ignore[misc]
    """Made again for every micro-batch, and for its commit. A failed write ends the run."""

    def __init__(self, raw: Mapping[str, str], schema: Any, overwrite: bool) -> None:
        options = parse_write_options(raw, Use.STREAM_WRITE)
        self._writer = _Writer(options, schema, overwrite, OF_A_RUN)
        # PySpark 4.0 passes rows, which become Arrow under this schema.
        self._spark_schema = None if HAS_STREAM_ARROW_WRITER else schema

    def write(self, iterator: Iterator[Any]) -> TaskReport:
        if self._spark_schema is not None:
            rows_max = self._writer.options.batch_rows
            iterator = arrow_from_rows(iterator, self._spark_schema, rows_max)
        return self._writer.run(iterator)

    @in_one_frame
    def commit(self, messages: list[Any], batchId: int) -> None:
        self._writer.commit(messages, f"micro-batch {batchId}")

    def abort(self, messages: list[Any], batchId: int) -> None:
        self._writer.abort(messages, f"micro-batch {batchId}")


# --- a task ---------------------------------------------------------------------------------------
class WriteTask:
    """One attempt at one task."""

    def __init__(
        self, options: WriteOptions, route: Route, schema: pa.Schema, writer_id: uuid.UUID
    ) -> None:
        self._options = options
        self._route = route
        self._schema = schema
        self._writer_id = writer_id
        self._routes: dict[str, Route] = {}

    def run(self, batches: Iterator[pa.RecordBatch]) -> TaskReport:
        """Send all rows, wait for all acknowledgements.

        Raises:
            QuiverlogError: why rows were not stored.
        """
        report, target = self._begin()
        rows_sent = 0
        try:
            target.begin(self._route.topic)
            for batch in batches:
                before = rows_sent
                for topic, partition, rows in split_by_route(batch, self._route, self._route_to):
                    target.send(topic, partition, rows)
                    rows_sent += rows.num_rows
                assert rows_sent - before == batch.num_rows, "each row has one topic and partition"
            target.finish(report)
        except BaseException:
            # The next task of this process would inherit rows that are not acknowledged.
            target.drop()
            raise
        assert report.rows + report.skipped == rows_sent, f"{rows_sent} rows, reported: {report}"
        return report

    def _begin(self) -> tuple[TaskReport, Appending | Staging]:
        from pyspark import TaskContext

        context = TaskContext.get()
        report = TaskReport()
        # Spark's is filled inside `foreachBatch`, too.
        local_property = _no_property if context is None else context.getLocalProperty
        if context is not None:
            report.query_id = local_property("sql.streaming.queryId") or ""
            report.batch_id = int(local_property("streaming.sql.batchId") or -1)
            report.partition_id = context.partitionId()
            report.attempt = context.attemptNumber()
        if self._options.delivery_mode == "at_least_once":
            return report, Appending(self._options)
        name = transaction_name(self._options, local_property, self._writer_id)
        report.instance = name.instance
        return report, Staging(self._options, name, self._writer_id)

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


def _no_property(_name: str) -> str | None:
    return None


class Appending:
    """At least once: rows go to their topics, and a repeated task sends them again."""

    def __init__(self, options: WriteOptions) -> None:
        self._producers: dict[str, Any] = {}
        self._not_opened: QuiverlogError | None = None
        self._sent: list[tuple[str, Any]] = []
        self._where = pool.endpoint(options)
        self._settings = {"delivery_timeout": options.delivery_timeout, **batch_settings(options)}

    def begin(self, topic: str | None) -> None:
        """Check the one topic's producer while Spark prepares the first rows."""
        # A task without rows opens no connection, and does not fail.
        if topic is None or not pool.has_producer(self._where, topic, **self._settings):
            return
        try:
            self._producer(topic)
        except QuiverlogError as error:
            self._not_opened = error  # for the first row

    def send(self, topic: str, partition: int | None, rows: pa.RecordBatch) -> None:
        future = self._producer(topic).send(rows, partition=partition)
        self._sent.append((topic, future))

    def finish(self, report: TaskReport) -> None:
        """Wait for all acknowledgements."""
        assert not report.written, "each attempt has a report of its own"
        for producer in self._producers.values():
            producer.flush()
        for topic, future in self._sent:
            _add_results(report, topic, future.result())

    def drop(self) -> None:
        for producer in self._producers.values():
            pool.drop_producer(producer)

    def _producer(self, topic: str) -> Any:
        if self._not_opened is not None:
            raise self._not_opened
        producer = self._producers.get(topic)
        if producer is None:
            producer = pool.producer(self._where, topic, **self._settings)
            self._producers[topic] = producer
        return producer


def _add_results(report: TaskReport, topic: str, results: list[Any]) -> None:
    for result in results:
        assert result.rows > 0
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
