"""Reading into a table: `client.read(...).to_arrow()` against pyarrow.dataset on the same rows.

The rows are stored in batches as producers send them by default. The dataset has them in one
uncompressed Arrow file of the same batches, both from a warm page cache; both sides end with a
table, whose rows are counted and one column of which is summed, so that no page stays unread.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from benchmarks.harness import Comparison, Settings, interleave
from benchmarks.quiver import running, temporary_topic
from benchmarks.rows import SCHEMA, make_batch

BATCH_ROWS: Final = 32_768
BATCHES: Final = 256


def run(settings: Settings) -> list[Comparison]:
    batches = settings.scaled(BATCHES)
    rows = batches * BATCH_ROWS
    batch = make_batch(BATCH_ROWS)
    with (
        running() as (_, client),
        temporary_topic(client, "read", durability="memory") as topic,
        tempfile.TemporaryDirectory() as directory,
    ):
        with client.producer(topic.name, batch_rows=BATCH_ROWS, compression="none") as producer:
            for _ in range(batches):
                producer.send(batch)
        path = Path(directory) / "rows.arrow"
        with pa.ipc.new_file(path, SCHEMA) as file:
            for _ in range(batches):
                file.write_batch(batch)

        def ours() -> float:
            began_s = time.perf_counter()
            _check(client.read(topic.name).to_arrow(), rows)
            return rows / (time.perf_counter() - began_s) / 1e6

        def baseline() -> float:
            began_s = time.perf_counter()
            _check(ds.dataset(path, format="ipc").to_table(), rows)
            return rows / (time.perf_counter() - began_s) / 1e6

        measured = interleave(settings.rounds, ours, baseline)
    return [
        Comparison(
            "read into a table",
            "Mrows/s",
            measured.ours,
            measured.baseline,
            budget=0.8,
            goal=1.0,
        )
    ]


def _check(table: pa.Table, rows: int) -> None:
    if table.num_rows != rows or pc.sum(table["k"]).as_py() is None:
        raise AssertionError(f"{table.num_rows} rows of {rows}")
