"""One Spark for a whole test run, and what Spark tests need around it.

Starting a session costs ten seconds and its first micro-batch as many again, so all tests of a run
share one local session; each makes its own topics and checkpoints. Owns the session's
settings, and the small helpers for queries. Imported by tests/spark/conftest.py.
"""

from __future__ import annotations

import os
import sys
import tempfile
import uuid
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["CONF", "environment", "new_session", "run_once", "unique"]

_SHORT_LIVED = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Of a JVM that does not compile for the long run: a third of a short run's time."""
CONF = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.default.parallelism": "2",
    "spark.sql.session.timeZone": "UTC",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "1g",
    "spark.executor.extraJavaOptions": _SHORT_LIVED,
    "spark.log.level": "ERROR",
    "spark.sql.streaming.stopTimeout": "30s",
}


def environment() -> dict[str, str]:
    """For a driver in a process of its own: this interpreter for the workers too."""
    return os.environ | {
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "SPARK_SUBMIT_OPTS": _SHORT_LIVED,
    }


def new_session(**conf: str) -> SparkSession:
    """A classic local session. The caller stops it."""
    os.environ.update(environment())
    from pyspark.sql import SparkSession

    scratch = tempfile.mkdtemp(prefix="quiverlog-spark-")
    # Two threads, and two attempts per task: plain local[2] never runs a failed task again.
    builder = SparkSession.builder.master("local[2,2]").appName("quiverlog-tests")
    settings = CONF | {"spark.sql.warehouse.dir": scratch, "spark.local.dir": scratch} | conf
    for key, value in settings.items():
        builder = builder.config(key, value)
    session: SparkSession = builder.getOrCreate()
    return session


def unique(name: str) -> str:
    """A topic's or query's name that no other test has."""
    return f"{name}-{uuid.uuid4().hex[:8]}"


def run_once(stream: DataFrame, *, fmt: str = "noop", timeout: float = 60.0, **options: Any) -> Any:
    """Run a stream with Trigger.AvailableNow to its end; returns the finished query.

    Raises whatever the query fails with.
    """
    writer = stream.writeStream.format(fmt).trigger(availableNow=True)
    for key, value in options.items():
        writer = writer.option(key, value)
    query = writer.start()
    try:
        assert query.awaitTermination(timeout), f"still running after {timeout} s"
    finally:
        query.stop()
    return query
