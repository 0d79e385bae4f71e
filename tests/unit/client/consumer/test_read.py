"""`client.read`: bounded, repeatable, pruned; and Arrow's C stream of what is read."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import quiverlog
from quiverlog.client.rows.metadata_bounds import MetadataBounds
from quiverlog.client.rows.metadata_columns import mentioned, with_metadata
from quiverlog.wire import messages as m
from tests.support.client_kinds import CLIENT_KINDS, connect
from tests.support.client_scenarios import SCHEMA, rows
from tests.support.scripted_broker import ScriptedBroker


@pytest.fixture
def broker() -> Iterator[ScriptedBroker]:
    with ScriptedBroker() as broker:
        yield broker


@pytest.fixture(params=CLIENT_KINDS)
def client(request: pytest.FixtureRequest, broker: ScriptedBroker) -> Iterator[Any]:
    with connect(request.param, broker.bootstrap) as client:
        client.create_topic("t", SCHEMA, partitions=2)
        with client.producer("t", batch_rows=4) as producer:
            producer.send(rows(10), partition=0)
            producer.send(rows(5, first=100), partition=1)
        yield client


def ids(reading: Any) -> list[int]:
    return sorted(reading.to_arrow()["id"].to_pylist())


# --- what is read ---------------------------------------------------------------------------------
def test_a_read_is_bounded_and_can_be_repeated(client: Any) -> None:
    reading = client.read("t")
    assert reading.ranges == {0: (0, 10), 1: (0, 5)}
    assert reading.rows_total == 15
    with client.producer("t") as producer:
        producer.send(rows(3, first=200), partition=0)
    expected = [*range(10), *range(100, 105)]
    assert ids(reading) == expected
    assert ids(reading) == expected, "the same rows again"
    assert sum(batch.num_rows for batch in reading) == 15
    assert len(client.read("t").to_arrow()) == 18


def test_what_is_read_lies_in_memory_that_arrow_counts_and_has_again(client: Any) -> None:
    """No copy of our own beside it, and nothing is kept once the table is dropped."""
    with client.producer("t", compression="none") as producer:
        producer.send(rows(50_000), partition=0)
    before = pa.total_allocated_bytes()
    table = client.read("t").to_arrow()
    assert pa.total_allocated_bytes() - before >= table.nbytes
    buffers = [b for chunk in table["id"].chunks for b in chunk.buffers() if b is not None]
    assert all(buffer.address % 8 == 0 for buffer in buffers)
    del table, buffers
    assert pa.total_allocated_bytes() - before < 50_000


def test_data_frames(client: Any) -> None:
    reading = client.read("t", partitions=[1])
    assert isinstance(reading.to_pandas(), pd.DataFrame)
    frame = reading.to_polars()
    assert isinstance(frame, pl.DataFrame)
    assert frame["id"].to_list() == [100, 101, 102, 103, 104]


def test_columns_and_metadata_columns(client: Any) -> None:
    table = client.read("t", columns=["_offset", "id", "_partition"], partitions=[0]).to_arrow()
    assert table.schema.names == ["_offset", "id", "_partition"]
    assert table["_offset"].to_pylist() == table["id"].to_pylist() == list(range(10))
    assert client.read("t", columns="_topic").to_arrow()["_topic"].unique().to_pylist() == ["t"]
    with pytest.raises(quiverlog.InvalidArgument, match=r"no column 'nope'; it has id.*, _offset"):
        client.read("t", columns=["nope"])
    with pytest.raises(quiverlog.InvalidArgument, match="'_offset' is named twice"):
        client.read("t", columns=["_offset", "id", "_offset"])


def test_where_it_begins_and_ends(client: Any) -> None:
    assert ids(client.read("t", start={0: 7, 1: "latest"})) == [7, 8, 9]
    assert ids(client.read("t", end={0: 2, 1: "earliest"})) == [0, 1]
    assert ids(client.read("t", start="latest")) == []
    soon = datetime.now(UTC) + timedelta(days=1)
    assert len(client.read("t", end=soon).to_arrow()) == 15
    assert client.read("t", start=soon).ranges == {}
    assert client.read("t", end=soon - timedelta(days=2)).ranges == {}
    assert client.read("t", end={0: 1_000}).ranges[0] == (0, 10), "never above what is there"


@pytest.mark.parametrize(
    "where",
    ["id >= 3 and name <> 'n4'", (pc.field("id") >= 3) & (pc.field("name") != "n4")],
)
def test_a_condition_may_use_what_is_not_asked_for(client: Any, where: Any) -> None:
    table = client.read("t", columns=["id"], where=where, partitions=[0]).to_arrow()
    assert table.schema.names == ["id"]
    assert table["id"].to_pylist() == [3, 5, 6, 7, 8, 9]


@pytest.mark.parametrize("where", ["nope = 1", "id", "", 5, pc.field("nope") == 1])
def test_a_condition_that_is_none_is_refused_before_rows_are_read(client: Any, where: Any) -> None:
    with pytest.raises(quiverlog.InvalidArgument, match="where"):
        client.read("t", where=where)


def test_a_condition_on_offsets_narrows_what_is_fetched(client: Any) -> None:
    here = (pc.field("_partition") == 0) & (pc.field("_offset") >= 4) & (pc.field("_offset") < 6)
    reading = client.read("t", where=here)
    assert reading.ranges == {0: (4, 6)}
    assert ids(reading) == [4, 5]
    young = pc.field("_timestamp") > pa.scalar(datetime.now(UTC) + timedelta(days=1))
    assert client.read("t", where=young).ranges == {}
    old = pc.field("_timestamp") > pa.scalar(datetime(2000, 1, 1, tzinfo=UTC))
    assert client.read("t", where=old).rows_total == 15


def test_a_column_that_is_added_meanwhile_is_not_in_the_batches(client: Any) -> None:
    reading = client.read("t")
    client.alter_topic("t", schema="id long, name string, score double, more string")
    assert reading.to_arrow().schema == SCHEMA
    assert client.read("t").to_arrow().schema.names[-1] == "more"


def test_a_topic_that_was_deleted_meanwhile_is_not_read_in_its_place(client: Any) -> None:
    reading = client.read("t")
    client.delete_topic("t")
    client.create_topic("t", SCHEMA, partitions=2)
    with pytest.raises(quiverlog.UnknownTopicId):
        reading.to_arrow()


def test_progress_is_reported_on_request(client: Any, capsys: pytest.CaptureFixture[str]) -> None:
    reports: list[Any] = []
    reading = client.read("t", progress=reports.append)
    list(reading)
    assert [one.rows for one in reports][::3] == [0, 12] or reports[-1].rows == 15
    assert {one.rows_total for one in reports} == {15}
    client.read("t", progress=True).to_arrow()
    assert capsys.readouterr().err.endswith("t: 15 of 15 rows\n")
    with pytest.raises(quiverlog.InvalidArgument, match="progress"):
        client.read("t", progress=5)


def test_a_read_that_is_left_early_leaves_no_request_behind(client: Any) -> None:
    for batch in client.read("t", fetch_bytes=65_536):
        assert batch.num_rows == 4
        break
    assert ids(client.read("t", start={0: 9, 1: 5})) == [9]


# --- streams --------------------------------------------------------------------------------------
def test_engines_stream_a_read_and_a_consumer(broker: ScriptedBroker) -> None:
    with quiverlog.connect(broker.bootstrap) as client:
        client.create_topic("t", SCHEMA)
        assert pa.table(client.read("t")).schema == SCHEMA, "the schema of no rows"
        with client.producer("t", batch_rows=4) as producer:
            producer.send(rows(10))
        reading = client.read("t", columns=["id"])
        assert pl.DataFrame(reading)["id"].sum() == 45
        assert duckdb.sql("select sum(id) from reading").fetchall() == [(45,)]
        assert pa.table(reading).to_pandas()["id"].sum() == 45
        consumer = client.consumer("t", columns=["score"])
        next(consumer)
        assert pa.table(consumer).num_rows == 6
        assert broker.seen(m.FetchRequest)


def test_polars_leaves_columns_conditions_and_limits_to_the_reader(broker: ScriptedBroker) -> None:
    with quiverlog.connect(broker.bootstrap) as client:
        client.create_topic("t", SCHEMA)
        with client.producer("t", batch_rows=4) as producer:
            producer.send(rows(20))
        lazy = quiverlog.scan_polars("t", bootstrap=broker.bootstrap)
        names = [*SCHEMA.names, "_partition", "_offset", "_timestamp"]
        assert lazy.collect_schema().names() == names
        found = lazy.filter(pl.col("id") >= 18).select("name", "_offset").collect()
        assert found.rows() == [("n4", 18), ("n5", 19)]
        assert lazy.select("score").head(6).collect()["score"].to_list() == [0, 0.5, 1, 1.5, 2, 2.5]
        assert lazy.select(pl.len()).collect().item() == 20
        assert lazy.filter(pl.col("id") < 0).collect().height == 0
        same = quiverlog.scan_polars("t", client=client, start={0: 15})
        assert same.group_by("_partition").agg(pl.col("id").min()).collect().rows() == [(0, 15)]


# --- bounds ---------------------------------------------------------------------------------------
FULL = with_metadata(SCHEMA)


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        (pc.field("_offset") == 17, (17, 18)),
        (pc.field("_offset").isin([5, 7]), (5, 8)),
        ((pc.field("_offset") < 5) | (pc.field("id") == 1), (0, 100)),
        ((pc.field("_offset") >= 90) & (pc.field("id") == 1), (90, 100)),
        (pc.field("_partition") == 1, (0, 0)),
        (pc.field("_offset") < 0, (100, 100)),
        (~(pc.field("_offset") < 30), (30, 100)),
        (pc.field("_offset") == pc.field("id"), (0, 100)),
    ],
)
def test_bounds_are_as_narrow_as_arrow_can_prove(
    condition: pc.Expression, expected: tuple[int, int]
) -> None:
    assert MetadataBounds(condition, FULL).offsets(0, 0, 100) == expected


def test_a_moment_bounds_the_beginning_only() -> None:
    moment = datetime(2026, 1, 1, tzinfo=UTC)
    us = int(moment.timestamp()) * 1_000_000
    assert MetadataBounds(pc.field("_timestamp") >= pa.scalar(moment), FULL).time_us_min() == us
    assert MetadataBounds(pc.field("_timestamp") < pa.scalar(moment), FULL).time_us_min() == 0
    assert MetadataBounds(pc.field("id") < 5, FULL).time_us_min() == 0


def test_columns_that_a_condition_may_use() -> None:
    names = ["id", "Name", "two words", "x"]
    assert mentioned("ID = 1", names) == {"id", "two words"}
    assert mentioned("columns('i.*') = 1", names) == set(names)
    assert mentioned(pc.field("x") == 1, names) == {"x", "two words"}
