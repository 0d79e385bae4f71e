"""Small files with much in them: memory is bounded, whatever the file holds."""

from __future__ import annotations

import gzip
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from quiverlog.cli.formats import memory_bound, read_files
from quiverlog.cli.formats.memory_bound import bounded_memory
from quiverlog.cli.formats.read_files import open_source
from quiverlog.errors import FileTooLarge
from quiverlog.limits import FILE_BATCH_BYTES, FILE_MEMORY_BYTES_MAX, GIB, KIB, MIB

SMALL_FILE_BYTES_MAX = 5 * KIB
BOUND_BYTES = 64 * MIB
USUAL_BYTES = 512 * MIB
"""More than Python with pyarrow has by itself, and stacks of threads."""
ARROW_S_OWN_BYTES = 1 * GIB
"""What Arrow's allocator reserves and may fill before it asks the system for more."""


def repeated(value: str, rows: int) -> pa.Array:
    """A column of one value, which a file holds once."""
    return pa.DictionaryArray.from_arrays(pa.array([0] * rows, pa.int32()), pa.array([value]))


def parquet(path: Path, column: pa.Array) -> Path:
    pq.write_table(pa.table({"s": column}), path, compression="zstd", store_schema=False)
    assert path.stat().st_size < SMALL_FILE_BYTES_MAX
    return path


def in_one_row(values: pa.Array) -> pa.Array:
    return pa.ListArray.from_arrays(pa.array([0, len(values)], pa.int32()), values)


READ = """
import re, sys
from quiverlog.cli.formats import read_files
from quiverlog.errors import FileTooLarge
if len(sys.argv) > 2:
    read_files.FILE_MEMORY_BYTES_MAX = int(sys.argv[2])
rows = bytes_max = 0
try:
    with read_files.open_source(sys.argv[1]) as source:
        for batch in source.batches:
            rows += batch.num_rows
            bytes_max = max(bytes_max, batch.nbytes)
    print(rows, bytes_max, end=" ")
except FileTooLarge as error:
    print(error.code_name(), error, end=" ")
print(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1])
"""


def read(path: Path, *bound: int) -> tuple[str, int]:
    """The output of a separate process that reads the file, and its peak memory.

    With a bound of its own, Arrow asks the system for every piece and reserves none.
    """
    done = subprocess.run(
        [sys.executable, "-c", READ, str(path), *map(str, bound)],
        env=os.environ | ({"ARROW_DEFAULT_MEMORY_POOL": "system"} if bound else {}),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    printed, _, peak_kib = done.stdout.strip().rpartition(" ")
    return printed, int(peak_kib) * KIB


def test_two_gigabytes_of_text_in_five_kilobytes_come_in_pieces(tmp_path: Path) -> None:
    printed, peak_bytes = read(parquet(tmp_path / "x.parquet", repeated("x" * 32 * KIB, 65_536)))
    rows, bytes_max = map(int, printed.split())
    assert rows == 65_536
    assert bytes_max < FILE_BATCH_BYTES + MIB
    assert peak_bytes < FILE_MEMORY_BYTES_MAX + ARROW_S_OWN_BYTES


def test_one_row_that_no_memory_holds_is_refused_with_file_and_limit(tmp_path: Path) -> None:
    text = in_one_row(repeated("x" * 32 * KIB, 65_535))
    path = parquet(tmp_path / "x.parquet", text)
    printed, peak_bytes = read(path)
    assert printed.startswith(f"FILE_TOO_LARGE {path}: reading it takes more than 1024 MiB")
    assert peak_bytes < FILE_MEMORY_BYTES_MAX + ARROW_S_OWN_BYTES


def test_a_packed_file_of_zeros_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet.gz"
    with gzip.open(path, "wb", compresslevel=1) as file:
        for _ in range(4):
            file.write(bytes(BOUND_BYTES))
    printed, peak_bytes = read(path, BOUND_BYTES)
    assert printed.startswith(f"FILE_TOO_LARGE {path}: reading it takes more than 64 MiB")
    assert peak_bytes < 4 * BOUND_BYTES + USUAL_BYTES


@pytest.mark.parametrize("kind", [pa.ipc.new_file, pa.ipc.new_stream])
def test_a_compressed_batch_of_arrow_is_refused(tmp_path: Path, kind: Any) -> None:
    path = tmp_path / "x.arrow"
    data = pa.py_buffer(bytes(8 * BOUND_BYTES))
    zeros = pa.Array.from_buffers(pa.int64(), BOUND_BYTES, [None, data], null_count=0)
    batch = pa.record_batch({"x": zeros})
    with kind(path, batch.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write(batch)
    printed, peak_bytes = read(path, BOUND_BYTES)
    assert printed.startswith(f"FILE_TOO_LARGE {path}")
    assert peak_bytes < 4 * BOUND_BYTES + USUAL_BYTES


# --- The bound itself, a small one ----------------------------------------------------------------
@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """A bound that a test fills quickly; nothing else begins threads meanwhile."""
    monkeypatch.setattr(memory_bound, "_THREADS", 0)
    monkeypatch.setattr(memory_bound.os, "cpu_count", lambda: 1)
    before = resource.getrlimit(resource.RLIMIT_DATA)
    yield 64 * MIB
    assert resource.getrlimit(resource.RLIMIT_DATA) == before


def test_below_at_and_above_the_bound(small: int) -> None:
    for taken in (small - 8 * MIB, small):
        with bounded_memory("x.parquet", small):
            assert len(bytearray(taken)) == taken
    # Far above: what other tests have left in this process may be given back meanwhile.
    with (
        pytest.raises(FileTooLarge, match=r"x\.parquet.*64 MiB"),
        bounded_memory("x.parquet", small),
    ):
        bytearray(small + GIB)
    assert len(bytearray(small + GIB)), "afterwards it is as before"


def test_a_bound_that_the_process_has_already_stays(small: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (8 * GIB, hard))
    try:
        with bounded_memory("x", 100 * GIB):
            assert resource.getrlimit(resource.RLIMIT_DATA)[0] == 8 * GIB
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def test_rows_are_read_on_where_memory_was_not_enough(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """None twice and none left out, at whatever row of whatever group the memory ends."""
    path = tmp_path / "x.parquet"
    pq.write_table(pa.table({"i": range(1000)}), path, row_group_size=300)
    monkeypatch.setattr(read_files, "_ROWS_PER_BATCH", 128)
    calls: list[int] = []

    class Scarce(pq.ParquetFile):  # type: ignore[misc]
        def iter_batches(self, *, batch_size: int, **words: object) -> Iterator[pa.RecordBatch]:
            calls.append(batch_size)
            for number, batch in enumerate(super().iter_batches(batch_size=batch_size, **words)):
                if (batch_size, number) in ((128, 2), (8, 5)):
                    raise MemoryError
                yield batch

    monkeypatch.setattr(pq, "ParquetFile", Scarce)
    with open_source(str(path)) as source:
        found = [i for batch in source.batches for i in batch.column("i").to_pylist()]
    assert found == list(range(1000))
    assert calls == [128, 8, 1, 1, 1, 1]
