"""Streaming reads and writes on a real Spark."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from quiverlog.types import TopicPartition
from tests.spark.conftest import TRADES, produce, read_stream, stored_ids
from tests.support.spark import run_once, unique

pytestmark = pytest.mark.spark


class Collected:
    """A foreachBatch sink that replaces a batch that is run again: what is in it counts."""

    def __init__(self) -> None:
        self.batches: dict[int, list[int]] = {}
        self.partitions: list[int] = []

    def __call__(self, frame: Any, batch_id: int) -> None:
        self.partitions.append(frame.rdd.getNumPartitions())
        self.batches[batch_id] = [row.id for row in frame.collect()]

    @property
    def ids(self) -> list[int]:
        return sorted(i for rows in self.batches.values() for i in rows)

    @property
    def sizes(self) -> list[int]:
        return [len(self.batches[b]) for b in sorted(self.batches)]


def run_available(stream: Any, sink: Collected, checkpoint: Path, timeout: float = 60) -> Any:
    query = (
        stream.writeStream.foreachBatch(sink)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    try:
        assert query.awaitTermination(timeout)
    finally:
        query.stop()
    return query


def wait_for(condition: Callable[[], bool], query: Any, timeout: float = 60) -> None:
    deadline = time.monotonic() + timeout
    while not condition():
        if query.exception() is not None:
            raise query.exception()
        assert time.monotonic() < deadline, "not in time"
        time.sleep(0.02)


def test_available_now_and_restarts(
    spark: Any, broker: Any, client: Any, topic: Any, tmp_path: Path
) -> None:
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
    """One running query; whatever appears under its pattern is read, from its first row."""
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
    """New columns do not disturb a running query; a new one sees them, old rows with nulls."""
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
        message = f"'id' is int64 in topic '{prefix}-b'.*says string"
        with pytest.raises(Exception, match=message):
            wait_for(lambda: len(found) > 1, query)
    finally:
        query.stop()


def test_topic_to_topic(spark: Any, broker: Any, client: Any, topic: Any, tmp_path: Path) -> None:
    source, sink = topic(), topic()
    produce(client, source, 0, 1000)
    stream = read_stream(spark, broker, source).where("id % 2 = 0")
    options = {"bootstrap.servers": broker.bootstrap, "topic": sink}
    run_once(stream, fmt="quiverlog", checkpointLocation=str(tmp_path), **options)
    assert stored_ids(client, sink) == list(range(0, 1000, 2))
    produce(client, source, 1000, 10)
    run_once(stream, fmt="quiverlog", checkpointLocation=str(tmp_path), **options)
    assert stored_ids(client, sink) == list(range(0, 1010, 2))


@pytest.mark.parametrize("mode", ["complete", "update"])
def test_only_append_is_written(
    spark: Any, broker: Any, topic: Any, tmp_path: Path, mode: str
) -> None:
    counts = read_stream(spark, broker, topic()).groupBy("k").count()
    writer = (
        counts.selectExpr("k")
        .writeStream.format("quiverlog")
        .outputMode(mode)
        .options(
            **{
                "bootstrap.servers": broker.bootstrap,
                "topic": topic(),
                "checkpointLocation": str(tmp_path),
            }
        )
    )
    with pytest.raises(Exception, match=r"foreachBatch|does not support Update"):
        writer.start().processAllAvailable()


def test_a_sink_that_does_not_fit_fails_at_its_first_batch(
    spark: Any, broker: Any, client: Any, topic: Any, tmp_path: Path
) -> None:
    source, sink = topic(), topic()
    produce(client, source, 0, 3)
    stream = read_stream(spark, broker, source).selectExpr("id", "'x' colour")
    options = {"bootstrap.servers": broker.bootstrap, "topic": sink}
    with pytest.raises(Exception, match="colour"):
        run_once(stream, fmt="quiverlog", checkpointLocation=str(tmp_path), **options)
    assert stored_ids(client, sink) == []


# --- data loss ------------------------------------------------------------------------------------
def trim(client: Any, name: str) -> None:
    client.delete_records(name, {0: 30})


def recreate(client: Any, name: str) -> None:
    client.delete_topic(name)
    client.create_topic(name, schema=TRADES, partitions=1)
    produce(client, name, 1000, 5)


@pytest.mark.parametrize(
    ("lose", "message", "left"),
    [
        (trim, r"-0: rows \[10, 30\) are no longer kept", [*range(10), *range(30, 40)]),
        (
            recreate,
            r"was created anew: partition 0 from offset 10",
            [*range(10), *range(1000, 1005)],
        ),
    ],
)
def test_lost_rows_fail_the_query_or_are_passed_over(
    spark: Any,
    broker: Any,
    client: Any,
    topic: Any,
    tmp_path: Path,
    lose: Any,
    message: str,
    left: list[int],
) -> None:
    name = topic(partitions=1)
    produce(client, name, 0, 10)
    sink = Collected()
    run_available(read_stream(spark, broker, name), sink, tmp_path)
    produce(client, name, 10, 30)
    lose(client, name)
    with pytest.raises(Exception, match=message):
        run_available(read_stream(spark, broker, name), Collected(), tmp_path)
    run_available(read_stream(spark, broker, name, failOnDataLoss="false"), sink, tmp_path)
    assert sink.ids == left


def test_a_deleted_topic_fails_the_query_or_is_left_out(
    spark: Any, broker: Any, client: Any, tmp_path: Path
) -> None:
    prefix = unique("gone")
    for first, suffix in ((0, "-a"), (100, "-b")):
        client.create_topic(prefix + suffix, schema=TRADES, partitions=1)
        produce(client, prefix + suffix, first, 10)

    def stream(fail: str) -> Any:
        options = {"subscribe": None, "subscribePattern": prefix + ".*", "failOnDataLoss": fail}
        return read_stream(spark, broker, "", **options)

    sink = Collected()
    run_available(stream("true"), sink, tmp_path)
    client.delete_topic(prefix + "-b")
    produce(client, prefix + "-a", 10, 5)
    with pytest.raises(Exception, match=r"-b' .* was deleted: partition 0 from offset 10 on"):
        run_available(stream("true"), Collected(), tmp_path)
    run_available(stream("false"), sink, tmp_path)
    assert sink.ids == [*range(15), *range(100, 110)]


def test_rows_that_go_while_the_query_runs(
    spark: Any, broker: Any, client: Any, topic: Any, tmp_path: Path
) -> None:
    """Trimmed between two batches: the next one's planning notices, and names the whole range."""
    name = topic(partitions=1)
    for first in range(0, 40, 10):
        produce(client, name, first, 10)

    class Trimming(Collected):
        def __call__(self, frame: Any, batch_id: int) -> None:
            super().__call__(frame, batch_id)
            if batch_id == 0:
                client.delete_records(name, {0: 35})

    def stream(fail: str) -> Any:
        return read_stream(spark, broker, name, maxOffsetsPerTrigger=10, failOnDataLoss=fail)

    with pytest.raises(Exception, match=r"-0: rows \[10, 35\) are no longer kept"):
        run_available(stream("true"), Trimming(), tmp_path)
    sink = Collected()
    run_available(stream("false"), sink, tmp_path)
    assert sink.ids == [*range(35, 40)]
