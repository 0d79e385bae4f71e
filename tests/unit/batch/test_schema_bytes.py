"""Schema messages as any client may send them: each gives a typed error or a schema."""

from __future__ import annotations

import random
import time

import pyarrow as pa
import pytest

from quiverlog.batch.schema import (
    check_schema,
    deserialize_schema,
    deserialize_stored,
    normalize_schema,
    serialize_schema,
)
from quiverlog.errors import InvalidSchema
from quiverlog.limits import SCHEMA_BYTES_MAX, SCHEMA_FIELDS_MAX

NAMED = "inner"
TYPES: tuple[pa.DataType, ...] = (
    pa.int64(),
    pa.dictionary(pa.int8(), pa.timestamp("s", tz="Etc/Greenwich")),
    pa.large_string(),
    pa.string_view(),
    pa.binary(5),
    pa.timestamp("ms", tz="Europe/Berlin"),
    pa.duration("ns"),
    pa.time32("s"),
    pa.date64(),
    pa.decimal128(5, 2),
    pa.decimal256(30, 2),
    pa.run_end_encoded(pa.int32(), pa.struct([(NAMED, pa.int8())])),
    pa.uuid(),
    pa.json_(),
    pa.bool8(),
    pa.opaque(pa.struct([(NAMED, pa.int8())]), "type", "vendor"),
    pa.fixed_shape_tensor(pa.int8(), [2, 2], dim_names=["height", "width"]),
    pa.list_(pa.field(NAMED, pa.string())),
    pa.list_view(pa.field(NAMED, pa.string())),
    pa.list_(pa.field(NAMED, pa.string()), 3),
    pa.struct([(NAMED, pa.dictionary(pa.int32(), pa.large_string()))]),
    pa.map_(pa.field(NAMED, pa.string(), nullable=False), pa.timestamp("s", tz="UTC")),
    pa.dense_union([pa.field(NAMED, pa.string())]),
    pa.month_day_nano_interval(),
)


def message(data_type: pa.DataType) -> bytes:
    field = pa.field("column", data_type, metadata={"unit": "m"})
    return serialize_schema(pa.schema([field], metadata={"pandas": "{}", "a": "b"}))


def store(data: bytes) -> str:
    """What a broker does with the schema of a new topic; the error's text, empty when stored."""
    try:
        schema = normalize_schema(deserialize_schema(data))
        check_schema(schema)
        deserialize_stored(serialize_schema(schema))
    except InvalidSchema as error:
        error.message.encode()  # it goes into an answer
        return error.message
    return ""


@pytest.mark.parametrize("data_type", TYPES, ids=lambda t: str(t)[:40])
def test_any_byte_may_be_another(data_type: pa.DataType) -> None:
    data = message(data_type)
    refused = 0
    for place in range(len(data)):
        for flip in (0x80, 0x01, 0x10):
            changed = bytearray(data)
            changed[place] ^= flip
            refused += bool(store(bytes(changed)))
    assert 0 < refused < 3 * len(data)


@pytest.mark.parametrize("seed", range(20))
def test_any_bytes_may_be_others(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(100):
        changed = bytearray(message(rng.choice(TYPES)))
        for _ in range(rng.randint(1, 8)):
            changed[rng.randrange(len(changed))] = rng.randrange(256)
        store(bytes(changed[: rng.choice((len(changed), rng.randrange(len(changed))))]))


TEXTS = [
    (pa.schema([("column", pa.int8())]), b"column"),
    (pa.schema([("x", pa.struct([("inner", pa.int8())]))]), b"inner"),
    (pa.schema([("x", pa.list_(pa.struct([("inner", pa.int8())])))]), b"inner"),
    (pa.schema([("x", pa.timestamp("us", tz="Europe/Berlin"))]), b"Europe"),
    (pa.schema([("x", pa.dictionary(pa.int8(), pa.timestamp("s", tz="Etc/GMT")))]), b"Etc"),
    (pa.schema([("x", pa.map_(pa.string(), pa.struct([("inner", pa.int8())])))]), b"inner"),
    (pa.schema([("x", pa.list_(pa.field("inner", pa.int8())))]), b"inner"),
]


@pytest.mark.parametrize(("schema", "text"), TEXTS, ids=lambda v: str(v)[:30])
def test_text_is_utf8(schema: pa.Schema, text: bytes) -> None:
    data = serialize_schema(schema)
    assert data.count(text) == 1
    broken = data.replace(text, b"\xb0" + text[1:])
    with pytest.raises(InvalidSchema, match="UTF-8"):
        deserialize_schema(broken)
    assert "UTF-8" in store(broken)


def widest(name: str = "") -> bytes:
    """The schema message with the most columns that its size allows; empty `name`: all differ."""
    fields = [pa.field(name or f"{i:x}", pa.int8()) for i in range(SCHEMA_BYTES_MAX // 52)]
    return serialize_schema(pa.schema(fields))


@pytest.mark.parametrize("name", ["", "x"])
def test_the_widest_schema_is_refused_in_no_time(name: str) -> None:
    """Looking for names used twice once took time by the square of the columns."""
    data = widest(name)
    assert SCHEMA_BYTES_MAX // 2 < len(data) <= SCHEMA_BYTES_MAX
    started_s = time.process_time()
    assert "columns" in store(data)
    assert time.process_time() - started_s < 0.5


def test_checking_as_many_columns_as_allowed_takes_little_time() -> None:
    schema = pa.schema([(f"c{i}", pa.int64()) for i in range(SCHEMA_FIELDS_MAX)])
    started_s = time.process_time()
    for _ in range(10):
        check_schema(schema)
    assert time.process_time() - started_s < 0.2
