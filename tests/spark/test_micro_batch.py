"""Streaming reads on a real Spark, in the order of Spark's KafkaMicroBatchSourceSuite.

Each test names the one of Spark's own cases that it is about, and what that case cannot have.
"""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from pyspark_quiverlog import LagListener, source_lags
from quiverlog.types import TopicPartition
from tests.spark.conftest import TRADES, produce, read, read_stream
from tests.spark.queries import Collected, run_available, wait_for
from tests.support.connector import connections
from tests.support.spark import run_once, unique

pytestmark = pytest.mark.spark
__all__ = ["connections"]


def test_available_now_and_restarts(
    spark: Any, broker: Any, client: Any, topic: Any, tmp_path: Path
) -> None:
    """As Trigger.AvailableNow there: each run takes what was there when it began, once."""
    name = topic()
    produce(client, name, 0, 100)
    sink = Collected()
    for run in range(1, 4):
        run_available(read_stream(spark, broker, name), sink, tmp_path)
        assert sink.ids == list(range(100 * run))
        produce(client, name, 100 * run, 100)


def test_limits_by_rows_and_bytes(
    spark: Any, broker: Any, client: Any, topic: Any, tmp_path: Path
) -> None:
    """As "maxOffsetsPerTrigger"; Kafka's source has no bound in bytes."""
    name = topic()
    produce(client, name, 0, 60, 0)
    produce(client, name, 60, 40, 1)
    sink = Collected()
    stream = read_stream(spark, broker, name, maxOffsetsPerTrigger=30)
    run_available(stream, sink, tmp_path / "rows")
    assert sink.ids == list(range(100))
    assert sink.sizes == [30, 30, 30, 10]
    small = topic(partitions=1)
    for first in range(0, 100, 20):
        produce(client, small, first, 20, 0)
    sink = Collected()
    sizes = client.describe_ranges({TopicPartition(small, 0): (0, 20)})
    one_batch = sizes[small, 0].byte_count
    stream = read_stream(spark, broker, small, maxBytesPerTrigger=2 * one_batch)
    run_available(stream, sink, tmp_path / "bytes")
    assert sink.ids == list(range(100))
    assert sink.sizes == [40, 40, 20]


def test_splits_of_a_stream(
    spark: Any, broker: Any, client: Any, topic: Any, tmp_path: Path
) -> None:
    """As "minPartitions is supported"."""
    name = topic()
    produce(client, name, 0, 100, 0)
    sink = Collected()
    stream = read_stream(spark, broker, name, minPartitions=5, includeMetadata="true")
    run_available(stream, sink, tmp_path)
    assert sink.partitions == [5]
    assert sink.ids == list(range(100))


def test_once_reads_all_there_is_of_the_partitions_assigned(
    spark: Any, broker: Any, client: Any, topic: Any
) -> None:
    """As "assign from earliest offsets", and Trigger.Once there: bounds do not hold for Once."""
    name = topic()
    produce(client, name, 0, 60, 0)
    produce(client, name, 60, 40, 1)
    options = {"subscribe": None, "assign": f'{{"{name}":[1]}}', "maxOffsetsPerTrigger": 30}
    sink = Collected()
    stream = read_stream(spark, broker, name, **options)
    query = stream.writeStream.foreachBatch(sink).trigger(once=True).start()
    try:
        assert query.awaitTermination(60)
    finally:
        query.stop()
    assert sink.ids == list(range(60, 100))
    assert sink.sizes == [40]


def test_processing_time_new_partitions_and_new_topics(
    spark: Any, broker: Any, client: Any, topic: Any, tmp_path: Path
) -> None:
    """As "subscribing topic by pattern from earliest offsets", which adds partitions, and
    "SPARK-22956: currentPartitionOffsets should be set when no new data comes in".

    One running query; whatever appears under its pattern is read, from its first row.
    """
    prefix = unique("grow")
    name = prefix + "-a"
    client.create_topic(name, schema=TRADES, partitions=1)
    produce(client, name, 0, 10)
    stream = read_stream(spark, broker, name, subscribe=None, subscribePattern=prefix + ".*")
    sink = Collected()
    query = (
        stream.writeStream.foreachBatch(sink)
        .option("checkpointLocation", str(tmp_path))
        .trigger(processingTime="0 seconds")
        .start()
    )
    try:
        wait_for(lambda: len(sink.ids) == 10, query)
        produce(client, name, 10, 5)
        wait_for(lambda: len(sink.ids) == 15, query)
        client.alter_topic(name, partitions=3)
        for partition in range(3):
            produce(client, name, 15 + partition * 5, 5, partition)
        wait_for(lambda: len(sink.ids) == 30, query)
        client.create_topic(prefix + "-b", schema=TRADES, partitions=2)
        produce(client, prefix + "-b", 30, 5)
        wait_for(lambda: len(sink.ids) == 35, query)
        batches = len(sink.batches)
        time.sleep(0.5)  # an idle stream runs no batches
        assert len(sink.batches) == batches
        progress = query.lastProgress
        assert progress is not None
        assert '"v": 1' in str(progress["sources"][0]["endOffset"]).replace("'", '"')
    finally:
        query.stop()
    assert sink.ids == list(range(35))


def test_a_schema_that_grows_mid_stream(
    spark: Any, broker: Any, client: Any, topic: Any, tmp_path: Path
) -> None:
    """Kafka's bytes have no schema that could grow. New columns do not disturb a running query; a
    new one sees them, old rows with nulls.
    """
    old = pa.schema([("id", pa.int32()), ("name", pa.string())])
    new = pa.schema([("id", pa.int32()), ("name", pa.string()), ("colour", pa.string())])
    name = topic("grows", schema=old, partitions=1)
    with client.producer(name) as producer:
        producer.send([{"id": 1, "name": "a"}])
    sink = Collected()
    query = read_stream(spark, broker, name).writeStream.foreachBatch(sink).start()
    try:
        wait_for(lambda: sink.ids == [1], query)
        client.alter_topic(name, schema=new)
        with client.producer(name) as producer:
            producer.send([{"id": 2, "name": "b", "colour": "red"}])
        wait_for(lambda: sink.ids == [1, 2], query)
    finally:
        query.stop()
    fresh = read_stream(spark, broker, name)
    assert fresh.schema.simpleString() == "struct<id:int,name:string,colour:string>"
    out = str(tmp_path / "rows")
    run_once(fresh, fmt="parquet", path=out, checkpointLocation=str(tmp_path / "new"))
    found = sorted(tuple(row) for row in spark.read.parquet(out).collect())
    assert found == [(1, "a", None), (2, "b", "red")]


def test_a_column_that_is_widened_stops_the_query_and_a_new_one_reads_it(
    spark: Any, broker: Any, client: Any, topic: Any, tmp_path: Path
) -> None:
    """Of no case of Kafka's: its bytes have no type that could change."""
    name = topic("widens", schema=pa.schema([("id", pa.int32())]), partitions=1)
    with client.producer(name) as producer:
        producer.send([{"id": 1}])
    stream = read_stream(spark, broker, name)
    sink = Collected()
    run_available(stream, sink, tmp_path)
    client.alter_topic(name, schema=pa.schema([("id", pa.int64())]))
    with client.producer(name) as producer:
        producer.send([{"id": 2**40}])
    with pytest.raises(Exception, match="'id' is int64 in topic '" + name):
        run_available(stream, Collected(), tmp_path)
    run_available(read_stream(spark, broker, name), sink, tmp_path)
    assert sink.ids == [1, 2**40]


def test_a_topic_that_joins_with_other_types_is_not_read_as_something_else(
    spark: Any, broker: Any, client: Any
) -> None:
    """As "subscribing topic by pattern from earliest offsets", where the topic that joins has other
    types: rows of Kafka's have none.
    """
    prefix = unique("joins")
    client.create_topic(prefix + "-a", schema=pa.schema([("id", pa.string())]))
    with client.producer(prefix + "-a") as producer:
        producer.send([{"id": "x"}])
    stream = read_stream(spark, broker, "", subscribe=None, subscribePattern=prefix + ".*")
    found: list[str] = []
    query = stream.writeStream.foreachBatch(
        lambda frame, _: found.extend(row.id for row in frame.collect())
    ).start()
    try:
        wait_for(lambda: found == ["x"], query)
        client.create_topic(prefix + "-b", schema=pa.schema([("id", pa.int64())]))
        with client.producer(prefix + "-b") as producer:
            producer.send([{"id": 7}])
        message = f"'id' is int64 in topic '{prefix}-b'.*and string in the query"
        with pytest.raises(Exception, match=message):
            wait_for(lambda: len(found) > 1, query)
    finally:
        query.stop()


def marking_source(place: Path) -> type:
    """quiverlog's source, which leaves a file for each task that reads.

    A class made in a function travels to the workers by value; they cannot import the tests.
    """
    from pyspark_quiverlog import DefaultSource
    from pyspark_quiverlog.stream_reader import LogStreamReader

    folder = str(place)

    class TellingReader(LogStreamReader):
        def read(self, partition: Any) -> Any:
            with open(f"{folder}/{time.monotonic_ns()}", "w"):
                pass
            return super().read(partition)

    class TellingSource(DefaultSource):
        @classmethod
        def name(cls) -> str:
            return "quiverlog-marking"

        def streamReader(self, schema: Any) -> Any:
            return TellingReader(self.options, schema)

    return TellingSource


@pytest.mark.parametrize("rows", [1000, 0])
def test_small_micro_batches_need_no_task(
    spark: Any, broker: Any, client: Any, topic: Any, tmp_path: Path, rows: int
) -> None:
    """Of no case of Kafka's, which has no Python worker that could be spared.

    The rows of a micro-batch may be asked for twice, as foreachBatch allows.
    """
    name, marks = topic(), tmp_path / "marks"
    marks.mkdir()
    produce(client, name, 0, 100)
    spark.dataSource.register(marking_source(marks))
    options = {"bootstrap.servers": broker.bootstrap, "subscribe": name, "driverReadRows": rows}
    stream = spark.readStream.format("quiverlog-marking").options(
        **options, startingOffsets="earliest", maxOffsetsPerTrigger=40
    )
    sink, counts = Collected(), []

    def both(frame: Any, batch_id: int) -> None:
        counts.append(frame.count())
        sink(frame, batch_id)

    run_available(stream.load(), both, tmp_path / "checkpoint")
    assert sink.ids == list(range(100))
    assert counts == sink.sizes == [40, 40, 20]
    assert bool(list(marks.iterdir())) is (rows == 0)


def test_the_lag_of_a_query_is_logged(
    spark: Any, broker: Any, client: Any, topic: Any, tmp_path: Path, caplog: Any
) -> None:
    """As the offsetsBehindLatest in the progress of Kafka's source; Spark takes no metrics from a
    Python source."""
    name = topic(partitions=1)
    produce(client, name, 0, 10)
    listener = LagListener(bootstrap_servers=broker.bootstrap)
    spark.streams.addListener(listener)
    caplog.set_level("INFO", "pyspark_quiverlog.lag")
    try:
        stream = read_stream(spark, broker, name, maxOffsetsPerTrigger=4)
        query = run_available(stream, Collected(), tmp_path)
        assert [lag.total for p in query.recentProgress for lag in source_lags(p)] == [6, 2, 0]
        assert query.lastProgress["sources"][0]["metrics"] == {}
        wait_for(lambda: len(caplog.messages) >= 3, query)
    finally:
        spark.streams.removeListener(listener)
    assert re.search(
        rf"{name}: 6 rows behind in 1 partition \(min 6, average 6.0, max 6\), [1-9]\d* bytes",
        caplog.text,
    )


def test_a_batch_beside_a_stream_stays_as_it_was_planned(
    spark: Any, broker: Any, client: Any, topic: Any
) -> None:
    """As a stream-static join on Kafka's source, whose static side sees new rows.

    Spark plans a Python source once per load(), so a fresh side is loaded in foreachBatch.
    """
    facts, names = topic("facts"), topic("names")
    produce(client, facts, 1, 1)
    produce(client, names, 1, 1)
    static = read(spark, broker, names).selectExpr("id", "k static_k")
    found: dict[str, list[int]] = {"static": [], "fresh": []}

    def take(frame: Any, batch_id: int) -> None:
        found["static"] += [row.id for row in frame.where("static_k is not null").collect()]
        fresh = read(spark, broker, names).select("id")
        found["fresh"] += [row.id for row in frame.join(fresh, "id").collect()]

    stream = read_stream(spark, broker, facts).join(static, "id", "left")
    query = stream.writeStream.foreachBatch(take).start()
    try:
        wait_for(lambda: found["fresh"] == [1], query)
        produce(client, names, 2, 1)
        produce(client, facts, 2, 1)
        wait_for(lambda: found["fresh"] == [1, 2], query)
    finally:
        query.stop()
    assert found["static"] == [1]


def test_a_plan_can_be_read(
    spark: Any, broker: Any, client: Any, topic: Any, capsys: Any, tmp_path: Path
) -> None:
    """As query.explain() of Kafka's source: the scan is named, with its columns."""
    name = topic()
    produce(client, name, 0, 3)
    query = run_available(read_stream(spark, broker, name), Collected(), tmp_path)
    query.explain(True)
    shown = capsys.readouterr().out
    assert re.search(r"StreamingDataSourceV2ScanRelation\[id#\d+L?, .*\] quiverlog", shown)
    assert re.search(r"MicroBatchScan\[id#\d+L?, k#\d+, ", shown)
