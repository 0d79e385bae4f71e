"""The Python client with dicts of 4 fields, against pyarrow's own conversion of the same rows.

Produce: from `send(list of dicts)` until every row is acknowledged with the default durability,
against `RecordBatch.from_pylist` alone. Consume: from the consumer's start until every row is a
dict again, against `to_pylist` of the same batches in memory.
"""

from __future__ import annotations

import gc
import itertools
import time

import pyarrow as pa

from benchmarks.harness import Comparison, Settings, interleave
from benchmarks.quiver import expect_rows, running, temporary_topic
from benchmarks.rows import SCHEMA, make_dicts

ROWS = 200_000
SENT_AT_ONCE = 10_000
REPEATS = 4
"""Repetitions of the rows in a round: they measure speed, not the few milliseconds of one flush."""


def run(settings: Settings) -> list[Comparison]:
    rows = make_dicts(settings.scaled(ROWS))
    parts = [rows[at : at + SENT_AT_ONCE] for at in range(0, len(rows), SENT_AT_ONCE)]
    # Half a million live objects that only the benchmark keeps would make every garbage collection
    # of either side a long one.
    gc.collect()
    gc.freeze()
    with running() as (_, client):
        names = (f"dicts-{number}" for number in itertools.count())

        def produce() -> float:
            name = next(names)
            with temporary_topic(client, name):
                with client.producer(name) as producer:
                    began = time.perf_counter()
                    for part in parts * REPEATS:
                        producer.send(part)
                    producer.flush()
                    seconds = time.perf_counter() - began
                expect_rows(client, name, len(rows) * REPEATS)
            return len(rows) * REPEATS / seconds

        def from_pylist() -> float:
            began = time.perf_counter()
            for part in parts * REPEATS:
                pa.RecordBatch.from_pylist(part, schema=SCHEMA)
            return len(rows) * REPEATS / (time.perf_counter() - began)

        produced = interleave(settings.rounds, produce, from_pylist)

        with temporary_topic(client, "stored"):
            with client.producer("stored") as producer:
                for part in parts:
                    producer.send(part)
            batches = [batch.data for batch in client.consumer("stored", start="earliest")]
            assert pa.Table.from_batches(batches).to_pylist() == rows

            def consume() -> float:
                began = time.perf_counter()
                count = 0
                for batch in client.consumer("stored", start="earliest"):
                    count += len(batch.data.to_pylist())
                seconds = time.perf_counter() - began
                assert count == len(rows)
                return count / seconds

            def to_pylist() -> float:
                began = time.perf_counter()
                count = sum(len(batch.to_pylist()) for batch in batches)
                return count / (time.perf_counter() - began)

            consumed = interleave(settings.rounds, consume, to_pylist)
    return [
        Comparison(
            "Python client, produce dicts of 4 fields",
            "rows/s",
            produced.ours,
            produced.baseline,
            budget=0.7,
        ),
        Comparison(
            "Python client, consume dicts of 4 fields",
            "rows/s",
            consumed.ours,
            consumed.baseline,
            budget=0.7,
        ),
    ]
