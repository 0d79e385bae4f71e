"""A file of CSV into a topic: the command `quiverlog produce` against pyarrow's own reader.

Ours is the whole command as it is typed, from the start of its process to its end: reading, parsing
with the topic's types, encoding, sending, and rows on disk (`flushed`, the default). The baseline
reads the same file with the same types into a table, with all its threads, and does nothing else.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.csv as csv

from benchmarks.harness import Comparison, Settings, interleave
from benchmarks.quiver import expect_rows, running, temporary_topic
from benchmarks.rows import SCHEMA, make_batch

BATCH_ROWS: Final = 65_536
BATCHES: Final = 128


def run(settings: Settings) -> list[Comparison]:
    batches = settings.scaled(BATCHES)
    rows = batches * BATCH_ROWS
    batch = make_batch(BATCH_ROWS)
    with running() as (broker, client), tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "rows.csv"
        with csv.CSVWriter(path, SCHEMA) as file:
            for _ in range(batches):
                file.write_batch(batch)
        types = {field.name: field.type for field in SCHEMA}

        def ours() -> float:
            with temporary_topic(client, "csv") as topic:
                words = ["produce", str(path), "--topic", topic.name, "--quiet"]
                began_s = time.perf_counter()
                subprocess.run(
                    [sys.executable, "-m", "quiverlog", *words, "-b", broker.bootstrap],
                    check=True,
                    stdout=subprocess.DEVNULL,
                    timeout=120,
                )
                seconds = time.perf_counter() - began_s
                expect_rows(client, topic.name, rows)
            return rows / seconds / 1e6

        def baseline() -> float:
            began_s = time.perf_counter()
            table = csv.read_csv(path, convert_options=csv.ConvertOptions(column_types=types))
            if table.num_rows != rows or table.schema != pa.schema(SCHEMA):
                raise AssertionError(f"{table.num_rows} rows of {rows}")
            return rows / (time.perf_counter() - began_s) / 1e6

        measured = interleave(settings.rounds, ours, baseline)
    return [
        Comparison(
            "produce a file of CSV",
            "Mrows/s",
            measured.ours,
            measured.baseline,
            budget=0.5,
            goal=0.8,
        )
    ]
