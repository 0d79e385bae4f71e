"""Conditions in SQL: what is one, and the errors for the rest."""

from __future__ import annotations

import pyarrow as pa
import pytest

from quiverlog.client.rows.metadata_columns import SqlFilter
from quiverlog.errors import InvalidArgument

ROWS = pa.record_batch({"city": ["Oslo", None, "Lima"], "minutes": [1, None, 45]})


@pytest.mark.parametrize(
    ("where", "kind"),
    [
        ("city", "varchar"),
        ("minutes", "bigint"),
        ("minutes + 0.5", "double|decimal"),
        ("[1]", "list"),
    ],
)
def test_what_is_no_condition_is_named_by_its_type(where: str, kind: str) -> None:
    with pytest.raises(InvalidArgument, match=rf"this is ({kind}), not true or false"):
        SqlFilter(where, ROWS.schema)


@pytest.mark.parametrize("where", ["count(*) > 1", "true), (false"])
def test_more_or_less_than_one_condition_on_a_row_is_refused(where: str) -> None:
    with pytest.raises(InvalidArgument, match="one condition on a row"):
        SqlFilter(where, ROWS.schema).chosen(ROWS)


@pytest.mark.parametrize(
    ("where", "cities"),
    [
        ("minutes > 5", ["Lima"]),
        ("not (minutes > 5)", ["Oslo"]),
        ("minutes is null", [None]),
        ("null", []),
        ("true -- all", ["Oslo", None, "Lima"]),
    ],
)
def test_rows_are_chosen_where_it_is_true(where: str, cities: list[str | None]) -> None:
    assert SqlFilter(where, ROWS.schema).chosen(ROWS)["city"].to_pylist() == cities
