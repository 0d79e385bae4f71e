"""What the sink refuses in the driver, and how rows find their topic and partition."""

from __future__ import annotations

import pickle
import uuid
from typing import Any

import pyarrow as pa
import pytest

from pyspark_quiverlog import pool, routing, writer
from pyspark_quiverlog._compat import arrow_from_rows
from pyspark_quiverlog.options import Use, WriteOptions, parse_write_options
from pyspark_quiverlog.routing import Route, split_by_route
from pyspark_quiverlog.writer import TaskReport, WriteTask, Written
from quiverlog.client.base.results import Produced
from quiverlog.errors import (
    BufferExhausted,
    InternalTopic,
    InvalidOption,
    SchemaMismatch,
    UnknownTopic,
)
from quiverlog.types import Durability

TOPIC = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("name", pa.string())])

TEXT_PARTITION = pa.schema([("id", pa.int64()), ("p", pa.string())])


class FakeClient:
    """Has one schema for all topics, and records requests."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def schemas(self, topic: str) -> Any:
        self.asked.append(topic)

        class History:
            current = TOPIC

        return History()


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeClient:
    client = FakeClient()
    monkeypatch.setattr(pool, "client", lambda where: client)
    routing._checked.clear()
    return client


def options(**given: str) -> WriteOptions:
    return parse_write_options({"bootstrap.servers": "a:1"} | given, Use.BATCH_WRITE)


def write_task(route: Route, **given: str) -> WriteTask:
    """A task that writes at least once; the other kind is in test_exactly_once.py."""
    return WriteTask(options(deliveryMode="at_least_once", **given), route, TOPIC, uuid.uuid4())


def check(schema: pa.Schema, **given: str) -> Route:
    return routing.check_write(options(**given), schema)


@pytest.mark.usefixtures("fake")
class TestDriverCheck:
    def test_a_fitting_schema_passes(self) -> None:
        schema = pa.schema([("name", pa.string()), ("id", pa.int64())])
        assert check(schema, topic="t") == Route("t", None, None)

    @pytest.mark.parametrize(
        ("schema", "message"),
        [
            (pa.schema([("id", pa.int64()), ("colour", pa.string())]), "colour"),
            (pa.schema([("id", pa.string())]), "'id'"),
            (pa.schema([("name", pa.string())]), "'id'.*may not be null"),
        ],
    )
    def test_a_misfit_is_refused_by_column(self, schema: pa.Schema, message: str) -> None:
        with pytest.raises(SchemaMismatch, match=message):
            check(schema, topic="t")

    @pytest.mark.parametrize("create", ["true", "false"])
    def test_an_internal_topic_is_refused_before_its_columns(self, create: str) -> None:
        schema = pa.schema([("kind", pa.int8()), ("other", pa.int64())])
        with pytest.raises(InternalTopic, match="'__staged' is an internal topic"):
            check(schema, topic="__staged", createTopic=create)

    def test_without_topic_there_must_be_a_topic_column(self) -> None:
        with pytest.raises(InvalidOption, match=r"`topic` is not set.*no column 'topic'"):
            check(TOPIC)
        with pytest.raises(InvalidOption, match=r"`topicColumn`.*must be a string"):
            check(pa.schema([("topic", pa.int64())]))
        schema = pa.schema([("id", pa.int64()), ("where", pa.string())])
        assert check(schema, topicColumn="where") == Route(None, "where", None)

    def test_a_column_partition_routes_unless_the_topic_has_it(self) -> None:
        schema = pa.schema([("id", pa.int64()), ("partition", pa.int32())])
        assert check(schema, topic="t") == Route("t", None, "partition")
        with pytest.raises(InvalidOption, match="`partitionColumn`: the rows have no column 'p'"):
            check(schema, topic="t", partitionColumn="p")
        with pytest.raises(InvalidOption, match=r"`partitionColumn`.*must be an int"):
            check(
                pa.schema([("id", pa.int64()), ("p", pa.string())]), partitionColumn="p", topic="t"
            )

    def test_the_option_topic_wins_over_a_column_of_that_name(self) -> None:
        """As in Kafka's sink; the write was refused."""
        schema = pa.schema([("id", pa.int64()), ("topic", pa.string())])
        route = check(schema, topic="t")
        assert (route.topic, route.topic_column, route.ignored) == ("t", None, "topic")
        rows = [(t, p, r.to_pylist()) for t, p, r in split_by_route(two_rows(schema), route)]
        assert rows == [("t", None, [{"id": 1}, {"id": 2}])]

    def test_a_column_partition_that_is_no_int_does_not_route_where_topics_differ(self) -> None:
        schema = pa.schema([("topic", pa.string()), ("partition", pa.string())])
        assert check(schema) == Route(None, "topic", None)

    def test_overwrite_is_refused_with_a_way_out(self) -> None:
        with pytest.raises(InvalidOption, match="foreachBatch"):
            writer._Writer(options(topic="t"), None, True, uuid.uuid4())


def test_the_check_asks_the_broker_once_per_process(fake: FakeClient) -> None:
    """A stream's writer is made twice per micro-batch."""
    schema = pa.schema([("id", pa.int64())])
    for _ in range(5):
        check(schema, topic="t")
    asked = len(fake.asked)
    check(schema, topic="t")
    assert asked <= 2
    assert len(fake.asked) == asked


# --- routing --------------------------------------------------------------------------------------
def routed(route: Route, **columns: Any) -> list[tuple[str, int | None, list[dict[str, Any]]]]:
    batch = pa.record_batch({n: pa.array(v) for n, v in columns.items()})
    return [(t, p, rows.to_pylist()) for t, p, rows in split_by_route(batch, route)]


def test_rows_go_by_topic_and_partition_in_their_order() -> None:
    found = routed(
        Route(None, "topic", "partition"),
        topic=["a", "b", "a", "a"],
        partition=[1, 0, None, 1],
        id=[1, 2, 3, 4],
    )
    assert found == [
        ("a", 1, [{"id": 1}, {"id": 4}]),
        ("a", None, [{"id": 3}]),
        ("b", 0, [{"id": 2}]),
    ]


def test_without_routing_the_batch_passes_whole() -> None:
    assert routed(Route("t", None, None), id=[1, 2]) == [("t", None, [{"id": 1}, {"id": 2}])]
    assert routed(Route("t", None, None), id=pa.array([], pa.int64())) == []


def test_a_row_without_topic_is_refused() -> None:
    with pytest.raises(SchemaMismatch, match="'topic' is null"):
        routed(Route(None, "topic", None), topic=["a", None], id=[1, 2])


def two_rows(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(
        [{"id": 1, "topic": "x"}, {"id": 2, "topic": "y"}], schema=schema
    )


def test_a_topics_own_column_partition_is_data_not_routing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With `topicColumn` its values were taken as routing, and null was stored."""
    own = pa.schema([("id", pa.int64()), ("partition", pa.int32())])
    schemas = {"own": own, "plain": pa.schema([("id", pa.int64())])}
    monkeypatch.setattr(writer, "topic_schema", lambda options, topic: schemas[topic])
    task = write_task(Route(None, "topic", "partition"))
    batch = pa.record_batch(
        {
            "topic": ["own", "plain", "own"],
            "partition": pa.array([5, 1, 6], pa.int32()),
            "id": [1, 2, 3],
        }
    )
    found = split_by_route(batch, task._route, task._route_to)
    assert [(t, p, rows.to_pylist()) for t, p, rows in found] == [
        ("own", None, [{"partition": 5, "id": 1}, {"partition": 6, "id": 3}]),
        ("plain", 1, [{"id": 2}]),
    ]
    named = write_task(Route(None, "topic", "partition", is_partition_named=True))
    found = split_by_route(batch, named._route, named._route_to)
    assert [(t, p) for t, p, _ in found] == [("own", 5), ("own", 6), ("plain", 1)]


# --- a task ---------------------------------------------------------------------------------------
class FakeProducer:
    def __init__(self, fail: bool = False) -> None:
        self.rows = 0
        self.flushed = self.closed = False
        self.fail = fail

    def send(self, data: pa.RecordBatch, *, partition: int | None = None) -> Any:
        first, self.rows = self.rows, self.rows + data.num_rows
        produced = Produced(partition or 0, first, data.num_rows, Durability.FLUSHED)

        class Future:
            def result(self) -> list[Produced]:
                return [produced]

        return Future()

    def flush(self) -> None:
        if self.fail:
            raise BufferExhausted("full")
        self.flushed = True

    def close(self) -> None:
        self.closed = True


def test_a_task_reports_what_was_acknowledged(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeProducer()
    monkeypatch.setattr(pool, "producer", lambda where, topic, **settings: fake)
    batches = [pa.record_batch({"id": pa.array([1, 2])}), pa.record_batch({"id": pa.array([3])})]
    report = write_task(Route("t", None, None), topic="t").run(iter(batches))
    assert report.written == {("t", 0): Written(3, 0, 3, "flushed")}
    assert fake.flushed
    assert not fake.closed, "the next task takes the same producer"
    assert pickle.loads(pickle.dumps(report)) == report


def test_an_empty_task_asks_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "producer", None)
    report = write_task(Route("t", None, None), topic="t").run(iter([]))
    assert report == TaskReport()


def test_a_producer_of_an_earlier_task_is_looked_after_before_the_first_row(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Spark makes the rows meanwhile. A worker without one waits for a row: see above."""
    steps: list[str] = []

    def producer(where: Any, topic: str, **settings: Any) -> FakeProducer:
        steps.append("producer")
        return FakeProducer()

    def rows() -> Any:
        steps.append("rows")
        yield pa.record_batch({"id": pa.array([1])})

    monkeypatch.setattr(pool, "producer", producer)
    for known in (True, False):
        monkeypatch.setattr(pool, "has_producer", lambda *_, known=known, **__: known)
        write_task(Route("t", None, None), topic="t").run(rows())
    assert steps == ["producer", "rows", "rows", "producer"]


def test_only_a_row_fails_for_want_of_a_producer(monkeypatch: pytest.MonkeyPatch) -> None:
    """And asks no second time: each attempt may take the whole `request.timeout`."""
    asked: list[str] = []

    def producer(where: Any, topic: str, **settings: Any) -> Any:
        asked.append(topic)
        raise UnknownTopic("gone")

    monkeypatch.setattr(pool, "producer", producer)
    monkeypatch.setattr(pool, "has_producer", lambda *_, **__: True)
    task = write_task(Route("t", None, None), topic="t")
    assert task.run(iter([])) == TaskReport()
    task = write_task(Route("t", None, None), topic="t")
    with pytest.raises(UnknownTopic):
        task.run(iter([pa.record_batch({"id": pa.array([1])})]))
    assert asked == ["t", "t"]


def test_a_failed_task_drops_its_producer(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeProducer(fail=True)
    monkeypatch.setattr(pool, "producer", lambda where, topic, **settings: fake)
    task = write_task(Route("t", None, None), topic="t")
    with pytest.raises(BufferExhausted):
        task.run(iter([pa.record_batch({"id": pa.array([1])})]))
    assert fake.closed


def test_spark_rows_become_arrow_for_pyspark_4_0() -> None:
    from pyspark.sql import Row
    from pyspark.sql.types import (
        ArrayType,
        IntegerType,
        LongType,
        MapType,
        StringType,
        StructField,
        StructType,
    )

    inner = StructType([StructField("x", IntegerType())])
    schema = StructType(
        [
            StructField("id", LongType()),
            StructField("s", inner),
            StructField("l", ArrayType(inner)),
            StructField("m", MapType(StringType(), inner)),
        ]
    )
    rows = [
        Row(id=i, s=Row(x=i), l=[Row(x=1), None], m={"k": Row(x=2)} if i else None)
        for i in range(3)
    ]
    batches = list(arrow_from_rows(iter(rows), schema, 2))
    assert [b.num_rows for b in batches] == [2, 1]
    assert batches[1].to_pylist() == [
        {"id": 2, "s": {"x": 2}, "l": [{"x": 1}, None], "m": [("k", {"x": 2})]}
    ]
