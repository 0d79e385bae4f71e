"""Spark Connect, and discovery without `register`, each in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.spark.conftest import produce, stored_ids
from tests.support.spark import environment

pytestmark = [pytest.mark.spark, pytest.mark.process]
ROOT = Path(__file__).resolve().parents[2]

CONNECT = """
import sys
from pyspark.sql import SparkSession
bootstrap, source, sink, checkpoint = sys.argv[1:]
builder = SparkSession.builder.remote("local[2]")
for key, value in {"spark.ui.enabled": "false", "spark.log.level": "ERROR"}.items():
    builder = builder.config(key, value)
spark = builder.getOrCreate()
import pyspark_quiverlog
pyspark_quiverlog.register(spark)
options = {"bootstrap.servers": bootstrap}
frame = spark.read.format("quiverlog").options(**options).load(source)
print("batch", frame.count(), type(spark).__module__)
stream = (
    spark.readStream.format("quiverlog").options(**options, subscribe=source)
    .option("startingOffsets", "earliest").load()
)
query = (
    stream.writeStream.format("quiverlog").options(**options, topic=sink)
    .option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
)
query.awaitTermination(60)
print("ended", not query.isActive, query.exception())
spark.stop()
"""


@pytest.mark.long
@pytest.mark.timeout(240)
def test_spark_connect(broker: Any, client: Any, topic: Any, tmp_path: Path) -> None:
    source, sink = topic(), topic()
    produce(client, source, 0, 100)
    done = subprocess.run(
        [sys.executable, "-c", CONNECT, broker.bootstrap, source, sink, str(tmp_path)],
        cwd=ROOT,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "batch 100 pyspark.sql.connect.session" in done.stdout
    assert "ended True None" in done.stdout
    assert stored_ids(client, sink) == list(range(100))


def test_spark_finds_the_source_by_itself(spark: Any) -> None:
    """The shared session never registers it: the workers' interpreter (PYSPARK_PYTHON) has it."""
    with pytest.raises(Exception, match=r"`bootstrap\.servers` is required"):
        spark.read.format("quiverlog").load("x")


def test_register_works_on_a_session_that_has_it_already(spark: Any) -> None:
    import pyspark_quiverlog

    pyspark_quiverlog.register(spark)
    with pytest.raises(Exception, match=r"`bootstrap\.servers` is required"):
        spark.read.format("quiverlog").load("x")


def test_a_new_thread_writes_after_register(
    spark: Any, broker: Any, client: Any, topic: Any
) -> None:
    """Spark looks a Python source up in the session of the thread, and a new thread has none."""
    import pyspark_quiverlog

    sink, refused = topic(), []
    frame = spark.range(10, numPartitions=1)

    def write() -> None:
        writer = frame.write.format("quiverlog").mode("append")
        writer.option("bootstrap.servers", broker.bootstrap).save(sink)

    def write_twice() -> None:
        try:
            write()
        except Exception as error:
            refused.append(str(error))
        pyspark_quiverlog.register(spark)
        write()

    with ThreadPoolExecutor(1) as threads:
        threads.submit(write_twice).result()
    assert "DATA_SOURCE_NOT_FOUND" in refused[0]
    assert stored_ids(client, sink) == list(range(10))
