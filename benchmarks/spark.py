"""One Spark session for all Spark benchmarks, and how a streaming query is timed.

Owns the session's settings, and that ours and the bare sources have Python workers of their own.
A stream's speed is taken from the progress that Spark itself reports: rows of a trigger over the
trigger's whole time (offsets, planning, write-ahead log, tasks, commit). The first triggers of a
query start interpreters and are left out, on both sides alike.
"""

from __future__ import annotations

import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any

from benchmarks.baselines.process import REPOSITORY

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

QUERY_SECONDS_MAX = 120
BARE_WORKERS = "QUIVERLOG_BENCH_BARE"
"""In the environment of the workers of the bare sources and of no others."""

__all__ = ["batch_rates", "run_stream", "session", "stop_session", "timed", "trigger_ms"]


@cache
def session(**conf: str) -> SparkSession:
    """`local[2]`, no UI, ours and the bare sources registered. `conf`: more settings, with `__` for
    each dot of their names."""
    # Workers import the bare sources by name, and the connector from here, not one installed.
    folders = (REPOSITORY, REPOSITORY / "connector", REPOSITORY / "broker")
    os.environ["PYTHONPATH"] = os.pathsep.join(map(str, folders))
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    from pyspark import accumulators
    from pyspark.sql import SparkSession

    from benchmarks.baselines.spark_sources import BareSink, BareSource

    # A query that is stopped between two triggers takes its workers with it; PySpark's accumulator
    # server prints a stack trace for each, which means nothing.
    accumulators.AccumulatorTCPServer.handle_error = lambda *_: None
    builder = (
        SparkSession.builder.master("local[2]")
        .appName("quiverlog benchmarks")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.memory", "2g")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.streaming.numRecentProgressUpdates", "1000")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.log.level", "OFF")  # what fails a query is raised here
    )
    for key, value in conf.items():
        builder = builder.config(key.replace("__", "."), value)
    spark: SparkSession = builder.getOrCreate()
    # Spark keeps workers apart by the environment that a function was registered with. What ours
    # freezes in a worker must not serve the bare ones, whose trigger is that of a source without.
    environment = spark.sparkContext.environment
    environment[BARE_WORKERS] = "1"
    for source in (BareSource, BareSink):
        spark.dataSource.register(source)
    del environment[BARE_WORKERS]
    import pyspark_quiverlog

    pyspark_quiverlog.register(spark)
    return spark


def stop_session() -> None:
    """End the JVM if there is one, so that nothing is left to fail while Python shuts down."""
    if session.cache_info().currsize:
        from pyspark.sql import SparkSession

        found = SparkSession.getActiveSession()
        if found is not None:
            found.stop()
        session.cache_clear()


def run_stream(
    writer: DataStreamWriter, *, triggers: int, rows: int | None = None
) -> list[dict[str, Any]]:
    """Start the query, let it finish (`rows`: check that it read this many) or stop it after
    `triggers` triggers that had rows. Returns the progress of each trigger that had rows."""
    checkpoint = tempfile.mkdtemp(prefix="quiverlog-bench-")
    query = writer.option("checkpointLocation", checkpoint).start()
    try:
        progress = _wait(query, triggers)
    finally:
        query.stop()
        shutil.rmtree(checkpoint, ignore_errors=True)
    seen = sum(int(p["numInputRows"]) for p in progress)
    if rows is not None and seen != rows:
        raise AssertionError(f"the query read {seen} rows, {rows} were expected")
    return progress


def _wait(query: StreamingQuery, triggers: int) -> list[dict[str, Any]]:
    deadline = time.monotonic() + QUERY_SECONDS_MAX
    while time.monotonic() < deadline:
        ended = query.awaitTermination(0.1)  # raises what failed the query
        progress = [p for p in query.recentProgress if p["numInputRows"] > 0]
        if ended or len(progress) >= triggers:
            return progress
    raise TimeoutError(f"the query did not make {triggers} triggers in {QUERY_SECONDS_MAX} s")


def trigger_ms(progress: list[dict[str, Any]], skip: int) -> float:
    """Median whole time of a trigger, in milliseconds."""
    return statistics.median(float(p["durationMs"]["triggerExecution"]) for p in progress[skip:])


def batch_rates(progress: list[dict[str, Any]], skip: int) -> float:
    """Median rows per second over the triggers after the first `skip`."""
    return statistics.median(
        int(p["numInputRows"]) * 1_000 / p["durationMs"]["triggerExecution"]
        for p in progress[skip:]
    )


def timed(action: Callable[[], object]) -> float:
    """Seconds that `action` takes."""
    began = time.perf_counter()
    action()
    return time.perf_counter() - began
