"""A Spark task imports what it needs, and pandas is not among it.

pandas takes a third of a second of a worker's first task and 40 MB of each worker, and PySpark's
collection after every task walks over it.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pyarrow as pa
import pytest

import quiverlog
from tests.support.broker import BrokerProcess

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])

READ = """
import sys
from pyspark.sql.types import *
from pyspark_quiverlog.options import Use, parse_read_options
from pyspark_quiverlog.planning.ranges import Range
from pyspark_quiverlog.reader import LogSplit, SplitReader
address, topic_id, metadata = sys.argv[1:]
schema = StructType().add("id", LongType()).add("name", StringType())
if metadata == "true":
    schema = schema.add("_topic", StringType()).add("_partition", IntegerType())
    schema = schema.add("_offset", LongType()).add("_timestamp", TimestampType())
raw = {"bootstrap.servers": address, "subscribe": "t", "includemetadata": metadata}
reader = SplitReader(parse_read_options(raw, Use.BATCH_READ), schema)
rows = [b for b in reader.read(LogSplit([Range("t", topic_id, 0, 0, 10, -1)]))]
assert sum(b.num_rows for b in rows) == 10, rows
print(*sys.modules)
"""
WRITE = """
import sys
import pyarrow as pa
from pyspark.sql.types import *
from pyspark_quiverlog import DefaultSource
address, topic, mode = sys.argv[1:]
schema = StructType().add("id", LongType()).add("name", StringType())
options = {"bootstrap.servers": address, "topic": topic, "deliveryMode": mode}
writer = DefaultSource(options).writer(schema, False)
names = pa.arange(0, 5).cast(pa.string())
rows = pa.RecordBatch.from_arrays([pa.arange(0, 5), names], names=["id", "name"])
report = writer.write(iter([rows]))
assert report.rows == 5
writer.commit([report])
print(*sys.modules)
"""


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerProcess]:
    with BrokerProcess() as process, quiverlog.connect(process.bootstrap) as client:
        client.create_topic("t", schema=SCHEMA, partitions=1)
        client.create_topic("keyed", schema=SCHEMA, partitions=3, key=["name", "id"])
        client.create_topic("unkeyed", schema=SCHEMA, partitions=3)
        with client.producer("t") as producer:
            producer.send([{"id": i, "name": str(i)} for i in range(10)])
        yield process


def modules_of(code: str, *arguments: str) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return {name.partition(".")[0] for name in done.stdout.split()}


@pytest.mark.parametrize("metadata", ["false", "true"])
def test_a_read_task(broker: BrokerProcess, metadata: str) -> None:
    with quiverlog.connect(broker.bootstrap) as client:
        topic_id = client.metadata(["t"]).topics["t"].topic_id.hex()
    loaded = modules_of(READ, broker.bootstrap, topic_id, metadata)
    assert "pyspark_quiverlog" in loaded
    assert "pandas" not in loaded


@pytest.mark.parametrize(
    ("topic", "mode"),
    [
        ("t", "exactly_once"),
        ("keyed", "at_least_once"),
        ("unkeyed", "exactly_once"),
        pytest.param("t", "at_least_once", marks=pytest.mark.long),
        pytest.param("keyed", "exactly_once", marks=pytest.mark.long),
        pytest.param("unkeyed", "at_least_once", marks=pytest.mark.long),
    ],
)
def test_the_planning_of_a_write_and_its_task(broker: BrokerProcess, topic: str, mode: str) -> None:
    """PySpark itself imports pandas after our part of a writing task, to send back its report."""
    loaded = modules_of(WRITE, broker.bootstrap, topic, mode)
    assert "pyspark_quiverlog" in loaded
    assert "pandas" not in loaded
