"""Spark batch and streaming write, against a Python Arrow sink that drops its input.

That is at least once; `bench_exactly_once` measures the sink's default against it.
The same rows, made by Spark itself in 4 tasks (no Python source beside the sink that is measured).
After each run of ours the topic's offsets must have grown by exactly these rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.harness import Comparison, Settings, interleave
from benchmarks.quiver import running, stored_rows, temporary_topic
from benchmarks.spark import batch_rates, run_stream, session, timed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from quiverlog.client.client import Client

ROWS = 5_000_000
ROWS_PER_TRIGGER = 2_000_000
TRIGGERS = 5
TASKS = 4
ROUNDS_MAX = 3
COLUMNS = (
    "{0} AS id",
    "cast({0} % 1000 AS int) AS k",
    "{0} * 0.25D AS price",
    "timestamp_micros(1700000000000000 + {0}) AS ts",
)


def run(settings: Settings) -> list[Comparison]:
    rounds = min(settings.rounds, ROUNDS_MAX)
    with running() as (broker, client), temporary_topic(client, "written", partitions=4):
        sink = sink_options(broker.bootstrap) | {"deliveryMode": "at_least_once"}
        batch_rows = settings.scaled(ROWS)
        trigger_rows = settings.scaled(ROWS_PER_TRIGGER)
        batch = interleave(
            rounds,
            lambda: batch_write(batch_rows, "quiverlog", sink, client),
            lambda: batch_write(batch_rows, "bare_sink", {}, None),
            warmups=2,
        )
        stream = interleave(
            rounds,
            lambda: stream_write(trigger_rows, "quiverlog", sink, client),
            lambda: stream_write(trigger_rows, "bare_sink", {}, None),
        )
    return [
        Comparison(name, "rows/s", measured.ours, measured.baseline, budget=0.8, goal=0.9)
        for name, measured in (("Spark batch write", batch), ("Spark streaming write", stream))
    ]


def sink_options(bootstrap: str) -> dict[str, str]:
    return {"bootstrap.servers": bootstrap, "topic": "written"}


def batch_write(rows: int, sink: str, options: dict[str, str], client: Client | None) -> float:
    frame = columns(session().range(0, rows, 1, TASKS), "id")
    writer = frame.write.format(sink).options(**options).mode("append")
    before = _stored(client)
    seconds = timed(writer.save)
    _check(client, before + rows)
    return rows / seconds


def stream_write(rows: int, sink: str, options: dict[str, str], client: Client | None) -> float:
    source = (
        session()
        .readStream.format("rate-micro-batch")
        .options(rowsPerBatch=rows, numPartitions=TASKS)
        .load()
    )
    writer = columns(source, "value").writeStream.format(sink).options(**options)
    before = _stored(client)
    progress = run_stream(writer, triggers=TRIGGERS)
    if client is not None and _stored(client) - before < len(progress) * rows:
        raise AssertionError("rows of finished triggers are missing from the topic")
    return batch_rates(progress, skip=1)


def columns(frame: DataFrame, counter: str) -> DataFrame:
    return frame.selectExpr(*(column.format(counter) for column in COLUMNS))


def _stored(client: Client | None) -> int:
    return 0 if client is None else stored_rows(client, "written")


def _check(client: Client | None, expected: int) -> None:
    if client is not None and _stored(client) != expected:
        raise AssertionError(f"the topic holds {_stored(client)} rows, not {expected}")
