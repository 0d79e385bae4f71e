"""Key partitioning: the same numbers in every client, for ever."""

from __future__ import annotations

import datetime as dt
import json
import struct
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quiverlog.batch.checksum import crc32c
from quiverlog.batch.key_columns import check_key_columns
from quiverlog.batch.partitioner import hash_rows, partition_rows
from quiverlog.errors import InvalidSchema

GOLDEN = Path(__file__).parents[2] / "golden" / "key-hashes.json"
M = 2**64 - 1


# --- the definition once more, one value at a time, as another language would write it ------------
def value_bits(value: object) -> int:
    if value is None:
        return 0xA5A55A5AC3C33C3C
    if isinstance(value, bool | int):
        return int(value) & M
    if isinstance(value, float):
        if value != value:
            return 0x7FF8000000000000
        return int(struct.unpack("<Q", struct.pack("<d", value + 0.0))[0])
    if isinstance(value, Decimal):
        if not value:
            return crc32c(b"0e0")
        sign, digits, exponent = value.as_tuple()
        number = int("".join(map(str, digits)))
        while number % 10 == 0:
            number, exponent = number // 10, exponent + 1
        return crc32c(f"{'-' if sign else ''}{number}e{exponent}".encode())
    if isinstance(value, str):
        value = value.encode()
    assert isinstance(value, bytes)
    return crc32c(value)


def key_hash(*values: object) -> int:
    h = 0
    for value in values:
        h = ((h ^ value_bits(value)) + 0x9E3779B97F4A7C15) & M
        h = ((h ^ h >> 30) * 0xBF58476D1CE4E5B9) & M
        h = ((h ^ h >> 27) * 0x94D049BB133111EB) & M
        h ^= h >> 31
    return h


def partition_of(h: int, partitions: int) -> int:
    return (h >> 32) * partitions >> 32


ints = st.integers(-(2**63), 2**63 - 1)
COLUMNS = {
    pa.int64(): ints,
    pa.int8(): st.integers(-128, 127),
    pa.bool_(): st.booleans(),
    pa.float64(): st.floats(),
    pa.float32(): st.floats(width=32),
    pa.string(): st.text(max_size=8),
    pa.binary(): st.binary(max_size=8),
    pa.decimal128(12, 4): st.decimals(-(10**7), 10**7, places=4),
}


@pytest.mark.parametrize("data_type", COLUMNS, ids=str)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_vectors_agree_with_the_definition(data_type: pa.DataType, data: st.DataObject) -> None:
    values = data.draw(st.lists(st.none() | COLUMNS[data_type], min_size=1, max_size=30))
    array = pa.array(values, data_type)
    batch = pa.record_batch([array, pa.array(range(len(values)))], names=["k", "n"])
    assert hash_rows(batch, ["k"]).to_pylist() == [key_hash(v) for v in array.to_pylist()]
    assert hash_rows(batch, ["k", "n"]).to_pylist() == [
        key_hash(v, i) for i, v in enumerate(array.to_pylist())
    ]


@settings(deadline=None)
@given(
    keys=st.lists(st.none() | st.integers(0, 20), min_size=1, max_size=200),
    partitions=st.integers(1, 12),
)
def test_rows_are_divided_in_order(keys: list[int | None], partitions: int) -> None:
    batch = pa.record_batch({"k": pa.array(keys, pa.int32()), "n": range(len(keys))})
    parts = partition_rows(batch, ["k"], partitions)
    assert [p for p, _ in parts] == sorted({p for p, _ in parts})
    seen = []
    for partition, rows in parts:
        assert rows.num_rows
        rows.validate(full=True)
        numbers = rows.column("n").to_pylist()
        assert numbers == sorted(numbers)
        seen += numbers
        for key in rows.column("k").to_pylist():
            assert partition_of(key_hash(key), partitions) == partition
    assert sorted(seen) == list(range(len(keys)))


def test_equal_values_of_any_width_go_together() -> None:
    def hashes(values: list[object], data_type: pa.DataType) -> list[int]:
        batch = pa.record_batch([pa.array(values, data_type)], names=["k"])
        return hash_rows(batch, ["k"]).to_pylist()

    numbers = [-128, -1, 0, 1, 127, None]
    widths = [hashes(numbers, t) for t in (pa.int8(), pa.int16(), pa.int32(), pa.int64())]
    assert widths[0] == widths[1] == widths[2] == widths[3]
    assert hashes([0.5, 0.0], pa.float32()) == hashes([0.5, -0.0], pa.float64())
    money = [Decimal("1.5"), Decimal(-100), Decimal(0)]
    assert hashes(money, pa.decimal128(5, 1)) == hashes(money, pa.decimal128(38, 10))
    day, moment = dt.date(2020, 1, 1), dt.datetime(2020, 1, 1, tzinfo=dt.UTC)
    assert hashes([day], pa.date32()) == hashes([18262], pa.int64())
    assert hashes([moment.replace(tzinfo=None)], pa.timestamp("us")) == hashes(
        [moment], pa.timestamp("us", tz="UTC")
    )
    assert hashes([dt.timedelta(seconds=1)], pa.duration("us")) == hashes([10**6], pa.int64())
    assert hashes([dt.time(0, 0, 1)], pa.time64("ns")) == hashes([10**9], pa.int64())
    text = pa.array(["a", "b", "a", None])
    batch = pa.record_batch([text, text.dictionary_encode()], names=["t", "d"])
    assert hash_rows(batch, ["t"]).equals(hash_rows(batch, ["d"]))


def test_any_nan_is_one_key() -> None:
    nans = pa.array(
        struct.unpack("<2d", struct.pack("<2Q", 0x7FF8000000000000, 0xFFF0000000000001))
    )
    batch = pa.record_batch([nans], names=["k"])
    assert len(set(hash_rows(batch, ["k"]).to_pylist())) == 1


def test_slices_hash_like_their_rows() -> None:
    batch = pa.record_batch(
        {"i": pa.array(range(50), pa.int32()), "s": [str(i) for i in range(50)]}
    )
    for keys in (["i"], ["s"], ["s", "i"]):
        whole = hash_rows(batch, keys)
        assert hash_rows(batch.slice(13, 20), keys).equals(whole.slice(13, 20))


def test_keys_spread_evenly() -> None:
    batch = pa.record_batch({"k": pa.array(range(0, 640_000, 10), pa.int64())})
    sizes = [rows.num_rows for _, rows in partition_rows(batch, ["k"], 64)]
    assert len(sizes) == 64
    assert 850 < min(sizes) <= max(sizes) < 1150


def test_no_rows_no_parts() -> None:
    empty = pa.record_batch({"k": pa.array([], pa.int64())})
    assert partition_rows(empty, ["k"], 3) == []
    assert partition_rows(empty, ["k"], 1) == []


def test_the_golden_vectors() -> None:
    """If this fails, the change parts equal keys of every running topic: do not make it."""
    golden = json.loads(GOLDEN.read_text())
    assert len(golden) >= 20
    for vector in golden:
        data_type = eval(vector["arrow_type"], {"pa": pa})  # noqa: S307 - our own file
        value = vector["value"]
        if value is not None and pa.types.is_decimal(data_type):
            value = Decimal(value)
        elif value is not None and pa.types.is_binary(data_type):
            value = bytes.fromhex(value)
        elif value is not None and pa.types.is_floating(data_type):
            value = float(value)
        batch = pa.record_batch([pa.array([value], data_type)], names=["k"])
        (got,) = hash_rows(batch, ["k"]).to_pylist()
        assert f"{got:016x}" == vector["hash"], vector
        assert partition_of(got, 10) == vector["partition_of_10"]


@pytest.mark.parametrize(
    "data_type", [pa.list_(pa.int8()), pa.struct([("a", pa.int8())]), pa.null()]
)
def test_columns_that_cannot_be_keys(data_type: pa.DataType) -> None:
    schema = pa.schema([("a", pa.int8()), ("x", data_type)])
    check_key_columns(schema, ["a"])
    for keys in (["x"], ["a", "x"], ["a", "a"], ["gone"]):
        with pytest.raises(InvalidSchema):
            check_key_columns(schema, keys)
