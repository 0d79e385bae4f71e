"""Arrays made without pandas are those of pyarrow, and the first rows of a process need none."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import quiverlog
from quiverlog.batch import plain_arrays
from quiverlog.batch.plain_arrays import plain_array
from tests.support.client_scenarios import SCHEMA
from tests.support.scripted_broker import ScriptedBroker

INTEGERS = st.integers(-(2**63) - 5, 2**63 + 5) | st.integers(-200, 200)
VALUES: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.int8(): INTEGERS,
    pa.int16(): INTEGERS,
    pa.int32(): INTEGERS,
    pa.int64(): INTEGERS,
    pa.float64(): st.floats(),
    pa.bool_(): st.booleans(),
    pa.string(): st.text(st.characters()),
    pa.binary(): st.binary(),
    pa.timestamp("us", "UTC"): st.datetimes(timezones=st.timezones() | st.none()),
}


@given(st.data())
def test_they_are_what_pyarrow_makes(data: st.DataObject) -> None:
    data_type = data.draw(st.sampled_from(list(VALUES)))
    values = data.draw(st.lists(st.none() | VALUES[data_type], max_size=20))
    made = plain_array(values, data_type)
    if made is not None:
        made.validate(full=True)
        # By text, since a NaN is equal to none; an array of pyarrow's own is the measure.
        assert made.type == data_type
        assert repr(made.to_pylist()) == repr(pa.array(values, data_type).to_pylist())


@pytest.mark.parametrize(
    ("values", "data_type"),
    [
        ([True], pa.int64()),
        ([1], pa.float64()),
        ([1.0], pa.int64()),
        ([2**31], pa.int32()),
        (["\ud800"], pa.string()),
        ([b"x"], pa.string()),
        ([1], pa.uint64()),
        ([[1]], pa.list_(pa.int64())),
    ],
)
def test_what_is_not_plain_is_left_to_pyarrow(values: list[Any], data_type: pa.DataType) -> None:
    assert plain_array(values, data_type) is None


def test_plain_values_are_taken() -> None:
    for data_type, values in (
        (pa.int32(), [1, None, -5]),
        (pa.string(), ["a", None, "é"]),
        (pa.bool_(), [True, None] * 9),
        (pa.float64(), []),
    ):
        made = plain_array(values, data_type)
        assert made is not None
        assert made.equals(pa.array(values, data_type))


def test_a_process_that_converts_much_leaves_it_to_pyarrow(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    monkeypatch.setattr(plain_arrays, "plain_array", lambda values, _type: made.append(len(values)))
    monkeypatch.setattr(plain_arrays._Budget, "left", 5)
    monkeypatch.setattr(plain_arrays, "sys", SimpleNamespace(modules={}))
    for _ in range(3):
        assert plain_arrays.array_of([1, 2, 3], pa.int64()).to_pylist() == [1, 2, 3]
    assert made == [3, 3]


PROGRAM = """
import sys
import quiverlog
with quiverlog.connect({bootstrap!r}) as client:
    with client.producer("t") as producer:
        producer.send({{"id": 1, "name": "a", "score": None}})
        producer.send([{{"id": 2, "name": "b", "score": 0.5}}, {{"id": 3}}])
    print([row["id"] for batch in client.consumer("t") for row in batch.to_pylist()])
    print(len(client.read("t").to_arrow()), "pandas" in sys.modules)
"""


def test_the_first_rows_of_a_process_import_no_pandas() -> None:
    pytest.importorskip("pandas")
    with ScriptedBroker() as broker, quiverlog.connect(broker.bootstrap) as client:
        client.create_topic("t", SCHEMA)
        run = subprocess.run(
            [sys.executable, "-c", PROGRAM.format(bootstrap=broker.bootstrap)],
            capture_output=True,
            text=True,
            check=True,
            timeout=120,
        )
    assert run.stdout.splitlines() == ["[1, 2, 3]", "3 False"], run.stderr
