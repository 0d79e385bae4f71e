"""Batch and streaming writes on a real Spark, in the order of Spark's KafkaSinkSuite.

Each test names the one of Spark's own cases that it is about, and what that case cannot have.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.spark.conftest import produce, read, read_stream, stored_ids, trades
from tests.support.spark import run_once, unique

pytestmark = pytest.mark.spark


def test_batch_write_keeps_rows_and_order(spark: Any, broker: Any, client: Any, topic: Any) -> None:
    """As "batch - write to kafka"."""
    name = topic(partitions=1)
    frame = spark.range(50_000).selectExpr(
        "id", "cast(id % 10 as int) k", "id / 4 price", "timestamp_seconds(id) ts"
    )
    frame.coalesce(1).write.format("quiverlog").mode("append").options(
        **{"bootstrap.servers": broker.bootstrap}
    ).save(name)
    batches = list(client.consumer(name, start="earliest"))
    assert len(batches) == 1, "Spark's 10,000 rows at a time are gathered"
    assert batches[0].data.equals(trades(0, 50_000))


def test_a_topic_that_changes_between_writes(
    spark: Any, broker: Any, client: Any, topic: Any
) -> None:
    """Workers keep their producers; a new column or a topic created anew must not confuse them."""
    name = topic(schema=pa.schema([("id", pa.int64())]), partitions=1)
    options = {"bootstrap.servers": broker.bootstrap}

    def write(*columns: str) -> None:
        frame = spark.range(0, 3, numPartitions=2).selectExpr(*columns)
        frame.write.format("quiverlog").mode("append").options(**options).save(name)

    write("id")
    client.alter_topic(name, schema=pa.schema([("id", pa.int64()), ("a", pa.string())]))
    write("id + 3 id", "'x' a")
    rows = [row for b in client.consumer(name, start="earliest") for row in b.to_pylist()]
    assert sorted((row["id"], row["a"]) for row in rows) == [
        *((i, None) for i in range(3)),
        *((i, "x") for i in range(3, 6)),
    ]
    client.delete_topic(name)
    client.create_topic(name, schema=pa.schema([("id", pa.int64()), ("b", pa.int64())]))
    write("id", "id * 2 b")
    rows = [row for b in client.consumer(name, start="earliest") for row in b.to_pylist()]
    assert sorted((row["id"], row["b"]) for row in rows) == [(0, 0), (1, 2), (2, 4)]
    assert sorted(tuple(row) for row in read(spark, broker, name).collect()) == [
        (0, 0),
        (1, 2),
        (2, 4),
    ]


def test_routing_by_columns(spark: Any, broker: Any, client: Any, topic: Any) -> None:
    """As "streaming - write to kafka with topic field" and "batch - partition column and
    partitioner priorities".
    """
    one, two = topic("one"), topic("two")
    frame = spark.range(20).selectExpr(
        "id", f"if(id % 2 = 0, '{one}', '{two}') topic", "cast(id % 4 >= 2 as int) partition"
    )
    frame.write.format("quiverlog").mode("append").options(
        **{"bootstrap.servers": broker.bootstrap}
    ).save()
    for name, parity in ((one, 0), (two, 1)):
        for batch in client.consumer(name, start="earliest"):
            for i in batch.data.column("id").to_pylist():
                assert (i % 2, int(i % 4 >= 2)) == (parity, batch.partition)
        assert stored_ids(client, name) == list(range(parity, 20, 2))


def test_rows_with_equal_keys_share_a_partition(
    spark: Any, broker: Any, client: Any, topic: Any
) -> None:
    """Kafka's sink leaves this to its producer's partitioner; ours must agree with every client."""
    name = topic(partitions=4, key=["k"])
    produce(client, name, 0, 100)
    by_client = {}
    for batch in client.consumer(name, start="earliest"):
        by_client |= dict.fromkeys(batch.data.column("k").to_pylist(), batch.partition)
    assert len(by_client) == 10
    spark.range(100).selectExpr("id", "cast(id % 10 as int) k").write.format("quiverlog").mode(
        "append"
    ).options(**{"bootstrap.servers": broker.bootstrap, "topic": name}).save()
    for batch in client.consumer(name, start="earliest"):
        assert {by_client[k] for k in batch.data.column("k").to_pylist()} == {batch.partition}


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (["id", "'x' colour"], "colour"),
        (["cast(id as string) id"], "'id'"),
    ],
)
def test_a_misfit_is_refused_before_any_task(
    spark: Any, broker: Any, client: Any, topic: Any, columns: list[str], message: str
) -> None:
    """As "write data with bad schema" and "write data with valid schema but wrong types"."""
    name = topic()
    failing = spark.range(3).selectExpr(*columns)
    with pytest.raises(Exception, match=message):
        failing.write.format("quiverlog").mode("append").options(
            **{"bootstrap.servers": broker.bootstrap, "topic": name}
        ).save()
    assert stored_ids(client, name) == []


def test_topic_to_topic(spark: Any, broker: Any, client: Any, topic: Any, tmp_path: Path) -> None:
    """As "streaming - write w/o topic field, with topic option", and its restart."""
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
    """As "batch - unsupported save modes"; Kafka's takes complete and update for streams, and
    appends what it has written before once more.
    """
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
    """As "streaming - write data with bad schema"."""
    source, sink = topic(), topic()
    produce(client, source, 0, 3)
    stream = read_stream(spark, broker, source).selectExpr("id", "'x' colour")
    options = {"bootstrap.servers": broker.bootstrap, "topic": sink}
    with pytest.raises(Exception, match="colour"):
        run_once(stream, fmt="quiverlog", checkpointLocation=str(tmp_path), **options)
    assert stored_ids(client, sink) == []


def test_a_topic_is_made_for_a_stream(
    spark: Any, broker: Any, client: Any, topic: Any, tmp_path: Path
) -> None:
    """As "streaming - write to non-existing topic", which fails there where brokers create none."""
    source, made = topic(), unique("made")
    produce(client, source, 0, 20)
    stream = read_stream(spark, broker, source).selectExpr("id", "k", "ts")
    options = {"bootstrap.servers": broker.bootstrap, "topic": made}
    with pytest.raises(Exception, match="UNKNOWN_TOPIC"):
        run_once(stream, fmt="quiverlog", checkpointLocation=str(tmp_path / "no"), **options)
    options |= {"createTopic": "true", "createTopic.partitions": "2", "createTopic.key": "k"}
    run_once(stream, fmt="quiverlog", checkpointLocation=str(tmp_path / "yes"), **options)
    assert stored_ids(client, made) == list(range(20))
    info = client.metadata([made]).topics[made]
    assert (len(info.partitions), info.key_columns) == (2, ("k",))
    assert read(spark, broker, made).schema.simpleString() == (
        "struct<id:bigint,k:int,ts:timestamp>"
    )


@pytest.mark.parametrize("rows", ["0", "-1"])
def test_rows_come_in_batches_without_a_bound(
    spark: Any, broker: Any, client: Any, topic: Any, rows: str
) -> None:
    """`spark.sql.execution.arrow.maxRecordsPerBatch` of 0 or below means that to Spark. It refuses
    any Python source that is read so, before it asks it: the guide has it.
    """
    key, name = "spark.sql.execution.arrow.maxRecordsPerBatch", topic(partitions=1)
    frame = spark.range(25_000).selectExpr(
        "id", "cast(id % 10 as int) k", "id / 4 price", "timestamp_seconds(id) ts"
    )
    before = spark.conf.get(key)
    spark.conf.set(key, rows)
    try:
        frame.coalesce(1).write.format("quiverlog").mode("append").options(
            **{"bootstrap.servers": broker.bootstrap}
        ).save(name)
        with pytest.raises(Exception, match="batch size should be greater than 0"):
            read(spark, broker, name).count()
    finally:
        spark.conf.set(key, before)
    assert sorted(stored_ids(client, name)) == list(range(25_000))
