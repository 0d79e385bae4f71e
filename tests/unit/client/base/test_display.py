"""What results look like, and the warning to a program that drops its rows."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import quiverlog
from quiverlog.client.base.arguments import NAMES_SHOWN_MAX, ROWS_SHOWN_MAX, names
from quiverlog.client.consumer.reading_plan import ReadProgress
from quiverlog.client.rows.decoding import ConsumerBatch
from tests.support.client_scenarios import SCHEMA, rows
from tests.support.scripted_broker import ScriptedBroker


@pytest.fixture
def broker() -> Iterator[ScriptedBroker]:
    with ScriptedBroker() as broker:
        yield broker


def batch_of(data: dict[str, Any], **types: pa.DataType) -> ConsumerBatch:
    schema = pa.schema([(name, types.get(name, pa.string())) for name in data])
    return ConsumerBatch(pa.RecordBatch.from_pydict(data, schema), "t", 1, 40, 0, 0)


# --- one line -------------------------------------------------------------------------------------
def test_topics_show_what_they_are_and_their_ids_are_hex(broker: ScriptedBroker) -> None:
    with quiverlog.connect(broker.bootstrap) as client:
        info = client.create_topic("t", SCHEMA, partitions=2, key="id")
        assert info is not None
        start = "TopicInfo('t', 2 partitions, replicas 1, key (id), schema 1, id"
        assert repr(info) == f"{start} {info.topic_id.hex()})"
        detail = repr(client.describe_topic("t"))
        assert "0 rows in 2 partitions, id long, name string, score double" in detail
        assert detail.endswith(f"id {info.topic_id.hex()})")
        assert repr(client.metadata()).endswith("topics t)")


def test_sends_and_schemas_show_their_state(broker: ScriptedBroker) -> None:
    with quiverlog.connect(broker.bootstrap) as client:
        client.create_topic("t", "id long, name string")
        history = client.schemas("t")
        assert repr(history) == "<SchemaHistory of ids [1], current 1: id int64, name string>"
        producer = client.producer("t", linger=60)
        future = producer.send([{"id": 1}, {"id": 2}])
        assert repr(future) == "<SendFuture: not acknowledged>"
        producer.flush()
        assert repr(future) == "<SendFuture: 2 rows acknowledged>"
        future.fail(quiverlog.TopicExists("too late"))
        assert repr(future).startswith("<SendFuture: failed: too late")
        producer.close()


@pytest.mark.parametrize("name", sorted(quiverlog.__all__))
def test_nothing_that_a_person_gets_prints_its_address(name: str) -> None:
    made = getattr(quiverlog, name)
    if isinstance(made, type):
        assert made.__repr__ is not object.__repr__, name


def test_producers_and_consumers_show_how_far_they_are(broker: ScriptedBroker) -> None:
    with quiverlog.connect(broker.bootstrap) as client:
        client.create_topic("t", SCHEMA)
        producer = client.producer("t", linger=60)
        producer.send(rows(2))
        assert "bytes not acknowledged" in repr(producer)
        producer.close()
        assert repr(producer) == "<Producer of t: closed>"
        consumer = client.consumer("t")
        next(consumer)
        assert repr(consumer) == "<Consumer of t: next offsets {0: 2}>"


def test_many_names_are_cut() -> None:
    assert names(["a", "b"]) == "a, b"
    assert names([str(i) for i in range(NAMES_SHOWN_MAX + 2)]).endswith("7 and 2 more")


# --- a table for notebooks ------------------------------------------------------------------------
def test_a_batch_is_a_table_whose_values_are_no_markup() -> None:
    batch = batch_of({"x": ["<script>", None, "x" * 200], "n": [1, 2, 3]}, n=pa.int64())
    html = batch._repr_html_()
    assert "&lt;script&gt;" in html
    assert "<script>" not in html
    assert "<td>null</td>" in html
    assert "x" * 81 not in html
    assert html.count("<tr>") == 4
    assert "<td>40</td>" in html, "the first offset"


def test_of_many_rows_the_first_are_shown() -> None:
    html = batch_of({"n": list(range(500))}, n=pa.int64())._repr_html_()
    assert html.count("<tr>") == ROWS_SHOWN_MAX + 1
    assert "and 480 more" in html


def test_values_that_python_has_not_are_shown_by_arrow() -> None:
    nanoseconds = pa.array([1], pa.time64("ns"))
    far = pa.array([2**62], pa.timestamp("us"))
    data = pa.RecordBatch.from_arrays([nanoseconds, far], names=["time", "far"])
    html = ConsumerBatch(data, "t", 0, 0, 0, 0)._repr_html_()
    assert html.count("<td>") == 3


def test_a_topic_is_a_table_of_its_partitions(broker: ScriptedBroker) -> None:
    with quiverlog.connect(broker.bootstrap) as client:
        info = client.create_topic("t", SCHEMA, partitions=3)
        assert info is not None
        for shown in (info, client.describe_topic("t")):
            assert shown._repr_html_().count("<tr>") == 4


@pytest.fixture
def reader(broker: ScriptedBroker) -> Iterator[quiverlog.Client]:
    """Of topic "t": 15 rows in each of two partitions, n from 0 to 14."""
    with quiverlog.connect(broker.bootstrap) as client:
        client.create_topic("t", "n int, s string", partitions=2)
        with client.producer("t") as producer:
            for partition in (0, 1):
                lines = [{"n": n, "s": f"<{partition}>"} for n in range(15)]
                producer.send(lines, partition=partition)
        yield client


def test_a_reading_is_a_table_of_its_first_rows(reader: quiverlog.Client) -> None:
    told: list[ReadProgress] = []
    reading = reader.read("t", progress=told.append)
    html = reading._repr_html_()
    assert "Reading of t: 30 rows in 2 partitions" in html
    assert (html.count("<tr>"), html.count("&lt;0&gt;")) == (ROWS_SHOWN_MAX + 1, 15)
    assert "and 10 more" in html
    assert told == [], "the progress is the caller's"
    assert reading.to_arrow().num_rows == 30
    assert "more" not in reader.read("t", partitions=[0])._repr_html_()


def test_of_a_condition_the_rows_that_it_chooses_are_shown(reader: quiverlog.Client) -> None:
    html = reader.read("t", where=pc.field("n") >= 12, columns=["s"])._repr_html_()
    assert html.count("<tr>") == 6 + 1
    assert "; of the first 30 rows" in html
    assert " more" not in html
    assert reader.read("t", start="latest")._repr_html_().count("<tr>") == 1


def test_a_reading_that_cannot_be_read_shows_why(reader: quiverlog.Client) -> None:
    reading = reader.read("t")
    reader.close()
    assert "[CLIENT_CLOSED" in reading._repr_html_()


# --- data frames ----------------------------------------------------------------------------------
def test_data_frames_and_engines_take_a_batch_as_it_is() -> None:
    batch = batch_of({"s": ["a", "b"], "n": [1, 2]}, n=pa.int64())
    assert pl.DataFrame(batch).to_dicts() == [{"s": "a", "n": 1}, {"s": "b", "n": 2}]
    assert pa.table(batch).equals(pa.table([["a", "b"], [1, 2]], names=["s", "n"]))
    table = pa.table(batch)
    assert duckdb.from_arrow(table).fetchall() == duckdb.sql("select * from batch").fetchall()


# --- rows that were never sent --------------------------------------------------------------------
FORGETFUL = """
import quiverlog
client = quiverlog.connect({bootstrap!r})
producer = client.producer("t", linger=60)
producer.send([{{"id": 1, "name": "a", "score": 0.5}}])
{end}
"""
FORGETFUL_ASYNCIO = """
import asyncio
import gc
import quiverlog
async def main():
    client = await quiverlog.aio.connect({bootstrap!r})
    producer = await client.producer("t", linger=60)
    await producer.send([{{"id": 1, "name": "a", "score": 0.5}}])
    {end}
asyncio.run(main())
gc.collect()
"""


@pytest.mark.parametrize(
    ("program", "end", "warns"),
    [
        (FORGETFUL, "", True),
        (FORGETFUL, "del producer", True),
        (FORGETFUL, "import os\nif not os.fork(): raise SystemExit\nproducer.flush()", False),
        (FORGETFUL, "client.close()", True),
        (FORGETFUL, "producer.flush()", False),
        (FORGETFUL, "producer.close()", False),
        (FORGETFUL_ASYNCIO, "", True),
        (FORGETFUL_ASYNCIO, "await producer.close()", False),
    ],
)
def test_a_program_that_ends_with_unsent_rows_gets_a_warning(
    broker: ScriptedBroker, program: str, end: str, warns: bool
) -> None:
    with quiverlog.connect(broker.bootstrap) as client:
        client.create_topic("t", SCHEMA)
    run = subprocess.run(
        [sys.executable, "-c", program.format(bootstrap=broker.bootstrap, end=end)],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert run.returncode == 0, run.stderr
    assert ("UnsentRows: Rows sent to t are not acknowledged" in run.stderr) is warns, run.stderr
