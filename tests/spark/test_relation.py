"""Batch reads on a real Spark, in the order of Spark's KafkaRelationSuite.

Each test names the one of Spark's own cases that it is about, and what that case cannot have.
"""

from __future__ import annotations

import datetime
from typing import Any

import pyarrow as pa
import pytest

from tests.spark.conftest import ids, produce, read
from tests.support.spark import run_once
from tests.unit.connector.test_schema import EVERY_TYPE, rows_of_every_type

pytestmark = pytest.mark.spark


def test_typed_columns_and_all_rows(spark: Any, broker: Any, client: Any, topic: Any) -> None:
    """As "default starting and ending offsets"; columns are typed where Kafka's are bytes."""
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
    """Of no case of Kafka's, whose keys and values are bytes."""
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
    """As records of Kafka's without a key or a value: what holds no value is no error."""
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
    """Kafka's source has a fixed schema and refuses a user's; ours projects."""
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
    wrong = reader.schema("a bigint not null, b bigint").load()
    for action in (wrong.collect, wrong.isEmpty, wrong.where("a is null or b = 1").count):
        with pytest.raises(Exception, match=f"'a' may hold nulls in topic '{name}'"):
            action()
    assert wrong.where("a is null").count() == 0  # Spark asks no source: the guide has it
    stream = spark.readStream.format("quiverlog").options(**options).schema("a bigint not null")
    with pytest.raises(Exception, match=f"'a' may hold nulls in topic '{name}'"):
        run_once(stream.load().where("a is null"))  # here Spark asks the source all the same


def test_metadata_columns(spark: Any, broker: Any, client: Any, topic: Any) -> None:
    """As "Kafka column types": topic, partition, offset and timestamp."""
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


def test_splits_and_merges(spark: Any, broker: Any, client: Any, topic: Any) -> None:
    """As minPartitions and maxRecordsPerPartition there."""
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
    """As "explicit earliest to latest offsets", of several topics."""
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
    """As "reuse same dataframe in query"."""
    name = topic()
    produce(client, name, 0, 5)
    frame = read(spark, broker, name)
    assert frame.count() == 5
    produce(client, name, 5, 5)
    assert frame.count() == 5
    assert read(spark, broker, name).count() == 10


def test_an_empty_topic_reads_as_no_rows(spark: Any, broker: Any, topic: Any) -> None:
    """As "default starting and ending offsets", of a topic without rows."""
    assert read(spark, broker, topic()).count() == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kafka.bootstrap.servers": "x:1"}, "use `bootstrap.servers`"),
        ({"bootstrap.servers": "x:1"}, "exactly one of `subscribe`"),
        ({"bootstrap.servers": "x:1", "subscribe": "t", "filter": "a > 1"}, "`filter` does not"),
    ],
)
def test_refusals_reach_the_user(spark: Any, options: dict[str, str], message: str) -> None:
    """As "bad batch query options"."""
    with pytest.raises(Exception, match=message):
        spark.read.format("quiverlog").options(**options).load()


def test_a_broker_that_is_not_there_is_named(spark: Any) -> None:
    """Of no case of Kafka's, whose client waits a minute for metadata."""
    with pytest.raises(Exception, match=r"127\.0\.0\.1:1\b"):
        spark.read.format("quiverlog").options(
            **{"bootstrap.servers": "127.0.0.1:1", "subscribe": "t", "connect.timeout": "2s"}
        ).load()


def test_sql_views(spark: Any, broker: Any, client: Any, topic: Any) -> None:
    """Of no case of Kafka's: a view over the source, read by SQL."""
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


def test_a_catalogue_table_is_refused_with_what_to_use_instead(
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
