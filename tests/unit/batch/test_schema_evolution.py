"""Evolution: what is allowed can be read back, what is not names its column."""

from __future__ import annotations

import pyarrow as pa
import pytest

from quiverlog.batch.evolution import _WIDER
from quiverlog.batch.schema import SchemaHistory, conform, evolve, normalize_schema
from quiverlog.errors import IncompatibleSchema, InvalidArgument, UnknownSchema


def fields(*given: object) -> pa.Schema:
    return normalize_schema(pa.schema(list(given)))


BASE = fields(
    pa.field("a", pa.int16(), nullable=False),
    ("s", pa.struct([("x", pa.int32())])),
    ("l", pa.list_(pa.float32())),
    ("m", pa.map_(pa.string(), pa.int8())),
    ("d", pa.decimal128(6, 2)),
    ("n", pa.null()),
)


def with_column(name: str, data_type: pa.DataType, *, nullable: bool = True) -> pa.Schema:
    index = BASE.get_field_index(name)
    return normalize_schema(BASE.set(index, pa.field(name, data_type, nullable=nullable)))


ALLOWED = [
    BASE,
    BASE.append(pa.field("new", pa.string())),
    with_column("a", pa.int64(), nullable=False),
    with_column("a", pa.int16()),
    with_column("a", pa.float64()),
    with_column("s", pa.struct([("x", pa.int64()), ("y", pa.binary())])),
    with_column("l", pa.list_(pa.float64())),
    with_column("m", pa.map_(pa.string(), pa.int64())),
    with_column("d", pa.decimal128(10, 4)),
    with_column("n", pa.struct([("z", pa.int8())])),
]


@pytest.mark.parametrize("new", ALLOWED)
def test_allowed_changes_can_be_read(new: pa.Schema) -> None:
    evolve(BASE, new)
    row = {"a": 1, "s": {"x": 2}, "l": [0.5, None], "m": [("k", 3)], "d": 4, "n": None}
    nulls = {"a": 2, "s": None, "l": None, "m": None, "d": None, "n": None}
    data = pa.RecordBatch.from_pylist([row, nulls], schema=BASE)
    got = conform(data, new)
    assert got.schema.equals(new, check_metadata=True)
    got.validate(full=True)
    for name in BASE.names:
        for before, after in zip(
            data.column(name).to_pylist(), got.column(name).to_pylist(), strict=True
        ):
            if isinstance(before, dict):
                after = {key: after[key] for key in before}
            assert after == before


@pytest.mark.parametrize(
    ("new", "named"),
    [
        (BASE.remove(5), "'n' is missing"),
        (BASE.append(pa.field("new", pa.string(), nullable=False)), "'new' is new"),
        (BASE.insert(0, pa.field("new", pa.string())), "'a' and cannot become 'new'"),
        (with_column("a", pa.int8(), nullable=False), "'a' is int16 and cannot become int8"),
        (with_column("a", pa.string(), nullable=False), "'a' is int16"),
        (with_column("s", pa.struct([("y", pa.int32())])), "'s', field 1"),
        (with_column("s", pa.struct([("x", pa.int8())])), "'s', field 'x'"),
        (with_column("s", pa.string()), "'s' is struct"),
        (with_column("s", BASE.field("s").type, nullable=False), "'s' holds nulls"),
        (with_column("l", pa.list_(pa.int32())), "'l', element"),
        (with_column("m", pa.map_(pa.binary(), pa.int8())), "'m', key"),
        (with_column("m", pa.map_(pa.string(), pa.string())), "'m', value"),
        (with_column("d", pa.decimal128(6, 3)), "'d' is decimal"),
        (with_column("d", pa.decimal128(5, 2)), "'d' is decimal"),
    ],
)
def test_refused_changes_name_the_column(new: pa.Schema, named: str) -> None:
    with pytest.raises(IncompatibleSchema, match=named):
        evolve(BASE, new)


@pytest.mark.parametrize(("old", "new"), [(o, n) for o, wide in _WIDER.items() for n in wide])
def test_widening_keeps_the_extremes(old: pa.DataType, new: pa.DataType) -> None:
    if pa.types.is_integer(old):
        values = [-(2 ** (old.bit_width - 1)), 2 ** (old.bit_width - 1) - 1, None]
    else:
        values = [3.4028234663852886e38, 1.401298464324817e-45, float("inf"), -0.0, None]
    data = pa.record_batch([pa.array(values, old)], schema=pa.schema([("x", old)]))
    got = conform(data, pa.schema([("x", new)])).column(0)
    assert got.type == new
    assert got.to_pylist() == data.column(0).to_pylist()
    assert got.cast(old).equals(data.column(0))


def test_equal_schemas_cost_nothing() -> None:
    data = pa.RecordBatch.from_pylist([{"a": 1}], schema=BASE)
    assert conform(data, data.schema) is data
    assert conform(data, BASE) is data


def test_a_history() -> None:
    new = BASE.append(pa.field("new", pa.string()))
    history = SchemaHistory({1: BASE, 2: new})
    assert (history.current_id, list(history), len(history)) == (2, [1, 2], 2)
    assert history.current is new
    assert history.schema(1) is history[1] is BASE
    assert 1 in history
    assert 3 not in history
    assert history.projected(["new", "a"]).names == ["new", "a"]
    assert history.projected(["new", "a"]) is history.projected(["new", "a"])
    with pytest.raises(InvalidArgument, match="'new'"):
        history.projected(["new"], schema_id=1)
    with pytest.raises(UnknownSchema, match="3"):
        history.schema(3)
