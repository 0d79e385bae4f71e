"""Rows that the driver hands over with its plan, through functions of PySpark's source process.

The JVM's side of the conversation is played here; tests/spark has a real one.
"""

from __future__ import annotations

import io
import json
import struct
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import datasource_internal
from pyspark.sql.streaming import python_streaming_source_runner as runner
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import LongType, StructType

import quiverlog
from pyspark_quiverlog import DefaultSource, _compat, driver_read
from tests.support.broker import BrokerProcess
from tests.support.connector import connections

pytestmark = pytest.mark.process
__all__ = ["connections"]

SCHEMA = pa.schema([("id", pa.int64())])
SPARK_SCHEMA = StructType().add("id", LongType())


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerProcess]:
    with BrokerProcess() as process:
        yield process


@pytest.fixture(scope="module")
def client(broker: BrokerProcess) -> Iterator[Any]:
    with quiverlog.connect(broker.bootstrap) as connected:
        yield connected


@pytest.fixture
def topic(client: Any, request: pytest.FixtureRequest) -> str:
    name = request.node.name.replace("[", "-").replace("]", "")
    client.create_topic(name, schema=SCHEMA, partitions=2)
    return name


class Query:
    """A streaming query as the JVM asks a reader about it."""

    def __init__(self, broker: BrokerProcess, topic: str, **options: str) -> None:
        self._source = DefaultSource(
            {
                "bootstrap.servers": broker.bootstrap,
                "subscribe": topic,
                "startingoffsets": "earliest",
                **options,
            }
        )
        self.reader = self._source.streamReader(SPARK_SCHEMA)
        self.kind = type(self.reader)
        self.start = self.reader.initialOffset()
        self.plan()

    def next(self) -> tuple[Any, Any]:
        """The next micro-batch that has rows, or the same position again."""
        before = self.start
        self.start = self.reader.latestOffset(before, ReadAllAvailable())
        return before, self.start

    def plan(self) -> tuple[int, list[int] | None]:
        """Number of tasks, and the ids that came with the plan; None: tasks shall read."""
        return self.ask(*self.next())

    def ask(self, start: Any, end: Any) -> tuple[int, list[int] | None]:
        """The same for a micro-batch that is known."""
        question, answer = io.BytesIO(), io.BytesIO()
        for offset in (start, end):
            text = json.dumps(offset).encode()
            question.write(struct.pack("!i", len(text)) + text)
        question.seek(0)
        runner.partitions_func(self.reader, self._source, SPARK_SCHEMA, 10_000, question, answer)
        answer.seek(0)
        tasks = struct.unpack("!i", answer.read(4))[0]
        for _ in range(tasks):
            answer.read(struct.unpack("!i", answer.read(4))[0])
        code = struct.unpack("!i", answer.read(4))[0]
        assert type(self.reader) is self.kind, "it changes its class for one question only"
        if code != runner.NON_EMPTY_PYARROW_RECORD_BATCHES:
            assert code == runner.PREFETCHED_RECORDS_NOT_FOUND
            return tasks, None
        answer.read(4)
        return tasks, pa.ipc.open_stream(answer).read_all().column("id").to_pylist()


def send(client: Any, topic: str, *ids: int, partition: int | None = 0) -> None:
    with client.producer(topic) as producer:
        producer.send([{"id": i} for i in ids], partition=partition)


def test_a_small_micro_batch_comes_with_its_plan(broker: Any, client: Any, topic: str) -> None:
    query = Query(broker, topic)
    send(client, topic, 1, 2)
    send(client, topic, 3, partition=1)
    tasks, ids = query.plan()
    assert (tasks, sorted(ids or ())) == (1, [1, 2, 3])
    send(client, topic, 4)
    assert query.plan() == (1, [4])
    query.reader.commit(query.start)
    assert query.reader.reportLatestOffset() is not None, "a wrapper of PySpark's reports none"


def test_a_replay_goes_to_a_task(broker: Any, client: Any, topic: str) -> None:
    """After a restart nothing has been fetched; and what was taken is not kept for ever."""
    query = Query(broker, topic)
    send(client, topic, 1, 2)
    batch = query.next()
    assert query.ask(*batch) == (1, [1, 2])
    assert query.ask(*batch) == (1, None)
    assert Query(broker, topic).ask(*batch) == (1, None)


@pytest.mark.parametrize(
    "options",
    [
        {"driverreadrows": "0"},
        {"driverreadrows": "1"},
        {"fetchfrom": "follower"},
        {"maxrecordsperpartition": "1"},
    ],
)
def test_what_is_not_small_or_not_wanted_goes_to_tasks(
    broker: Any, client: Any, topic: str, options: dict[str, str]
) -> None:
    query = Query(broker, topic, **options)
    send(client, topic, 1, 2)
    assert query.plan() == (2 if "maxrecordsperpartition" in options else 1, None)


def test_more_bytes_than_the_bound_go_to_a_task(
    broker: Any, client: Any, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = Query(broker, topic)
    for bound, expected in ((16, [1, 2]), (15, None)):
        monkeypatch.setattr(driver_read, "DRIVER_READ_BYTES", bound)
        send(client, topic, 1, 2)
        assert query.plan() == (1, expected)


def test_rows_that_cannot_be_fetched_are_a_tasks_business(
    broker: Any, client: Any, topic: str
) -> None:
    """Trimmed while they were fetched: the driver raises nothing; the task names them, and is
    repeated by Spark's own rules.
    """
    query = Query(broker, topic)
    send(client, topic, 1, 2)
    read = query.reader._driver_read._read

    def trimmed(split: Any) -> Any:
        client.delete_records(topic, {0: 2})
        return read(split)

    query.reader._driver_read._read = trimmed
    assert query.plan() == (1, None)


def test_a_fetch_that_hangs_holds_nothing_up(
    broker: Any, client: Any, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Planning waits a moment for it, once; tasks read until it has ended, then the driver."""
    monkeypatch.setattr(driver_read, "TAKE_SECONDS_MAX", 0.05)
    query = Query(broker, topic)
    reads = query.reader._driver_read
    read, begun, go_on = reads._read, [], threading.Event()

    def hang(split: Any) -> Any:
        begun.append(split)
        assert go_on.wait(30)
        return read(split)

    reads._read = hang
    for number in (1, 2):
        send(client, topic, number)
        assert query.plan() == (1, None)
    go_on.set()
    reads._late.result(30)
    send(client, topic, 3)
    assert query.plan() == (1, [3])
    assert len(begun) == 2, "nothing is put behind a fetch that hangs"


@pytest.mark.parametrize(
    "change",
    [
        lambda patch: patch.setattr("pyspark.version.__version__", "4.9.0"),
        lambda patch: patch.delattr(datasource_internal, "_SimpleStreamReaderWrapper"),
        lambda patch: patch.setattr(
            datasource_internal._SimpleStreamReaderWrapper, "getCache", lambda self, key: None
        ),
        lambda patch: patch.setattr(
            datasource_internal, "_SimpleStreamReaderWrapper", SimpleNamespace
        ),
    ],
    ids=["newer", "missing", "other-parameters", "no-reader"],
)
def test_a_pyspark_that_looks_different_reads_in_tasks(
    broker: Any, client: Any, topic: str, change: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrapper = datasource_internal._SimpleStreamReaderWrapper
    change(monkeypatch)
    monkeypatch.setattr(runner, "_SimpleStreamReaderWrapper", wrapper)
    _compat.rows_wrapper.cache_clear()
    try:
        query = Query(broker, topic)
        send(client, topic, 1)
        assert query.plan() == (1, None)
    finally:
        _compat.rows_wrapper.cache_clear()
