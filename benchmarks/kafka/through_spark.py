"""Spark's Kafka source and sink beside quiverlog's: read, grouped, written, and one row through.

The same rows of four columns in four partitions, which each system's own sink has written. Kafka's
values are JSON (the moment as a number of microseconds: Spark is quicker with it than with a text,
and loses nothing) or Avro. Both sides acknowledge from the page cache: `acks=all` on one broker,
durability `memory`; both sinks write at least once.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from benchmarks.bench_spark_write import TASKS, columns
from benchmarks.kafka.brokers import DEFAULT, Cluster
from benchmarks.kafka.fetch import fetch
from benchmarks.kafka.measure import OURS, Plan, Row, both_clusters, in_turns
from benchmarks.quiver import expect_rows, running, temporary_topic
from benchmarks.rows import SPARK_SCHEMA
from benchmarks.spark import batch_rates, run_stream, session, timed
from benchmarks.spark_settings import MANAGER, as_set
from benchmarks.through_spark import WARMING_ROWS, Side, quiverlog_side, turn

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

PARTITIONS = 4
ROWS_PER_TRIGGER = 2_000_000
TRIGGERS = 3
"""Of a query; the first, in which consumers and interpreters start, is not counted."""
WRITTEN_ROWS = 2_000_000
SINGLES = 160
RATE = 20.0
"""Rows sent a second, one by one."""
JSON_SCHEMA = SPARK_SCHEMA.replace("timestamp", "long")
AVRO_SCHEMA = """{"type": "record", "name": "row", "fields": [
    {"name": "id", "type": "long"}, {"name": "k", "type": "int"},
    {"name": "price", "type": "double"},
    {"name": "ts", "type": {"type": "long", "logicalType": "timestamp-micros"}}]}"""
FORMATS = ("JSON", "Avro")

__all__ = ["one_row", "read", "write"]

Made = Callable[["DataFrame"], "DataFrame"]


def kafka_session() -> SparkSession:
    """The session of all Spark benchmarks, with the connector's JARs."""
    return session(spark__jars=",".join(map(str, fetch("spark"))))


# --- rows -----------------------------------------------------------------------------------------
def made(rows: int) -> DataFrame:
    """Rows that Spark makes in its tasks."""
    return columns(kafka_session().range(0, rows, 1, TASKS), "id")


def encoded(frame: DataFrame, form: str) -> DataFrame:
    """The rows as Kafka's values."""
    from pyspark.sql.avro.functions import to_avro
    from pyspark.sql.functions import struct, to_json

    if form == "JSON":
        numbers = frame.selectExpr("id", "k", "price", "unix_micros(ts) AS ts")
        return numbers.select(to_json(struct("*")).alias("value"))
    return frame.select(to_avro(struct("*"), AVRO_SCHEMA).alias("value"))


def decoded(frame: DataFrame, form: str) -> DataFrame:
    """Kafka's values as typed columns again; key and value as they are for `raw`."""
    from pyspark.sql.avro.functions import from_avro
    from pyspark.sql.functions import col, from_json

    if form == "raw":
        return frame.select("key", "value")
    if form == "Avro":
        return frame.select(from_avro("value", AVRO_SCHEMA).alias("row")).select("row.*")
    row = from_json(col("value").cast("string"), JSON_SCHEMA).alias("row")
    found = frame.select(row).select("row.*")
    return found.selectExpr("id", "k", "price", "timestamp_micros(ts) AS ts")


def kafka_options(cluster: Cluster, clients: Mapping[str, str]) -> dict[str, str]:
    """`clients`: Kafka's own settings of a producer or consumer."""
    named = {f"kafka.{key}": value for key, value in clients.items()}
    return {"kafka.bootstrap.servers": cluster.bootstrap, **named}


def to_kafka(
    cluster: Cluster, topic: str, form: str, rows: int, compression: str = "none"
) -> float:
    """Seconds that a batch write takes."""
    writer = encoded(made(rows), form).write.format("kafka").option("topic", topic)
    producer = {"acks": "all", "compression.type": compression, **cluster.tuning.producer}
    settings = kafka_options(cluster, producer)
    return timed(writer.options(**settings).save)


def to_quiverlog(address: str, topic: str, rows: int) -> float:
    """Seconds that a batch write takes."""
    writer = made(rows).write.format("quiverlog").mode("append")
    options = {"bootstrap.servers": address, "topic": topic, "deliveryMode": "at_least_once"}
    return timed(writer.options(**options).save)


# --- read -----------------------------------------------------------------------------------------
def read(plan: Plan) -> list[Row]:
    """Rows per second of a streaming read: to `noop`, and through a sum by key."""
    spark = kafka_session()
    per_trigger = plan.scaled(ROWS_PER_TRIGGER)
    rows = per_trigger * TRIGGERS
    with (
        running() as (broker, client),
        temporary_topic(client, "rows", partitions=PARTITIONS, durability="memory"),
        both_clusters(1) as clusters,
    ):
        print(f"  writing {rows:,} rows to each side", flush=True)
        to_quiverlog(broker.bootstrap, "rows", rows)
        expect_rows(client, "rows", rows)
        for cluster, form in itertools.product(clusters.values(), FORMATS):
            cluster.create_topic(form, PARTITIONS)
            to_kafka(cluster, form, form, rows)
            expect_kafka(cluster, form, rows)

        def ours(reader: Any) -> DataFrame:
            options = {"bootstrap.servers": broker.bootstrap, "subscribe": "rows"}
            options |= {"startingOffsets": "earliest"}
            frame: DataFrame = reader.format("quiverlog").options(**options).load()
            return frame

        def theirs(reader: Any, cluster: Cluster, form: str) -> DataFrame:
            options = kafka_options(cluster, cluster.tuning.consumer)
            options |= {"subscribe": "JSON" if form == "raw" else form}
            options |= {"startingOffsets": "earliest"}
            return decoded(reader.format("kafka").options(**options).load(), form)

        def stream() -> Any:
            return spark.readStream.option("maxOffsetsPerTrigger", per_trigger)

        wanted = _sums(ours(spark.read))
        for cluster, form in itertools.product(clusters.values(), FORMATS):
            found = _sums(theirs(spark.read, cluster, form))
            assert found == wanted, f"{form} holds {found}, quiverlog {wanted}"

        def sides(form: str, then: Made) -> dict[str, Callable[[], float]]:
            kafka = {
                name: partial(_rate, lambda c=cluster: then(theirs(stream(), c, form)), rows)
                for name, cluster in clusters.items()
            }
            return {OURS: partial(_rate, lambda: then(ours(stream())), rows), **kafka}

        found = []
        for way, then in (("", _as_it_is), (" through groupBy", _summed)):
            for form in (*FORMATS, "raw"):
                if form == "raw" and way:
                    continue  # there is nothing to group by
                kind = "not decoded" if form == "raw" else f"as {form}"
                what = f"Spark streaming read{way}, Kafka's rows {kind}"
                print(f"  {what}", flush=True)
                figures = in_turns(plan.rounds, sides(form, then), warmups=0)
                found.append(Row(what, "rows/s", figures))
    return found


def _as_it_is(frame: DataFrame) -> DataFrame:
    return frame


def _summed(frame: DataFrame) -> DataFrame:
    from pyspark.sql.functions import count, sum

    return frame.groupBy("k").agg(sum("price"), count("id"))


def _sums(frame: DataFrame) -> tuple[object, ...]:
    """Equal where both sides hold the same rows."""
    (row,) = frame.selectExpr(
        "count(id)", "sum(id)", "sum(k)", "sum(price)", "sum(unix_micros(ts) % 1000000)"
    ).collect()
    return tuple(row)


def _rate(frame: Callable[[], DataFrame], rows: int) -> float:
    """Of its triggers, which together read `rows` but for what division by partitions leaves."""
    found = frame()
    writer = found.writeStream.format("noop")
    if "sum(price)" in found.columns:
        writer = writer.outputMode("update")
    progress = run_stream(writer, triggers=TRIGGERS)
    seen = sum(int(p["numInputRows"]) for p in progress)
    assert 0.99 * rows < seen <= rows, f"the query read {seen} rows of {rows}"
    return batch_rates(progress, skip=1)


def expect_kafka(cluster: Cluster, topic: str, rows: int) -> None:
    """What was sent must be there, or the figure means nothing."""
    found = cluster.rows(topic)
    if found != rows:
        raise AssertionError(f"Kafka's {topic} holds {found} rows, {rows} were sent")


# --- write ----------------------------------------------------------------------------------------
def write(plan: Plan) -> list[Row]:
    """Rows per second of a batch write."""
    kafka_session()
    rows = plan.scaled(WRITTEN_ROWS)
    names = (f"written-{number}" for number in itertools.count())

    def ours() -> float:
        name = next(names)
        with temporary_topic(client, name, partitions=PARTITIONS, durability="memory"):
            seconds = to_quiverlog(broker.bootstrap, name, rows)
            expect_rows(client, name, rows)
        return rows / seconds

    def theirs(cluster: Cluster, form: str) -> float:
        name = next(names)
        cluster.create_topic(name, PARTITIONS)
        seconds = to_kafka(cluster, name, form, rows)
        expect_kafka(cluster, name, rows)
        cluster.delete_topic(name)
        return rows / seconds

    found = []
    with running() as (broker, client), both_clusters(1) as clusters:
        for form in FORMATS:
            what = f"Spark batch write, Kafka's rows as {form}"
            print(f"  {what}", flush=True)
            kafka = {name: partial(theirs, cluster, form) for name, cluster in clusters.items()}
            found.append(Row(what, "rows/s", in_turns(plan.rounds, {OURS: ours, **kafka})))
    return found


# --- one row --------------------------------------------------------------------------------------
MANAGERS: dict[str, dict[str, str]] = {"": {}, ", file-system checkpoint manager": MANAGER}


def one_row(plan: Plan) -> list[Row]:
    """Milliseconds of one row after the other, from topic through Spark to topic.

    Kafka's rows are 8 bytes that are never decoded, ours have four typed columns. Kafka's defaults
    (no linger) are the quickest settings that it has for this.
    """
    spark = kafka_session()
    count = WARMING_ROWS + plan.scaled(SINGLES, at_least=40)
    with quiverlog_side(spark) as ours, kafka_side(spark) as theirs:
        sides = {
            (what, name): Side(name, side.send, side.poll, side.start)
            for what in MANAGERS
            for name, side in ((OURS, ours), (DEFAULT.name, theirs))
        }
        first = 0
        for side in (ours, theirs):  # the first turn of each starts a lot
            first = turn(side, WARMING_ROWS + 20, RATE, first)
        for number in range(plan.rounds):
            order = list(sides)[number % len(sides) :] + list(sides)[: number % len(sides)]
            for what, name in order:
                side = sides[what, name]
                with as_set(spark, MANAGERS[what]):
                    first = turn(side, count, RATE, first)
                shown = f"p50 {side.at(50)[-1]:.0f}, p99 {side.at(99)[-1]:.0f} ms"
                print(f"  round {number + 1} of {plan.rounds}: {name}{what}: {shown}", flush=True)
    return [
        Row(
            f"one row, topic to Spark to topic{what}: p{share}",
            "ms",
            {name: sides[what, name].at(share) for name in (OURS, DEFAULT.name)},
            bigger_is_better=False,
        )
        for what in MANAGERS
        for share in (50, 99)
    ]


@contextmanager
def kafka_side(spark: SparkSession) -> Iterator[Side]:
    """A Kafka broker, topics and Spark's own source; rows by confluent-kafka."""
    from confluent_kafka import Consumer, Producer, TopicPartition

    with Cluster(1, DEFAULT) as cluster:
        for topic in ("from", "to"):
            cluster.create_topic(topic, 1)
        common = {"bootstrap.servers": cluster.bootstrap, "log_level": 0}
        producer = Producer(common | {"linger.ms": 0, "acks": "all"})
        consumer = Consumer(common | {"group.id": "benchmark", "auto.offset.reset": "earliest"})
        consumer.assign([TopicPartition("to", 0, 0)])

        def send(number: int) -> None:
            producer.produce("from", value=number.to_bytes(8))
            producer.flush()

        def poll() -> Sequence[int]:
            found = consumer.poll(0.2)
            if found is None or found.error():
                return []
            return [int.from_bytes(found.value())]

        def start(checkpoint: str) -> StreamingQuery:
            options = kafka_options(cluster, {})
            frame = spark.readStream.format("kafka").options(**options, subscribe="from").load()
            writer = frame.select("key", "value").writeStream.format("kafka")
            writer = writer.options(**options, topic="to")
            return writer.option("checkpointLocation", checkpoint).start()

        try:
            yield Side("Kafka", send, poll, start)
        finally:
            consumer.close()
