"""One row from topic through Spark to topic: quiverlog's data source beside Spark's Kafka source.

`python -m benchmarks.peers.spark_latency --jars FOLDER` (what belongs into it: README.md here).
Both queries run in one Spark session, in turns, on brokers of their own that run all the while;
`benchmarks/through_spark.py` times a turn.

Kafka's rows are 8 bytes that are not decoded; ours have four typed columns. Both are acknowledged
from the page cache (`acks=all` on one broker; durability `memory`).
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.harness import Comparison, machine, print_table
from benchmarks.peers import kafka
from benchmarks.spark import session, stop_session
from benchmarks.through_spark import WARMING_ROWS, Side, quiverlog_side, turn

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery

BUDGETS = {"p50": 1 / 0.95, "p99": 1 / 0.90}

__all__ = ["main"]


@contextmanager
def kafka_side(spark: SparkSession, jars: Path) -> Iterator[Side]:
    """A Kafka broker, topics and Spark's own source; rows by confluent-kafka."""
    from confluent_kafka import Consumer, Producer, TopicPartition
    from confluent_kafka.admin import AdminClient, NewTopic

    with kafka.running(jars) as address:
        common = {"bootstrap.servers": address, "log_level": 0}
        wanted = [NewTopic(name, 1, 1) for name in ("from", "to")]
        admin = AdminClient(common)  # kept: its futures fail when it is collected
        for future in admin.create_topics(wanted).values():
            future.result(30)
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
            servers = {"kafka.bootstrap.servers": address}
            frame = spark.readStream.format("kafka").options(**servers, subscribe="from").load()
            writer = frame.select("key", "value").writeStream.format("kafka")
            writer = writer.options(**servers, topic="to")
            return writer.option("checkpointLocation", checkpoint).start()

        try:
            yield Side("Kafka", send, poll, start)
        finally:
            consumer.close()


def compared(ours: Side, theirs: Side) -> list[Comparison]:
    """p50 and p99 of each round, and of a trigger's time for information."""
    result = [
        Comparison(
            f"one row, topic to Spark to topic: {name}, against Spark's Kafka source",
            "ms",
            ours.at(share),
            theirs.at(share),
            budget=BUDGETS[name],
            bigger_is_better=False,
        )
        for name, share in (("p50", 50), ("p99", 99))
    ]
    triggers = Comparison(
        "its trigger, median",
        "ms",
        [statistics.median(ours.triggers)],
        [statistics.median(theirs.triggers)],
        budget=None,
        bigger_is_better=False,
    )
    return [*result, triggers]


def _most(limit: float) -> Callable[[str], float]:
    def bounded(text: str) -> float:
        value = float(text)
        if not 0 < value <= limit:
            raise argparse.ArgumentTypeError(f"above 0, at most {limit:.0f}")
        return value

    return bounded


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers.spark_latency")
    parser.add_argument("--jars", type=Path, required=True, help="folder with broker/ and spark/")
    parser.add_argument("--rounds", type=int, default=3, choices=range(1, 21), metavar="1..20")
    parser.add_argument("--seconds", type=_most(120.0), default=10.0, help="a turn (default 10)")
    parser.add_argument(
        "--rate", type=_most(100.0), default=20.0, help="rows a second (default 20)"
    )
    parser.add_argument("--output", type=Path, help="where the JSON goes")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print; 0 when both budgets are met."""
    options = arguments(argv)
    rows = WARMING_ROWS + max(100, int(options.seconds * options.rate))
    spark = session(spark__jars=",".join(kafka.connector_jars(options.jars)))
    with quiverlog_side(spark) as ours, kafka_side(spark, options.jars) as theirs:
        sides = [ours, theirs]
        first = 0
        for number in range(-1, options.rounds):
            for side in sides if number % 2 else reversed(sides):
                count = WARMING_ROWS + 20 if number < 0 else rows
                first = turn(side, count, options.rate, first)
                if number < 0:
                    side.latencies.clear()
                    side.triggers.clear()
                else:
                    p50, p99 = side.at(50)[-1], side.at(99)[-1]
                    print(f"{side.name}: p50 {p50:.0f} ms, p99 {p99:.0f} ms", flush=True)
    stop_session()
    comparisons = compared(ours, theirs)
    print_table(comparisons)
    if options.output is not None:
        found = {side.name: side.latencies for side in sides}
        options.output.write_text(json.dumps({"machine": machine(), "latencies_ms": found}))
    return 0 if all(c.is_met for c in comparisons) else 1


if __name__ == "__main__":
    raise SystemExit(main())
