"""Reading into a table: `client.read(...).to_arrow()` against pyarrow.dataset on the same rows.

The rows are stored in batches as producers send them by default. The dataset has them in one
uncompressed Arrow file of the same batches, both from a warm page cache; both sides end with a
table, whose rows are counted and one column of which is summed, so that no page stays unread.

The client is on the broker's machine, so that it reads the rows from the broker's files. The first
row has 235 MB, of which opening (four questions, and the first answer) takes a tenth of the time;
the second has four times as much. The third row shows what a socket costs: the same read with
`local.reads=false`, against the same bytes from a server that sends a mapped file and does nothing
else, received into the same memory, the next request on its way meanwhile.
"""

from __future__ import annotations

import socket
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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
    return [
        _of_a_file(settings, "read into a table", BATCHES),
        _of_a_file(settings, "read four times as much into a table", 4 * BATCHES),
        _of_a_socket(settings),
    ]


def _of_a_file(settings: Settings, name: str, count: int) -> Comparison:
    batches = settings.scaled(count)
    rows = batches * BATCH_ROWS
    batch = make_batch(BATCH_ROWS)
    with _stored(batch, batches) as (read, directory):
        path = directory / "rows.arrow"
        with pa.ipc.new_file(path, SCHEMA) as file:
            for _ in range(batches):
                file.write_batch(batch)

        def baseline() -> float:
            began_s = time.perf_counter()
            _check(ds.dataset(path, format="ipc").to_table(), rows)
            return rows / (time.perf_counter() - began_s) / 1e6

        measured = interleave(settings.rounds, read, baseline)
    return Comparison(
        name,
        "Mrows/s",
        measured.ours,
        measured.baseline,
        budget=0.8,
        goal=1.0,
    )


def _of_a_socket(settings: Settings) -> Comparison:
    batches = settings.scaled(BATCHES)
    rows = batches * BATCH_ROWS
    batch = make_batch(BATCH_ROWS)
    with _stored(batch, batches, **{"local.reads": "false"}) as (read, directory):
        stored = directory / "stored"
        slice_bytes = _store(stored, batch, batches)
        with bare_server("send", stored, slice_bytes, HEAD_BYTES) as address:

            def transfer() -> float:
                began_s = time.perf_counter()
                _receive(address, stored.stat().st_size, slice_bytes)
                return rows / (time.perf_counter() - began_s) / 1e6

            measured = interleave(settings.rounds, read, transfer)
    return Comparison(
        "read into a table, by a socket, against its bytes",
        "Mrows/s",
        measured.ours,
        measured.baseline,
        budget=0.8,
        goal=1.0,
    )


@contextmanager
def _stored(
    batch: pa.RecordBatch, batches: int, **config: str
) -> Iterator[tuple[Callable[[], float], Path]]:
    """A broker with the rows: what reads them once, in Mrows/s, and a folder for the other side."""
    rows = batches * batch.num_rows
    with (
        running(**config) as (_, client),
        temporary_topic(client, "read", durability="memory") as topic,
        tempfile.TemporaryDirectory() as directory,
    ):
        with client.producer(topic.name, batch_rows=BATCH_ROWS, compression="none") as producer:
            for _ in range(batches):
                producer.send(batch)

        def read() -> float:
            began_s = time.perf_counter()
            _check(client.read(topic.name).to_arrow(), rows)
            return rows / (time.perf_counter() - began_s) / 1e6

        yield read, Path(directory)


def _check(table: pa.Table, rows: int) -> None:
    if table.num_rows != rows or pc.sum(table["k"]).as_py() is None:
        raise AssertionError(f"{table.num_rows} rows of {rows}")


def _store(path: Path, batch: pa.RecordBatch, batches: int) -> int:
    """Write the bytes of all stored batches; how many of them one answer has."""
    per_fetch = min(batches, BATCHES_PER_FETCH)
    encoded = bytes(encode_batch(batch, schema_id=1, timestamp_us=1))
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
