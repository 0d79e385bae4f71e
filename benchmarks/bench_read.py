"""Reading into a table: `client.read(...).to_arrow()` against pyarrow.dataset on the same rows.

The rows are stored in batches as producers send them by default. The dataset has them in one
uncompressed Arrow file of the same batches, both from a warm page cache; both sides end with a
table, whose rows are counted and one column of which is summed, so that no page stays unread.

The second row tells what a socket costs: the same bytes from a server that sends a mapped file and
does nothing else, received into the same memory, the next request on its way meanwhile.
"""

from __future__ import annotations

import socket
import tempfile
import time
from collections import deque
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from benchmarks.baselines.process import bare_server
from benchmarks.harness import Comparison, Settings, interleave
from benchmarks.quiver import running, temporary_topic
from benchmarks.rows import SCHEMA, make_batch
from quiverlog.batch.codec import encode_batch

BATCH_ROWS: Final = 32_768
BATCHES: Final = 256
BATCHES_PER_FETCH: Final = 16
HEAD_BYTES: Final = 128
"""Of an answer's frame, about."""


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
        stored = Path(directory) / "stored"
        slice_bytes = _store(stored, batch, batches)
        with bare_server("send", stored, slice_bytes, HEAD_BYTES) as address:

            def transfer() -> float:
                began_s = time.perf_counter()
                _receive(address, stored.stat().st_size, slice_bytes)
                return rows / (time.perf_counter() - began_s) / 1e6

            beside = interleave(settings.rounds, ours, transfer)
    return [
        Comparison(
            "read into a table",
            "Mrows/s",
            measured.ours,
            measured.baseline,
            budget=0.8,
            goal=1.0,
        ),
        Comparison(
            "read into a table, against its bytes through a socket",
            "Mrows/s",
            beside.ours,
            beside.baseline,
            budget=0.8,
            goal=1.0,
        ),
    ]


def _check(table: pa.Table, rows: int) -> None:
    if table.num_rows != rows or pc.sum(table["k"]).as_py() is None:
        raise AssertionError(f"{table.num_rows} rows of {rows}")


def _store(path: Path, batch: pa.RecordBatch, batches: int) -> int:
    """Write the bytes of all stored batches; how many of them one answer has."""
    per_fetch = min(batches, BATCHES_PER_FETCH)
    encoded = encode_batch(batch, schema_id=1, timestamp_us=1)
    path.write_bytes(encoded * (batches - batches % per_fetch))
    return per_fetch * len(encoded)


def _receive(address: tuple[str, int], size: int, slice_bytes: int) -> list[memoryview]:
    """Ask for slice after slice, one ahead; all of them are kept, as the batches of a table are."""
    kept = []
    request = (4 + HEAD_BYTES).to_bytes(4, "little") + bytes(4 + HEAD_BYTES)
    left = deque([slice_bytes + HEAD_BYTES] * (size // slice_bytes))
    with socket.create_connection(address) as connection:
        connection.sendall(request)
        while left:
            view = memoryview(pa.allocate_buffer(left.popleft())).cast("B")
            kept.append(view)
            if left:
                connection.sendall(request)
            while view:
                view = view[connection.recv_into(view) :]
    return kept
