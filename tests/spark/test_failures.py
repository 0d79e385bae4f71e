"""What a running system does to Spark: dying workers, idle connections, broken brokers.

A broker of its own, which closes connections that rest and promises `memory` only.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import quiverlog
from tests.spark.conftest import TRADES, ids, produce, read, read_stream
from tests.spark.queries import Collected, run_available, wait_for
from tests.support.broker import BrokerProcess
from tests.support.spark import unique

pytestmark = [pytest.mark.spark, pytest.mark.process]

IDLE_MS = 1000


@pytest.fixture(scope="module")
def frail() -> Iterator[BrokerProcess]:
    config = {"connections.idle.ms": IDLE_MS, "topic.defaults.durability": "memory"}
    with BrokerProcess(config=config) as process:
        yield process


@pytest.fixture
def client(frail: BrokerProcess) -> Iterator[Any]:
    with quiverlog.connect(frail.bootstrap) as connected:
        yield connected


@pytest.fixture
def name(client: Any) -> str:
    full_name = unique("frail")
    client.create_topic(full_name, schema=TRADES, partitions=1)
    return full_name


def dying_source(marks: Path) -> type:
    """quiverlog's source, whose workers are killed once per task after their first batch.

    A class made in a function travels to the workers by value; they cannot import the tests.
    """
    from pyspark_quiverlog import DefaultSource
    from pyspark_quiverlog.batch_reader import LogBatchReader

    place = str(marks)

    class DyingReader(LogBatchReader):
        def read(self, partition: Any) -> Iterator[Any]:
            mark = f"{place}/{partition.ranges[0].start}"
            for batch in super().read(partition):
                yield batch
                if not os.path.exists(mark):
                    with open(mark, "w") as file:
                        file.write(str(os.getpid()))
                    os.kill(os.getpid(), signal.SIGKILL)

    class DyingSource(DefaultSource):
        @classmethod
        def name(cls) -> str:
            return "quiverlog-dying"

        def reader(self, schema: Any) -> Any:
            return DyingReader(self.options, schema)

    return DyingSource


def test_a_killed_worker_costs_a_retry_and_no_row(
    spark: Any, frail: Any, client: Any, name: str, tmp_path: Path
) -> None:
    """Each of two tasks loses its worker (SIGKILL) between two batches; Spark runs it again."""
    rows = 400_000  # two batches of 100,000 for each task
    for first in range(0, rows, 100_000):
        produce(client, name, first, 100_000)
    spark.dataSource.register(dying_source(tmp_path))
    options = {"bootstrap.servers": frail.bootstrap, "subscribe": name, "minPartitions": "2"}
    frame = spark.read.format("quiverlog-dying").options(**options).load()
    assert frame.rdd.getNumPartitions() == 2
    found = frame.selectExpr("count(*) n", "count(distinct id) ids", "sum(id) total").first()
    assert (found.n, found.ids, found.total) == (rows, rows, rows * (rows - 1) // 2)
    dead = {int(mark.read_text()) for mark in tmp_path.iterdir()}
    assert len(dead) == 2
    assert not any(Path(f"/proc/{pid}/cmdline").exists() for pid in dead)


def test_workers_find_a_broker_again_that_hung_up_or_was_restarted(
    spark: Any, frail: Any, client: Any, name: str, tmp_path: Path
) -> None:
    """One query; between its micro-batches the broker closes idle connections, stops, crashes."""
    sink = Collected()
    query = (
        read_stream(spark, frail, name)
        .writeStream.foreachBatch(sink)
        .option("checkpointLocation", str(tmp_path))
        .start()
    )
    try:
        for step in range(4):
            produce(client, name, step * 10, 10)
            wait_for(lambda step=step: len(sink.ids) >= (step + 1) * 10, query)
            if step == 0:
                wait_for(lambda: "idle" in frail.log_text, query)
            elif step < 3:
                frail.restart(kill=step == 2)
        assert sink.ids == list(range(40))
    finally:
        query.stop()


def test_a_log_that_lost_its_end_is_noticed(
    spark: Any, frail: Any, client: Any, name: str, tmp_path: Path
) -> None:
    """The last of three batches never reached the disk, and other rows took its offsets."""
    for first in (0, 10):
        produce(client, name, first, 10)
    (segment,) = frail.data_dir.glob(f"**/{name}-0/*.log")
    kept = segment.stat().st_size
    produce(client, name, 20, 10)
    sink = Collected()
    run_available(read_stream(spark, frail, name), sink, tmp_path)
    assert sink.ids == list(range(30))
    frail.kill()
    os.truncate(segment, kept)
    frail.start()
    produce(client, name, 100, 20)
    with pytest.raises(Exception, match=r"-0: rows \[20, 30\) were read and have been truncated"):
        run_available(read_stream(spark, frail, name), Collected(), tmp_path)
    run_available(read_stream(spark, frail, name, failOnDataLoss="false"), sink, tmp_path)
    assert sink.ids == [*range(30), *range(100, 120)]
    assert ids(read(spark, frail, name)) == [*range(20), *range(100, 120)]
