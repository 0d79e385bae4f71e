"""`createTopic`: the sink makes a topic from the DataFrame's columns, without Spark."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType

import quiverlog
from pyspark_quiverlog import DefaultSource
from quiverlog.errors import InvalidOption, InvalidReplicationFactor, InvalidSchema, UnknownTopic
from tests.support.broker import BrokerProcess
from tests.support.connector import connections
from tests.support.spark import unique

pytestmark = pytest.mark.process
__all__ = ["connections"]

FIELDS = [StructField("id", LongType(), nullable=False), StructField("name", StringType())]
ROUTING = [StructField("topic", StringType()), StructField("partition", IntegerType())]
PLAIN = StructType(FIELDS)
ROUTED = StructType(FIELDS + ROUTING)


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerProcess]:
    with BrokerProcess() as process:
        yield process


@pytest.fixture(scope="module")
def client(broker: BrokerProcess) -> Iterator[Any]:
    with quiverlog.connect(broker.bootstrap) as connected:
        yield connected


def writer(broker: BrokerProcess, schema: StructType, **options: str) -> Any:
    given = {"bootstrap.servers": broker.bootstrap, "createTopic": "true"} | options
    return DefaultSource(given).writer(schema, False)


def write(target: Any, batch: pa.RecordBatch) -> Any:
    """As Spark does: a task, then the commit. Returns the task's report."""
    report = target.write(iter([batch]))
    target.commit([report])
    return report


def test_a_topic_is_made_with_the_columns_of_the_rows(broker: Any, client: Any) -> None:
    """All may be null, as in a table that Spark makes of a query."""
    name = unique("made")
    options = {"createTopic.partitions": "3", "createTopic.key": "name", "topic": name}
    written = write(writer(broker, PLAIN, **options), rows(1, 2))
    assert written.rows == 2
    assert client.schemas(name).current == pa.schema([("id", pa.int64()), ("name", pa.string())])
    made = client.metadata([name]).topics[name]
    assert (len(made.partitions), made.key_columns) == (3, ("name",))


def test_columns_that_route_are_not_stored(broker: Any, client: Any) -> None:
    names = [unique("routed") for _ in range(2)]
    batch = pa.record_batch(
        {
            "id": pa.array([1, 2, 3]),
            "name": pa.array(["a", "b", "c"]),
            "topic": pa.array([names[0], names[1], names[0]]),
            "partition": pa.array([1, 0, 0], pa.int32()),
        }
    )
    write(writer(broker, ROUTED, **{"createTopic.partitions": "2"}), batch)
    for name, stored in ((names[0], [(1, 1), (0, 3)]), (names[1], [(0, 2)])):
        assert client.schemas(name).current.names == ["id", "name"]
        found = client.consumer(name, start="earliest")
        assert sorted((b.partition, i) for b in found for i in ids(b)) == sorted(stored)


def test_a_topic_that_exists_is_left_as_it_is(broker: Any, client: Any) -> None:
    name = unique("there")
    client.create_topic(name, schema=pa.schema([("id", pa.int64()), ("name", pa.string())]))
    write(writer(broker, PLAIN, topic=name, **{"createTopic.partitions": "5"}), rows(1))
    assert len(client.metadata([name]).topics[name].partitions) == 1


def test_many_may_make_it_at_once(broker: Any, client: Any) -> None:
    """Every task of the first micro-batch finds that there is none."""
    name = unique("raced")
    batch = pa.record_batch({"id": [1], "name": ["a"], "topic": [name], "partition": [0]})
    batch = batch.set_column(3, "partition", pa.array([0], pa.int32()))
    failed: list[BaseException] = []

    def run() -> None:
        try:
            write(writer(broker, ROUTED), batch)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=run) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert failed == []
    assert client.describe_topic(name).rows == 6


def test_without_the_option_nothing_is_made(broker: Any, client: Any) -> None:
    name = unique("unknown")
    with pytest.raises(UnknownTopic):
        writer(broker, PLAIN, topic=name, createTopic="false")
    assert name not in client.metadata([name]).topics


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"createTopic.key": "colour"}, InvalidOption, "no column 'colour'"),
        ({"createTopic.key": "partition"}, InvalidOption, "no column 'partition' to store"),
        ({"createTopic.replicationFactor": "2"}, InvalidReplicationFactor, "2"),
        ({"createTopic.partitions": "0"}, InvalidOption, "createTopic.partitions"),
        ({"createTopic": "false", "createTopic.key": "id"}, InvalidOption, "set `createTopic`"),
    ],
)
def test_what_cannot_be_made_is_refused_by_name(
    broker: Any, client: Any, options: dict[str, str], error: Any, text: str
) -> None:
    name = unique("refused")
    with pytest.raises(error, match=text):
        writer(broker, ROUTED, topic=name, **options)
    assert name not in client.metadata([name]).topics


def test_a_topic_needs_a_column(broker: Any, client: Any) -> None:
    name = unique("bare")
    with pytest.raises(InvalidSchema, match="no columns"):
        writer(broker, StructType().add("topic", StringType()), topic=name)
    assert name not in client.metadata([name]).topics


def rows(*numbers: int) -> pa.RecordBatch:
    return pa.record_batch({"id": list(numbers), "name": [str(n) for n in numbers]})


def ids(batch: Any) -> list[int]:
    found: list[int] = batch.data.column("id").to_pylist()
    return found
