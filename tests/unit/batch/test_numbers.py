"""Arrays and scalars that are made without pandas are those that pyarrow would make."""

from __future__ import annotations

import pyarrow as pa
import pytest

from quiverlog.batch.numbers import integer, integers, text

UTC = pa.timestamp("us", tz="UTC")


@pytest.mark.parametrize(
    ("values", "data_type"),
    [
        ([], pa.int64()),
        ([0, -1, 2**31 - 1, -(2**31)], pa.int32()),
        ([0, -1, 2**63 - 1, -(2**63)], pa.int64()),
        ([0, 2**64 - 1], pa.uint64()),
        ([0, 1_767_225_600_000_000], UTC),
    ],
)
def test_integers(values: list[int], data_type: pa.DataType) -> None:
    made = integers(values, data_type)
    made.validate(full=True)
    assert made.equals(pa.array(values, data_type))
    assert [integer(v, data_type) for v in values] == [pa.scalar(v, data_type) for v in values]


@pytest.mark.parametrize("value", ["", "flights", "Zürich 🚲", "a\0b"])
def test_text(value: str) -> None:
    assert text(value).equals(pa.scalar(value, pa.string()))


@pytest.mark.parametrize(
    ("value", "data_type"), [(2**31, pa.int32()), (-1, pa.uint64()), (2**63, pa.int64())]
)
def test_what_does_not_fit_is_refused(value: int, data_type: pa.DataType) -> None:
    with pytest.raises(OverflowError):
        integer(value, data_type)
