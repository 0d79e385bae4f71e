"""Batch reads and writes on a real Spark."""

from __future__ import annotations

import datetime
from typing import Any

import pyarrow as pa
import pytest

from tests.spark.conftest import ids, produce, read, stored_ids, trades
from tests.unit.test_connector_schema import EVERY_TYPE, rows_of_every_type

pytestmark = pytest.mark.spark


def test_typed_columns_and_all_rows(spark: Any, broker: Any, client: Any, topic: Any) -> None:
    name = topic(partitions=3)
    for partition in range(3):
        produce(client, name, partition * 1000, 1000, partition)
    frame = read(spark, broker, name)
    assert frame.schema.simpleString() == ("struct<id:bigint,k:int,price:double,ts:timestamp>")
    assert frame.rdd.getNumPartitions() == 3
    assert ids(frame) == list(range(3000))
    row = frame.where("id = 1234").first()
    assert (row.k, row.price) == (4, 308.5)
    assert row.ts.timestamp() == 1234


def test_every_type_goes_through_spark_and_back(
    spark: Any, broker: Any, client: Any, topic: Any
) -> None:
    source, sink = topic("types", schema=EVERY_TYPE), topic("types", schema=EVERY_TYPE)
    rows = rows_of_every_type()
    with client.producer(source) as producer:
        producer.send(rows, partition=0)
    frame = read(spark, broker, source)
    spark.conf.set("spark.sql.session.timeZone", "Europe/Paris")
    try:
        frame.write.format("quiverlog").mode("append").options(
            **{"bootstrap.servers": broker.bootstrap, "topic": sink}
        ).save()
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
    stored = {
        name: [b.data for b in client.consumer(name, start="earliest")] for name in (source, sink)
    }
    original = pa.Table.from_batches(stored[source]).sort_by("int")
    returned = pa.Table.from_batches(stored[sink]).sort_by("int")
    assert original.num_rows == 2
    assert returned.equals(original)


def test_a_column_of_nulls_alone_does_not_refuse_the_topic(
    spark: Any, broker: Any, client: Any, topic: Any
) -> None:
    schema = pa.schema([("id", pa.int64()), ("later", pa.null()), ("k", pa.int32())])
    name = topic("untyped", schema=schema, partitions=1)
    with client.producer(name) as producer:
        producer.send(
            pa.RecordBatch.from_arrays(
                [pa.array([1, 2]), pa.nulls(2), pa.array([3, 4], pa.int32())], schema=schema
            )
        )
    frame = read(spark, broker, name)
    assert frame.columns == ["id", "k"]
    assert sorted((row.id, row.k) for row in frame.collect()) == [(1, 3), (2, 4)]


def test_projection_by_columns_and_by_schema(
    spark: Any, broker: Any, client: Any, topic: Any
) -> None:
    name = topic()
    produce(client, name, 0, 10)
    frame = read(spark, broker, name, columns="price,id")
    assert frame.columns == ["price", "id"]
    assert ids(frame) == list(range(10))
    options = {"bootstrap.servers": broker.bootstrap, "subscribe": name}
    typed = spark.read.format("quiverlog").options(**options).schema("k bigint, id bigint").load()
    assert typed.columns == ["k", "id"]
    assert typed.where("id = 7").first().k == 7
    with pytest.raises(Exception, match="'colour', which is in none of the topics"):
        spark.read.format("quiverlog").options(**options).schema("colour string").load().collect()
    with pytest.raises(Exception, match="'id' is int64 in topic"):
        spark.read.format("quiverlog").options(**options).schema("id int").load().collect()


def test_not_null_is_taken_only_where_it_is_stored(
    spark: Any, broker: Any, client: Any, topic: Any
) -> None:
    """Spark leaves `is null` out for a NOT NULL column: nulls would be read as values."""
    fields = [pa.field("a", pa.int64()), pa.field("b", pa.int64(), nullable=False)]
    name = topic("nulls", schema=pa.schema(fields))
    with client.producer(name) as producer:
        producer.send([{"a": None, "b": 1}])
    options = {"bootstrap.servers": broker.bootstrap, "subscribe": name}
    reader = spark.read.format("quiverlog").options(**options)
    assert reader.schema("a bigint, b bigint not null").load().where("a is null").count() == 1
    with pytest.raises(Exception, match=f"'a' may hold nulls in topic '{name}'"):
        reader.schema("a bigint not null").load().collect()


def test_metadata_columns(spark: Any, broker: Any, client: Any, topic: Any) -> None:
    name = topic()
    before = datetime.datetime.now(datetime.UTC).replace(tzinfo=None)
    produce(client, name, 0, 5, 0)
    produce(client, name, 5, 5, 1)
    frame = read(
        spark,
        broker,
        name,
        includeMetadata="true",
        startingOffsets=(f'{{"{name}":{{"0":2,"1":-2}}}}'),
    )
    rows = frame.orderBy("_partition", "_offset").collect()
    assert [(r._partition, r._offset, r.id) for r in rows] == [
        *((0, o, o) for o in (2, 3, 4)),
        *((1, o, 5 + o) for o in range(5)),
    ]
    assert {r._topic for r in rows} == {name}
    only = (
        spark.read.format("quiverlog")
        .schema("_offset bigint")
        .options(
            **{"bootstrap.servers": broker.bootstrap, "subscribe": name, "includeMetadata": "true"}
        )
    )
    assert sorted(r._offset for r in only.load().collect()) == sorted([*range(5), *range(5)])
    ages = [(r._timestamp - before).total_seconds() for r in rows]
    assert all(-5 < age < 600 for age in ages)


def test_ranges_by_offset_and_by_time(spark: Any, broker: Any, client: Any, topic: Any) -> None:
    name = topic(partitions=1)
    produce(client, name, 0, 10)
    first_batch = next(iter(client.consumer(name, start="earliest")))
    later_ms = first_batch.timestamp_us // 1000 + 1
    while int(datetime.datetime.now(datetime.UTC).timestamp() * 1000) <= later_ms:
        pass
    produce(client, name, 10, 10)
    assert ids(read(spark, broker, name, startingTimestamp=later_ms)) == list(range(10, 20))
    assert ids(read(spark, broker, name, endingTimestamp=later_ms)) == list(range(10))
    ranged = read(
        spark,
        broker,
        name,
        startingOffsets=f'{{"{name}":{{"0":5}}}}',
        endingOffsets=f'{{"{name}":{{"0":15}}}}',
    )
    assert ids(ranged) == list(range(5, 15))
    with pytest.raises(Exception, match="no row at or after that moment"):
        read(spark, broker, name, startingTimestamp=4_000_000_000_000).collect()
    with pytest.raises(Exception, match="ends at 20, so it has no offset 21"):
        read(spark, broker, name, startingOffsets=f'{{"{name}":{{"0":21}}}}').collect()


def test_splits_and_merges(spark: Any, broker: Any, client: Any, topic: Any) -> None:
    name = topic(partitions=4)
    for partition in range(4):
        produce(client, name, partition * 100, 100, partition)
    everything = list(range(400))
    for options, tasks in (
        ({}, 1),
        ({"minRecordsPerPartition": "0"}, 4),
        ({"minPartitions": "9"}, 9),
        ({"maxRecordsPerPartition": "30"}, 16),
    ):
        frame = read(spark, broker, name, **options)
        assert frame.rdd.getNumPartitions() == tasks, options
        assert ids(frame) == everything


def test_several_topics_share_a_schema(spark: Any, broker: Any, client: Any, topic: Any) -> None:
    one = topic("one", schema=pa.schema([("id", pa.int32()), ("a", pa.string())]))
    two = topic("two", schema=pa.schema([("id", pa.int64()), ("b", pa.string())]))
    for name, extra in ((one, {"a": "x"}), (two, {"b": "y"})):
        with client.producer(name) as producer:
            producer.send([{"id": 1, **extra}])
    frame = read(spark, broker, f"{one},{two}")
    assert frame.schema.simpleString() == "struct<id:bigint,a:string,b:string>"
    assert sorted((r.a or "", r.b or "") for r in frame.collect()) == [("", "y"), ("x", "")]


def test_a_load_is_repeatable_and_a_new_one_is_fresh(
    spark: Any, broker: Any, client: Any, topic: Any
) -> None:
    name = topic()
    produce(client, name, 0, 5)
    frame = read(spark, broker, name)
    assert frame.count() == 5
    produce(client, name, 5, 5)
    assert frame.count() == 5
    assert read(spark, broker, name).count() == 10


def test_an_empty_topic_reads_as_no_rows(spark: Any, broker: Any, topic: Any) -> None:
    assert read(spark, broker, topic()).count() == 0


def test_batch_write_keeps_rows_and_order(spark: Any, broker: Any, client: Any, topic: Any) -> None:
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
    name = topic()
    failing = spark.range(3).selectExpr(*columns)
    with pytest.raises(Exception, match=message):
        failing.write.format("quiverlog").mode("append").options(
            **{"bootstrap.servers": broker.bootstrap, "topic": name}
        ).save()
    assert stored_ids(client, name) == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kafka.bootstrap.servers": "x:1"}, "use `bootstrap.servers`"),
        ({"bootstrap.servers": "x:1"}, "exactly one of `subscribe`"),
        ({"bootstrap.servers": "x:1", "subscribe": "t", "filter": "a > 1"}, "`filter` does not"),
    ],
)
def test_refusals_reach_the_user(spark: Any, options: dict[str, str], message: str) -> None:
    with pytest.raises(Exception, match=message):
        spark.read.format("quiverlog").options(**options).load()


def test_a_broker_that_is_not_there_is_named(spark: Any) -> None:
    with pytest.raises(Exception, match=r"127\.0\.0\.1:1\b"):
        spark.read.format("quiverlog").options(
            **{"bootstrap.servers": "127.0.0.1:1", "subscribe": "t", "connect.timeout": "2s"}
        ).load()


def test_sql_views(spark: Any, broker: Any, client: Any, topic: Any) -> None:
    name = topic()
    produce(client, name, 0, 7)
    spark.sql(
        "CREATE TEMPORARY VIEW trades_view USING quiverlog "
        f"OPTIONS('bootstrap.servers' '{broker.bootstrap}', subscribe '{name}')"
    )
    try:
        assert spark.sql("SELECT sum(id) s FROM trades_view").first().s == 21
    finally:
        spark.sql("DROP VIEW trades_view")


def test_a_catalogue_table_says_what_to_use_instead(
    spark: Any, broker: Any, client: Any, topic: Any
) -> None:
    """Spark 4.3 makes the reader of such a table without its options."""
    name = topic()
    spark.sql(
        "CREATE TABLE trades_table USING quiverlog "
        f"OPTIONS('bootstrap.servers' '{broker.bootstrap}', subscribe '{name}')"
    )
    try:
        with pytest.raises(Exception, match="CREATE TEMPORARY VIEW"):
            spark.sql("SELECT * FROM trades_table").collect()
    finally:
        spark.sql("DROP TABLE trades_table")
