"""Values that their type does not hold: refused before they are sent, named where they are stored.

Arrow looks into no value that it is handed: a file or a buffer may hold decimals with more digits
than their type has, text that is no UTF-8, times of day beyond midnight.
"""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import from_arrow_schema

import quiverlog
from pyspark_quiverlog.options import Use, parse_read_options
from pyspark_quiverlog.planning.ranges import Range
from pyspark_quiverlog.reader import LogSplit, SplitReader
from quiverlog.batch.codec import encode_batch, split_batches
from quiverlog.batch.evolution import SchemaHistory
from quiverlog.client.rows.convert import Converter
from quiverlog.client.rows.decoding import ConsumerBatch
from quiverlog.errors import CorruptBatch, SchemaMismatch
from quiverlog.wire import messages as m
from tests.support.client_kinds import CLIENT_KINDS, connect
from tests.support.connector import connections
from tests.support.scripted_broker import Answer, ScriptedBroker

__all__ = ["connections"]

LATIN1 = "Müller".encode("latin1")


def decimals(*unscaled: int, precision: int, scale: int) -> pa.Array:
    data = b"".join(value.to_bytes(16, "little", signed=True) for value in unscaled)
    kind = pa.decimal128(precision, scale)
    return pa.Array.from_buffers(kind, len(unscaled), [None, pa.py_buffer(data)])


def texts(*values: bytes | None, kind: pa.DataType | None = None) -> pa.Array:
    """Bytes that are typed as text."""
    kind = kind or pa.string()
    plain = pa.large_binary() if pa.types.is_large_string(kind) else pa.binary()
    array = pa.array(values, plain)
    return pa.Array.from_buffers(kind, len(array), array.buffers(), array.null_count)


def times(*nanoseconds: int) -> pa.Array:
    return pa.array(nanoseconds, pa.int64()).view(pa.time64("ns"))


def views(*values: bytes) -> pa.Array:
    made = pa.array(values, pa.binary_view())
    return pa.Array.from_buffers(pa.string_view(), len(made), made.buffers())


def structs(column: pa.Array, *, is_null: list[bool] | None = None) -> pa.Array:
    mask = None if is_null is None else pa.array(is_null)
    return pa.StructArray.from_arrays([column], ["inner"], mask=mask)


def lists(column: pa.Array, *offsets: int | None) -> pa.Array:
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), column)


def maps(keys: pa.Array, items: pa.Array, *offsets: int) -> pa.Array:
    return pa.MapArray.from_arrays(pa.array(offsets, pa.int32()), keys, items)


GOOD = texts(b"a", b"b", b"c")
WRONG: dict[str, tuple[pa.Array, int, str]] = {
    "decimal": (decimals(100, 1234567, precision=4, scale=2), 1, "12345.67"),
    "decimal-negative": (decimals(-1234567, precision=4, scale=2), 0, "-12345.67"),
    "decimal-one-above": (decimals(9999, 10000, precision=4, scale=2), 1, "100.00"),
    "decimal-38": (decimals(2**127 - 1, precision=38, scale=0), 0, str(2**127 - 1)),
    "text": (texts(b"ok", LATIN1), 1, "M\\xfcller"),
    "text-null-before": (texts(None, LATIN1), 1, "M\\xfcller"),
    "text-cut-in-two": (texts(b"ok", "ü".encode()[:1], "ü".encode()[1:]), 1, "\\xc3"),
    "large-text": (texts(LATIN1, kind=pa.large_string()), 0, "M\\xfcller"),
    "text-view": (views(b"ok", LATIN1), 1, "M\\xfcller"),
    "slice": (texts(LATIN1, b"ok", LATIN1)[1:], 1, "M\\xfcller"),
    "dictionary": (
        pa.DictionaryArray.from_arrays(pa.array([0, 1, 0], pa.int8()), texts(b"ok", LATIN1)),
        1,
        "M\\xfcller",
    ),
    "time": (times(0, 86_399_999_999_999, 86_400_000_000_000), 2, "86400000000000"),
    "time-negative": (times(5, -1), 1, "-1"),
    "struct": (structs(texts(b"ok", LATIN1)), 1, "M\\xfcller"),
    "struct-in-a-null-row": (
        structs(texts(LATIN1, LATIN1), is_null=[True, False]), 1, "M\\xfcller",
    ),
    "list": (lists(texts(b"ok", b"ok", LATIN1), 0, 1, 1, 3), 2, "M\\xfcller"),
    "list-slice": (lists(texts(LATIN1, b"ok", LATIN1), 0, 1, 2, 3)[1:], 1, "M\\xfcller"),
    "list-behind-null": (lists(texts(LATIN1, LATIN1), None, 1, 2), 1, "M\\xfcller"),
    "map-key": (maps(texts(b"ok", LATIN1), pa.array([1, 2]), 0, 1, 2), 1, "M\\xfcller"),
    "map-value": (maps(GOOD, texts(b"ok", LATIN1, b"ok"), 0, 1, 3), 1, "M\\xfcller"),
    "list-of-structs": (lists(structs(texts(b"ok", LATIN1)), 0, 1, 2), 1, "M\\xfcller"),
    "list-of-decimals": (lists(decimals(1, 10**5, precision=4, scale=2), 0, 2), 0, "1000.00"),
}  # fmt: skip

MANY = 1_000
"""Enough texts to be checked as bytes first."""
WRONG |= {
    "many": (texts(*[b"plain"] * MANY, LATIN1, b"plain"), MANY, "M\\xfcller"),
    "many-cut-in-two": (
        texts(*["ü".encode()] * MANY, "ü".encode()[:1], "ü".encode()[1:]), MANY, "\\xc3",
    ),
    "many-beyond-a-piece": (texts(*[b"x" * 100] * MANY, LATIN1), MANY, "M\\xfcller"),
    "many-decimals": (decimals(*range(MANY), 10**4, precision=4, scale=0), MANY, "10000"),
    "many-lists": (
        lists(texts(*[b"a"] * MANY, LATIN1), *range(MANY + 2)), MANY, "M\\xfcller",
    ),
}  # fmt: skip

GOOD_ALL_THE_SAME: dict[str, pa.Array] = {
    "decimal": decimals(9999, -9999, 0, precision=4, scale=2),
    "decimal-38": decimals(10**38 - 1, -(10**38) + 1, precision=38, scale=0),
    "text": texts(b"plain", "äöü€😀".encode(), b"", None),
    "outside-of-the-slice": texts(LATIN1, b"ok", LATIN1)[1:2],
    "list-outside-of-the-slice": lists(texts(LATIN1, b"ok", LATIN1), 0, 1, 2, 3)[1:2],
    "map-outside-of-the-slice": maps(texts(LATIN1, b"ok", LATIN1), pa.array([1, 2, 3]), 0, 1, 2, 3)[
        1:2
    ],
    "struct-outside-of-the-slice": structs(texts(LATIN1, b"ok", LATIN1))[1:2],
    "under-a-null-struct": structs(texts(LATIN1, b"ok"), is_null=[True, False]),
    "under-a-null-list": lists(texts(LATIN1, b"ok"), None, 1, 2),
    "time": times(0, 86_399_999_999_999),
    "nothing": texts(),
    "many": texts(*[b"plain"] * MANY),
    "many-in-a-slice": texts(LATIN1, *[b"plain"] * MANY, LATIN1)[1:-1],
    "many-of-all-kinds": texts(*["äöü".encode(), b"plain", None] * MANY),
    "decimal-null": pa.array([None, Decimal("1.00")], pa.decimal128(4, 2)),
}


def converter(kind: pa.DataType) -> Converter:
    from quiverlog.batch.arrow_types import normalize_type

    return Converter(pa.schema([("id", pa.int64()), ("a", normalize_type(kind))]), "t")


def with_ids(column: pa.Array) -> pa.Table:
    return pa.table({"id": pa.array(range(len(column))), "a": column})


@pytest.mark.parametrize("name", WRONG)
def test_what_its_type_does_not_hold_is_refused_by_column_row_and_value(name: str) -> None:
    column, row, value = WRONG[name]
    with pytest.raises(SchemaMismatch) as caught:
        converter(column.type).batches(with_ids(column))
    assert type(caught.value) is quiverlog.InvalidValue
    assert caught.value.details == {"topic": "t", "column": "a", "row": row}
    assert f"row {row} " in caught.value.message
    assert value in caught.value.message
    assert "column 'a'" in caught.value.message.lower()


@pytest.mark.parametrize("name", GOOD_ALL_THE_SAME)
def test_what_its_type_holds_is_taken(name: str) -> None:
    column = GOOD_ALL_THE_SAME[name]
    batches = converter(column.type).batches(with_ids(column))
    assert sum(batch.num_rows for batch in batches) == len(column)


@pytest.mark.parametrize("bits", [32, 64, 256])
def test_decimals_of_other_widths_are_looked_at_too(bits: int) -> None:
    kind = {32: pa.decimal32(4, 2), 64: pa.decimal64(4, 2), 256: pa.decimal256(4, 2)}[bits]
    data = (1234567).to_bytes(bits // 8, "little")
    column = pa.Array.from_buffers(kind, 1, [None, pa.py_buffer(data)])
    with pytest.raises(SchemaMismatch, match=r"'a'.*12345\.67"):
        converter(kind).batches(with_ids(column))


def test_a_row_of_a_table_is_counted_from_its_beginning() -> None:
    column = pa.chunked_array([texts(*[b"ok"] * 10), texts(b"ok", LATIN1)])
    with pytest.raises(SchemaMismatch) as caught:
        converter(pa.string()).batches(pa.table({"id": pa.array(range(12)), "a": column}))
    assert caught.value.details["row"] == 11


def test_what_does_not_fit_is_looked_for_within_the_slice_alone() -> None:
    items = pa.array([[1], [2, 300], [3], [400]], pa.list_(pa.int64()))
    small = Converter(pa.schema([("a", pa.list_(pa.field("element", pa.int8())))]), "t")
    (batch,) = small.batches(pa.table({"a": items[2:3]}))
    assert batch.to_pylist() == [{"a": [3]}]
    with pytest.raises(SchemaMismatch, match=r"'a'.*row 1 holds \[2, 300\]"):
        small.batches(pa.table({"a": items[:3]}))


def test_arrow_values_in_dicts_are_looked_at_too() -> None:
    with pytest.raises(SchemaMismatch, match=r"'a'.*row 1"):
        converter(pa.string()).batches([{"id": 1, "a": "ok"}, {"id": 2, "a": texts(LATIN1)[0]}])


# --- what is stored already -----------------------------------------------------------------------
STORED = pa.schema([("id", pa.int64()), ("a", pa.string())])


@pytest.fixture
def broker() -> Iterator[ScriptedBroker]:
    """Three batches of ten rows; row 13, in the second, holds Latin-1, as an old client sent it."""
    with ScriptedBroker() as broker:
        with quiverlog.connect(broker.bootstrap) as client:
            client.create_topic("t", STORED)
            with client.producer("t", batch_rows=10) as producer:
                producer.send([{"id": i, "a": "M_ller" if i == 13 else "plain"} for i in range(30)])
        broker.always(m.FetchRequest, Answer(_spoilt))
        yield broker


def _spoilt(request: Any, response: Any, body: bytes) -> tuple[m.Response, bytes]:
    from quiverlog.batch.codec import write_crc

    broken = bytearray(body.replace(b"M_ller", LATIN1))
    at = 0
    for header, _ in split_batches(memoryview(body)):
        write_crc(memoryview(broken)[at : at + header.total_bytes])
        at += header.total_bytes
    return response, bytes(broken)


@pytest.fixture(params=CLIENT_KINDS)
def client(request: pytest.FixtureRequest, broker: ScriptedBroker) -> Iterator[Any]:
    with connect(request.param, broker.bootstrap, request_timeout=5.0) as client:
        yield client


def test_a_reader_names_where_the_value_lies(client: Any) -> None:
    with client.consumer("t") as consumer:
        assert consumer.poll(timeout=30).base_offset == 0
        with pytest.raises(CorruptBatch, match=r"t-0.*\[10, 20\).*'a'.*offset 13") as caught:
            consumer.poll(timeout=30)
        details = caught.value.details
        assert details == {
            "topic": "t", "partition": 0, "offset": 10, "next_offset": 20, "column": "a",
            "row_offset": 13,
        }  # fmt: skip
        consumer.seek(0, 14)  # its neighbours are read: only rows that are asked for are looked at
        assert consumer.poll(timeout=30).to_pylist()[0]["id"] == 14


def test_a_reader_steps_over_it_or_leaves_the_column_out(client: Any) -> None:
    with client.consumer("t", skip_corrupt=True) as consumer:
        assert [batch.base_offset for batch in consumer] == [0, 20]
    with client.consumer("t", columns=["id"]) as consumer:
        assert [len(batch) for batch in consumer] == [10, 10, 10]
    with client.consumer("t", end={0: 13}) as consumer:
        assert [len(batch) for batch in consumer] == [10, 3]


def spark_rows(broker: ScriptedBroker, **options: str) -> list[int]:
    """Ids as a task of Spark reads them."""
    with quiverlog.connect(broker.bootstrap) as client:
        topic_id = client.metadata(["t"]).topics["t"].topic_id.hex()
    raw = {"bootstrap.servers": broker.bootstrap, "subscribe": "t", **options}
    reader = SplitReader(parse_read_options(raw, Use.BATCH_READ), from_arrow_schema(STORED))
    split = LogSplit([Range("t", topic_id, 0, 0, 30, -1, -1)])
    return [number for batch in reader.read(split) for number in batch["id"].to_pylist()]


def test_a_task_of_spark_fails_with_the_place_or_steps_over_it(broker: ScriptedBroker) -> None:
    with pytest.raises(CorruptBatch, match=r"t-0.*\[10, 20\).*'a'.*offset 13"):
        spark_rows(broker)
    assert spark_rows(broker, failOnCorruptData="false") == [*range(10), *range(20, 30)]


def test_a_cast_does_not_hide_what_is_stored() -> None:
    """A wider type may hold it: the stored one does not."""
    from quiverlog.batch.codec import decode_batch

    history = SchemaHistory({1: pa.schema([("a", pa.decimal128(4, 2))])})
    rows = pa.record_batch([decimals(1234567, precision=4, scale=2)], schema=history.current)
    ((header, view),) = split_batches(
        memoryview(encode_batch(rows, schema_id=1, timestamp_us=1)).toreadonly()
    )
    for width in (4, 5, 12):
        with pytest.raises(CorruptBatch, match=r"'a'.*12345\.67"):
            decode_batch(
                view, header, history, reader_schema=pa.schema([("a", pa.decimal128(width, 2))])
            )


# --- values that are good, and that Python or DuckDB do not have ----------------------------------
KEY_TWICE = pa.array([[("a", 1)], [("a", 1), ("a", 2)]], pa.map_(pa.string(), pa.int64()))
FAR: dict[str, pa.Array] = {
    "day-after-9999": pa.array([0, 2_932_897], pa.int32()).view(pa.date32()),
    "day-before-1": pa.array([0, -719_163], pa.int32()).view(pa.date32()),
    "moment-after-9999": pa.array([0, 253_402_300_800_000_000]).view(pa.timestamp("us", "UTC")),
    "local-before-1": pa.array([0, -62_135_596_800_000_001]).view(pa.timestamp("us")),
    "nanosecond": pa.array([1_000, 1]).view(pa.time64("ns")),
    "nanosecond-in-a-list": pa.array([[1_000], [1_000, 1]], pa.list_(pa.time64("ns"))),
    "day-in-a-struct": structs(pa.array([0, 2_932_897], pa.int32()).view(pa.date32())),
}
NEAR: dict[str, pa.Array] = {
    "last-day": pa.array([2_932_896, -719_162], pa.int32()).view(pa.date32()),
    "last-moment": pa.array([253_402_300_799_999_999]).view(pa.timestamp("us")),
    "first-moment": pa.array([-62_135_596_800_000_000]).view(pa.timestamp("us")),
    "microseconds": pa.array([1_000, None, 86_399_999_999_000]).view(pa.time64("ns")),
    "key-twice": KEY_TWICE,
}


def batch_of(column: pa.Array) -> ConsumerBatch:
    return ConsumerBatch(
        data=pa.record_batch({"id": pa.array(range(len(column))), "a": column}),
        topic="t",
        partition=3,
        base_offset=40,
        leader_epoch=0,
        timestamp_us=0,
    )


@pytest.mark.parametrize("name", FAR)
def test_a_value_that_python_does_not_have_is_named(name: str) -> None:
    with pytest.raises(quiverlog.UnsupportedValue, match=r"'a' of t-3.*offset 41.*cast") as caught:
        batch_of(FAR[name]).to_pylist()
    assert caught.value.details == {"column": "a", "offset": 41}


@pytest.mark.parametrize("name", NEAR)
def test_values_that_python_has_come_as_they_are(name: str) -> None:
    rows = batch_of(NEAR[name]).to_pylist()
    assert [row["a"] for row in rows] == NEAR[name].to_pylist()


@pytest.fixture
def far(broker: ScriptedBroker) -> Iterator[quiverlog.Client]:
    with quiverlog.connect(broker.bootstrap) as client:
        for topic, column in (("days", FAR["day-after-9999"]), ("maps", KEY_TWICE)):
            client.create_topic(topic, pa.schema([("id", pa.int64()), ("a", column.type)]))
            with client.producer(topic) as producer:
                producer.send(with_ids(column))
        yield client


def test_pandas_and_duckdb_name_it_too(far: quiverlog.Client) -> None:
    advice = "'a' of topic 'days'.*row 1.*date_as_object"
    with pytest.raises(quiverlog.UnsupportedValue, match=advice):
        far.read("days").to_pandas()
    assert str(far.read("days").to_pandas(date_as_object=False)["a"][1]).startswith("10000-01-01")
    with pytest.raises(quiverlog.UnsupportedValue, match=r"'a' .*same key twice"):
        far.read("maps", where="a is not null").to_arrow()
    assert far.read("maps", where="id = 1").to_arrow().num_rows == 1
    with far.duckdb() as database:
        assert database.sql("select count(id) from maps").fetchall() == [(2,)]
        with pytest.raises(duckdb.Error, match=r"'a' of topic 'maps'.*same key twice"):
            database.sql("select a from maps").fetchall()
