"""What `scripts/pyspark_versions.sh` runs on each PySpark: one line, and 0 if all agreed.

A program and no test, because the tests' own environment has one PySpark. Rows of seven types go
from a batch write through a batch read with metadata columns, a stream from topic to topic under a
bound, the same query again from its checkpoint, and one with Trigger.AvailableNow; what arrives is
compared with what was written. Then a few rows the same ways at a broker that asks for logins.
"""

from __future__ import annotations

import datetime
import decimal
import sys
import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa

import quiverlog
from quiverlog.local.secret_file import write_private
from tests.spark.login_driver import copy
from tests.support.broker import BrokerProcess
from tests.support.secured import ROOT, ROOT_PASSWORD, secured_broker

SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("name", pa.string()),
        ("price", pa.decimal128(12, 2)),
        ("at", pa.timestamp("us", tz="UTC")),
        ("tags", pa.list_(pa.string())),
        ("place", pa.struct([("x", pa.float64()), ("y", pa.float64())])),
        ("marks", pa.map_(pa.string(), pa.int32())),
    ]
)
SQL = (
    "id bigint, name string, price decimal(12,2), at timestamp, tags array<string>, "
    "place struct<x:double,y:double>, marks map<string,int>"
)
ROWS = 60
SECONDS_MAX = 120


def rows(first: int, count: int) -> list[dict[str, Any]]:
    moment = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
    return [
        {
            "id": i,
            "name": f"n{i}" if i % 5 else None,
            "price": decimal.Decimal(i * 100 + 25) / 100,
            "at": moment + datetime.timedelta(microseconds=i),
            "tags": ["a", str(i)],
            "place": {"x": i / 2, "y": -float(i)},
            "marks": {"m": i},
        }
        for i in range(first, first + count)
    ]


def stored(client: Any, topic: str) -> list[dict[str, Any]]:
    """Sorted by id, maps as dictionaries."""
    found = [
        row | {"marks": dict(row["marks"])}
        for batch in client.consumer(topic, start="earliest")
        for row in batch.data.to_pylist()
    ]
    return sorted(found, key=lambda row: int(row["id"]))


def run(stream: Any, options: dict[str, str], available: bool) -> None:
    """Run topic to topic until all that is there has been written and committed.

    Rows can be read before their micro-batch is committed: a query that is stopped then writes them
    once more when it goes on (at least once).
    """
    writer = stream.writeStream.format("quiverlog").options(**options)
    query = (writer.trigger(availableNow=True) if available else writer).start()
    try:
        if available:
            assert query.awaitTermination(SECONDS_MAX)
        else:
            query.processAllAvailable()
    finally:
        query.stop()


def check(spark: Any, broker: BrokerProcess, client: Any, place: Path) -> None:
    """Raise where something differs."""
    address = {"bootstrap.servers": broker.bootstrap}
    for name in ("source", "sink", "now"):
        client.create_topic(name, schema=SCHEMA, partitions=2)
    frame = spark.createDataFrame(rows(0, ROWS), SQL)
    frame.write.format("quiverlog").mode("append").options(**address).save("source")
    assert stored(client, "source") == rows(0, ROWS), "batch write"
    read = spark.read.format("quiverlog").options(**address, includeMetadata="true").load("source")
    assert {r._topic for r in read.collect()} == {"source"}, "metadata columns"
    assert sorted(r.id for r in read.collect()) == list(range(ROWS)), "batch read"
    stream = spark.readStream.format("quiverlog").options(
        **address, subscribe="source", startingOffsets="earliest", maxOffsetsPerTrigger="25"
    )
    options = address | {"topic": "sink", "checkpointLocation": str(place / "sink")}
    run(stream.load(), options, available=False)
    with client.producer("source") as producer:
        producer.send(rows(ROWS, 5))
    run(stream.load(), options, available=False)
    assert stored(client, "sink") == rows(0, ROWS + 5), "stream and restart"
    options = address | {"topic": "now", "checkpointLocation": str(place / "now")}
    run(stream.load(), options, available=True)
    assert stored(client, "now") == rows(0, ROWS + 5), "Trigger.AvailableNow"


def check_logins(spark: Any, place: Path) -> None:
    """By a file with a password, of which tasks get a token, and by a file with a token."""
    password, token, plain = (place / name for name in ("password", "token", "plain.toml"))
    write_private(password, ROOT_PASSWORD)
    plain.write_text("tls = false\n")
    with (
        secured_broker(place) as broker,
        quiverlog.connect(broker.bootstrap, security=ROOT) as client,
    ):
        for name in ("source", "streamed"):
            client.create_topic(name, pa.schema([("id", pa.int64())]))
        write_private(token, client.create_token(3_600).text)
        reached = {"bootstrap.servers": broker.bootstrap, "security.file": str(plain)}
        ways = ({"user": "root", "passwordFile": str(password)}, {"tokenFile": str(token)})
        for number, way in enumerate(ways):
            options = reached | way
            frame = spark.range(number * ROWS, (number + 1) * ROWS)
            frame.write.format("quiverlog").mode("append").options(**options).save("source")
            read = spark.read.format("quiverlog").options(**options).load("source")
            assert read.count() == (number + 1) * ROWS, f"batch read by {[*way]}"
            query = copy(spark, options, place / "login")
            assert query.exception() is None, query.exception()
        found = client.read("streamed").to_arrow().column("id").to_pylist()
        assert sorted(found) == list(range(2 * ROWS)), "a stream that changes its login"
        (root,) = client.list_users("root")
        assert root.token_count > 1, "tasks had tokens"


def main() -> int:
    import pyspark
    from pyspark.sql import SparkSession

    from pyspark_quiverlog import LagListener, _compat, register

    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.log.level", "ERROR")
        .getOrCreate()
    )
    register(spark)
    spark.streams.addListener(LagListener())
    with (
        tempfile.TemporaryDirectory() as place,
        BrokerProcess() as broker,
        quiverlog.connect(broker.bootstrap) as client,
    ):
        check(spark, broker, client, Path(place))
        check_logins(spark, Path(place))
    spark.stop()
    small = "tasks" if _compat.rows_wrapper() is None else "the driver"
    print(f"PySpark {pyspark.__version__}: all rows equal; {small} read small micro-batches")
    return 0


if __name__ == "__main__":
    sys.exit(main())
