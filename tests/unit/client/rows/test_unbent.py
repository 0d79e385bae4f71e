"""Values in dicts that pyarrow would bend to a column's type are refused, at any depth."""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from quiverlog.client.rows.convert import Converter
from quiverlog.errors import SchemaMismatch

MOMENT = pa.timestamp("us", tz="UTC")
LOCAL = pa.timestamp("us")
HERE = timezone(timedelta(hours=3))
NANOSECOND = pd.Timestamp("2024-01-01 00:00:00.000000001", tz="UTC")

BENT: list[tuple[pa.DataType, Any, str]] = [
    (pa.int32(), 1.5, "a float is no whole number"),
    (pa.int64(), 2.0, "a float is no whole number"),
    (pa.int8(), np.float64(1.5), "a float64 is no whole number"),
    (pa.int64(), Decimal("1.5"), "a Decimal is no whole number"),
    (pa.int64(), Fraction(3, 2), "a Fraction is no whole number"),
    (pa.float64(), True, "a bool is no number"),
    (pa.float32(), 1e39, "too large for 32 bits"),
    (pa.float32(), np.float64(-1e39), "too large for 32 bits"),
    (MOMENT, datetime(2024, 1, 1), "has no time zone"),  # noqa: DTZ001
    (MOMENT, NANOSECOND, "more digits than microseconds"),
    (MOMENT, 1.5, "a float is no time"),
    (LOCAL, datetime(2024, 1, 1, tzinfo=UTC), "has a time zone"),
    (LOCAL, NANOSECOND.tz_localize(None), "more digits than microseconds"),
    (pa.date32(), datetime(2024, 1, 1, 12), "has a time of day"),  # noqa: DTZ001
    (pa.date32(), pd.Timestamp("2024-01-01 12:00"), "has a time of day"),
    (pa.date32(), 1.5, "a float is no time"),
    (pa.time64("ns"), time(1, tzinfo=HERE), "has a time zone"),
    (pa.duration("us"), pd.Timedelta(1, "ns"), "more digits than microseconds"),
    (pa.duration("us"), 1.5, "a float is no time"),
    (pa.list_(pa.string()), "abc", "text is no list"),
    (pa.struct([("x", pa.int32())]), {"x": 1, "y": 2}, "the struct has no field 'y'"),
]
KEPT: list[tuple[pa.DataType, Any, Any]] = [
    (pa.int32(), np.int64(5), 5),
    (pa.float64(), 3, 3.0),
    (pa.float32(), float("inf"), float("inf")),
    (pa.float32(), 0.5, 0.5),
    (MOMENT, datetime(2024, 1, 1, 3, tzinfo=HERE), datetime(2024, 1, 1, tzinfo=UTC)),
    (MOMENT, pd.Timestamp("2024-01-01", tz="UTC"), datetime(2024, 1, 1, tzinfo=UTC)),
    (LOCAL, datetime(2024, 1, 1), datetime(2024, 1, 1)),  # noqa: DTZ001
    (pa.date32(), datetime(2024, 1, 1), date(2024, 1, 1)),  # noqa: DTZ001
    (pa.time64("ns"), time(1), time(1)),
    (pa.duration("us"), pd.Timedelta(1, "us"), timedelta(microseconds=1)),
    (pa.list_(pa.int32()), (1, None), [1, None]),
    (pa.list_(pa.int32()), np.array([1, 2]), [1, 2]),
    (pa.struct([("x", pa.int32())]), (1,), {"x": 1}),
    (pa.struct([("x", pa.int32())]), [("x", 1)], {"x": 1}),
    (pa.map_(pa.string(), pa.int32()), {"k": 1}, [("k", 1)]),
    (pa.map_(pa.string(), pa.int32()), [("k", None)], [("k", None)]),
]
# A column of the type, and the same one level and two levels down.
AROUND: dict[str, tuple[Any, Any]] = {
    "plain": (lambda kind: kind, lambda value: value),
    "list": (pa.list_, lambda value: [None, value]),
    "struct": (lambda kind: pa.struct([("f", kind)]), lambda value: {"f": value}),
    "value of a map": (lambda kind: pa.map_(pa.string(), kind), lambda value: {"k": value}),
    "list of structs": (
        lambda kind: pa.list_(pa.struct([("f", kind)])),
        lambda value: [None, {"f": value}],
    ),
}


@pytest.mark.parametrize("around", AROUND)
@pytest.mark.parametrize(("kind", "value", "why"), BENT, ids=str)
def test_what_would_be_bent_is_refused(kind: Any, value: Any, why: str, around: str) -> None:
    type_around, value_around = AROUND[around]
    converter = Converter(pa.schema([("a", type_around(kind))]), "t")
    rows = [{"a": None}, {"a": value_around(value)}]
    with pytest.raises(SchemaMismatch, match=rf"Column 'a' .*row 1 holds .*{why}") as caught:
        converter.batches(rows)
    assert caught.value.details["column"] == "a"
    with pytest.raises(SchemaMismatch, match=why):
        converter.batches([{"a": value_around(value)}, {}])  # rows of which one lacks the column


@pytest.mark.parametrize("around", AROUND)
@pytest.mark.parametrize(("kind", "value", "kept"), KEPT, ids=str)
def test_what_keeps_its_meaning_is_taken(kind: Any, value: Any, kept: Any, around: str) -> None:
    type_around, value_around = AROUND[around]
    converter = Converter(pa.schema([("a", type_around(kind))]), "t")
    (batch,) = converter.batches([{"a": value_around(value)}, {"a": None}])
    expected = pa.array([value_around(kept), None], type_around(kind))
    assert batch.column(0).to_pylist() == expected.to_pylist()


def test_a_key_of_a_map_is_looked_at_too() -> None:
    converter = Converter(pa.schema([("a", pa.map_(pa.int32(), pa.string()))]), "t")
    with pytest.raises(SchemaMismatch, match="a float is no whole number"):
        converter.batches([{"a": {1.5: "x"}}])
