"""The ranges of a task: what a fetch brings or refuses, against what the driver planned."""

from __future__ import annotations

import logging
from typing import Any

import pyarrow as pa
import pytest

from pyspark_quiverlog import pool
from pyspark_quiverlog.options import Use, parse_read_options
from pyspark_quiverlog.planning.ranges import Range
from pyspark_quiverlog.reader import LogSplit, SplitReader
from quiverlog.client.rows.decoding import ConsumerBatch
from quiverlog.errors import OffsetOutOfRange

SCHEMA = pa.schema([("id", pa.int64())])
RANGE = Range("t", "0a" * 16, 0, 10, 20, -1)


def read(monkeypatch: pytest.MonkeyPatch, *fetched: tuple[int, int] | Exception) -> list[int]:
    """Return the ids of [10, 20), where a fetch brings batches [start, end) or an error."""

    class Fetcher(list[Any]):
        def __init__(self, *_: Any, **__: Any) -> None:
            super().__init__(fetched)

        def __enter__(self) -> Fetcher:
            return self

        def __exit__(self, *_: object) -> None: ...

        def __iter__(self) -> Any:
            for one in fetched:
                if isinstance(one, Exception):
                    raise one
                ids = pa.record_batch([pa.array(range(*one), pa.int64())], schema=SCHEMA)
                yield ConsumerBatch(ids, "t", 0, one[0], 0, 0)

    monkeypatch.setattr(pool, "client", lambda where: None)
    monkeypatch.setattr("quiverlog.client.tables.fetcher.PartitionFetcher", Fetcher)
    monkeypatch.setattr("pyspark_quiverlog.reader.to_arrow_schema", lambda schema: schema)
    raw = {"bootstrap.servers": "a:1", "subscribe": "t", "failOnDataLoss": "false"}
    reader = SplitReader(parse_read_options(raw, Use.BATCH_READ), SCHEMA)
    return [i for batch in reader.read(LogSplit([RANGE])) for i in batch.column(0).to_pylist()]


def test_a_task_passes_on_the_batches_of_its_range(monkeypatch: pytest.MonkeyPatch) -> None:
    assert read(monkeypatch, (10, 13), (15, 20)) == [10, 11, 12, 15, 16, 17, 18, 19]


@pytest.mark.parametrize(
    ("fetched", "message"),
    [([(9, 13)], "a row twice"), ([(10, 13), (12, 20)], "a row twice"), ([(10, 21)], "after")],
)
def test_a_batch_outside_its_range_stops_the_task(
    monkeypatch: pytest.MonkeyPatch, fetched: list[tuple[int, int]], message: str
) -> None:
    with pytest.raises(AssertionError, match=message):
        read(monkeypatch, *fetched)


@pytest.mark.parametrize("log_start", [20, 21, 50])
def test_a_range_that_was_trimmed_up_to_its_end_or_beyond_has_no_rows(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, log_start: int
) -> None:
    with caplog.at_level(logging.WARNING, "pyspark_quiverlog"):
        assert read(monkeypatch, OffsetOutOfRange("gone", log_start_offset=log_start)) == []
    assert [r.getMessage() for r in caplog.records] == [
        "data loss, going on (failOnDataLoss=false): t-0: rows [10, 20) are no longer kept"
    ]
