"""`dump-log` on good, torn and damaged segment files."""

from __future__ import annotations

import json
import tempfile
from functools import cache
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quiverlog.batch.codec import encode_batch
from quiverlog.batch.header import stamp
from quiverlog.cli import main
from quiverlog.cli.tools.dump_log import DumpedBatch, walk
from quiverlog.storage.disk.posix import PosixDisk
from quiverlog.storage.segment.segment import Segment
from quiverlog.types import Compression

SEGMENT_HEADER = 64


def batches(*row_counts: int, first: int = 100) -> bytes:
    parts = []
    for count in row_counts:
        rows = pa.record_batch({"id": pa.array(range(count), pa.int64())})
        batch = encode_batch(
            rows, schema_id=3, timestamp_us=1_700_000_000_000_000, compression=Compression.LZ4,
            producer_id=7, producer_epoch=1, base_sequence=first,
        )  # fmt: skip
        stamp(batch, 0, first, 5)
        parts.append(bytes(batch))
        first += count
    return b"".join(parts)


@cache
def header(first: int) -> bytes:
    """The first bytes of a segment, as storage itself writes them."""
    with tempfile.TemporaryDirectory() as directory:
        made = Segment.create(PosixDisk(), directory, first, 1)
        made.file.close()
        return Path(made.path).read_bytes()


def segment(*row_counts: int, first: int = 100) -> bytes:
    return header(first) + batches(*row_counts, first=first)


def dump(capsys, path: Path, content: bytes, *flags: str) -> tuple[int, dict]:
    path.write_bytes(content)
    code = main(["dump-log", str(path), "--format", "json", *flags])
    (result,) = json.loads(capsys.readouterr().out)
    return code, result


def test_a_good_segment(tmp_path: Path, capsys):
    code, result = dump(capsys, tmp_path / "s.log", segment(10, 1, 5))
    assert (code, result["problems"], result["rows"]) == (0, [], 16)
    offsets = [(b["base_offset"], b["last_offset"], b["row_count"]) for b in result["batches"]]
    assert offsets == [(100, 109, 10), (110, 110, 1), (111, 115, 5)]
    first = result["batches"][0]
    assert (first["position"], first["crc_ok"]) == (SEGMENT_HEADER, True)
    assert (first["leader_epoch"], first["schema_id"], first["compression"]) == (5, 3, "lz4")
    assert (first["producer_id"], first["producer_epoch"], first["base_sequence"]) == (7, 1, 100)
    assert first["timestamp_max_us"] == 1_700_000_000_000_000


def test_a_segment_without_batches(tmp_path: Path, capsys):
    assert dump(capsys, tmp_path / "s.log", segment()) == (
        0,
        {"file": str(tmp_path / "s.log"), "batches": [], "rows": 0, "problems": []},
    )


@pytest.mark.parametrize("content", [b"", b"\0" * 64, b"PK and so on" * 10, batches(1)])
def test_other_files_are_no_segments(tmp_path: Path, capsys, content):
    code, result = dump(capsys, tmp_path / "s.log", content)
    assert code == 4
    assert len(result["problems"]) == 1


def test_a_flipped_bit_is_found_and_the_rest_still_shown(tmp_path: Path, capsys):
    content = bytearray(segment(10, 10, 10))
    length = (len(content) - SEGMENT_HEADER) // 3
    content[SEGMENT_HEADER + length + 200] ^= 4
    code, result = dump(capsys, tmp_path / "s.log", bytes(content))
    assert (code, result["rows"]) == (4, 20)
    assert [b["crc_ok"] for b in result["batches"]] == [True, False, True]
    assert result["problems"] == [
        f"position {SEGMENT_HEADER + length}: damaged: {length} bytes, offsets 110 to 119 "
        "cannot be read"
    ]
    _, only = dump(capsys, tmp_path / "s.log", bytes(content), "--problems")
    assert [b["base_offset"] for b in only["batches"]] == [110]


@pytest.mark.parametrize("cut", [1, 63, 64, 100])
def test_a_torn_end_is_named(tmp_path: Path, capsys, cut):
    whole, more = segment(10), batches(10, first=110)
    code, result = dump(capsys, tmp_path / "s.log", whole + more[:cut])
    assert code == 4
    assert len(result["batches"]) == 1
    (problem,) = result["problems"]
    assert problem.startswith(f"position {len(whole)}: torn: {cut} bytes")


def test_a_hole_between_offsets_is_damage(tmp_path: Path, capsys):
    code, result = dump(capsys, tmp_path / "s.log", segment(10) + batches(1, first=120))
    assert code == 4
    assert result["problems"]


def test_the_table_has_a_line_per_batch(tmp_path: Path, capsys):
    path = tmp_path / "00000000000000000100.log"
    path.write_bytes(segment(10, 1))
    assert main(["dump-log", str(path)]) == 0
    out = capsys.readouterr().out
    assert "2 batches, 11 rows" in out
    assert "2023-11-14 22:13:20" in out


DAMAGED = st.builds(
    lambda cut, tail: segment(2)[:cut] + tail, st.integers(60, 400), st.binary(max_size=200)
)


@given(st.binary(max_size=300) | DAMAGED)
def test_any_bytes_can_be_walked(content):
    end = 0
    for found in walk(memoryview(content)):
        if isinstance(found, DumpedBatch):
            assert found.position >= end
            end = found.position + found.size_bytes
    assert end <= len(content)
