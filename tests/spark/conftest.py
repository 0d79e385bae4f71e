"""One Spark session and one broker for all Spark tests of a run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import quiverlog
from tests.support.broker import BrokerProcess
from tests.support.spark import new_session, unique

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TRADES = pa.schema(
    [
        pa.field("id", pa.int64()),
        pa.field("k", pa.int32()),
        pa.field("price", pa.float64()),
        pa.field("ts", pa.timestamp("us", tz="UTC")),
    ]
)


@pytest.fixture(scope="session")
def broker() -> Iterator[BrokerProcess]:
    with BrokerProcess() as process:
        yield process


@pytest.fixture(scope="session")
def client(broker: BrokerProcess) -> Iterator[Any]:
    with quiverlog.connect(broker.bootstrap) as connected:
        yield connected


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    session = new_session()
    yield session
    session.stop()


@pytest.fixture
def topic(client: Any) -> Callable[..., str]:
    """Create a topic with a name of its own: `topic("flights", schema=..., partitions=2)`."""

    def create(name: str = "trades", **kwargs: Any) -> str:
        full_name = unique(name)
        client.create_topic(full_name, **({"schema": TRADES, "partitions": 2} | kwargs))
        return full_name

    return create


def trades(first: int, count: int) -> pa.RecordBatch:
    """Rows of `TRADES` with ids from `first` on."""
    ids = pa.array(range(first, first + count), pa.int64())
    return pa.RecordBatch.from_arrays(
        [
            ids,
            pa.array([i % 10 for i in range(first, first + count)], pa.int32()),
            pa.array([i / 4 for i in range(first, first + count)], pa.float64()),
            pa.array([i * 1_000_000 for i in range(first, first + count)], TRADES.field("ts").type),
        ],
        schema=TRADES,
    )


def produce(client: Any, topic: str, first: int, count: int, partition: int | None = None) -> None:
    """Append trades and wait until they are acknowledged."""
    with client.producer(topic) as producer:
        producer.send(trades(first, count), partition=partition)


def read(spark: Any, broker: BrokerProcess, topic: str, **options: Any) -> Any:
    """A batch read."""
    reader = spark.read.format("quiverlog").option("bootstrap.servers", broker.bootstrap)
    return reader.options(**({"subscribe": topic} | options)).load()


def read_stream(spark: Any, broker: BrokerProcess, topic: str, **options: Any) -> Any:
    """A streaming read from the earliest row by default."""
    reader = spark.readStream.format("quiverlog").option("bootstrap.servers", broker.bootstrap)
    settings = {"subscribe": topic, "startingOffsets": "earliest"} | options
    return reader.options(**{k: v for k, v in settings.items() if v is not None}).load()


def ids(frame: Any) -> list[int]:
    """The ids of a DataFrame of trades, sorted."""
    return sorted(row.id for row in frame.select("id").collect())


def stored_ids(client: Any, topic: str) -> list[int]:
    """The ids in a topic, sorted, by the Python client."""
    found = [b.data.column("id").to_pylist() for b in client.consumer(topic, start="earliest")]
    return sorted(i for part in found for i in part)
