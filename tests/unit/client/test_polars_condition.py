"""The bounds that a condition of polars sets are never narrower than the condition."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import quiverlog
from quiverlog.client.polars_scan import metadata_condition
from quiverlog.client.rows.metadata_bounds import MetadataBounds
from quiverlog.client.rows.metadata_columns import table_schema
from quiverlog.wire import messages as m
from tests.support.client_scenarios import SCHEMA, rows
from tests.support.scripted_broker import ScriptedBroker

FIRST = datetime(2024, 1, 1, tzinfo=UTC)
FULL = table_schema(SCHEMA)
PLACES = pa.table(
    {
        "_partition": pa.array([n % 3 for n in range(30)], pa.int32()),
        "_offset": pa.array([n // 3 for n in range(30)], pa.int64()),
        "_timestamp": pa.array(
            [FIRST + timedelta(hours=n) for n in range(30)], pa.timestamp("us", "UTC")
        ),
        "id": pa.array(range(30), pa.int64()),
    }
)
FRAME = pl.DataFrame(pl.from_arrow(PLACES))

numbers = st.integers(-2, 12)
moments = st.integers(-2, 32).map(lambda n: FIRST + timedelta(hours=n))
columns = st.sampled_from(["_partition", "_offset", "id"])
compare = st.sampled_from(["eq", "ne", "lt", "le", "gt", "ge"])
simple = st.one_of(
    st.builds(lambda c, op, n: getattr(pl.col(c), op)(n), columns, compare, numbers),
    st.builds(lambda c, op, n: getattr(pl.lit(n), op)(pl.col(c)), columns, compare, numbers),
    st.builds(lambda op, at: getattr(pl.col("_timestamp"), op)(at), compare, moments),
    st.builds(
        lambda c, low, high, closed: pl.col(c).is_between(low, high, closed=closed),
        *(columns, numbers, numbers, st.sampled_from(["both", "left", "right", "none"])),
    ),
    st.builds(lambda c, some: pl.col(c).is_in(some), columns, st.lists(numbers, max_size=3)),
)
conditions = st.recursive(
    simple,
    lambda inner: st.one_of(
        st.builds(lambda a, b: a & b, inner, inner),
        st.builds(lambda a, b: a | b, inner, inner),
        st.builds(lambda a: ~a, inner),
    ),
    max_leaves=6,
)


@given(conditions)
def test_every_row_that_polars_chooses_is_within(condition: pl.Expr) -> None:
    wider = metadata_condition(condition, SCHEMA)
    chosen = set(FRAME.filter(condition)["id"])
    within = PLACES if wider is None else PLACES.filter(wider)
    assert chosen <= set(within["id"].to_pylist())


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        (pl.col("_offset") >= 90, (90, 100)),
        (pl.lit(90) <= pl.col("_offset"), (90, 100)),
        (pl.col("_offset").is_between(10, 20, closed="left") & (pl.col("id") > 3), (10, 20)),
        ((pl.col("_offset") < 5) | (pl.col("_offset") == 7), (0, 8)),
        (pl.col("_partition") == 1, (0, 0)),
    ],
)
def test_bounds_are_found(condition: pl.Expr, expected: tuple[int, int]) -> None:
    known = metadata_condition(condition, SCHEMA)
    assert known is not None
    assert MetadataBounds(known, FULL).offsets(0, 0, 100) == expected


def test_a_moment_is_found() -> None:
    known = metadata_condition(pl.col("_timestamp") >= FIRST, SCHEMA)
    assert known is not None
    assert MetadataBounds(known, FULL).time_us_min() == int(FIRST.timestamp()) * 1_000_000


@pytest.mark.parametrize(
    "condition",
    [
        pl.col("id") > 3,
        (pl.col("_offset") < 5) | (pl.col("id") == 3),
        pl.col("_offset") == pl.col("id"),
        pl.col("_offset") > 1.5,
        pl.col("_offset") > 2**70,
        pl.col("_timestamp") > datetime(2024, 1, 1),  # noqa: DTZ001  # polars refuses it later
    ],
)
def test_conditions_that_are_not_understood_set_no_bounds(condition: pl.Expr) -> None:
    assert metadata_condition(condition, SCHEMA) is None


def test_a_column_of_the_topics_own_goes_before_the_place() -> None:
    own = pa.schema([("_offset", pa.int64())])
    assert metadata_condition(pl.col("_offset") > 3, own) is None


def test_only_the_range_is_fetched() -> None:
    with ScriptedBroker() as broker, quiverlog.connect(broker.bootstrap) as client:
        client.create_topic("t", SCHEMA)
        with client.producer("t", batch_rows=4) as producer:
            producer.send(rows(20))
        lazy = quiverlog.scan_polars("t", client=client)
        found = lazy.filter(pl.col("_offset").is_between(9, 10)).select("id").collect()
        assert found["id"].to_list() == [9, 10]
        asked = [part for r in broker.seen(m.FetchRequest) for part in r.partitions]
        assert {(part.offset, part.end_offset) for part in asked} == {(9, 11)}
