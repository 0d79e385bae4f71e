"""Blocks of text: whole lines, every byte once, of a file and of a pipe."""

from __future__ import annotations

import io
from pathlib import Path

import pyarrow as pa
import pytest

from quiverlog.cli.formats import read_text
from quiverlog.cli.formats.read_files import open_source
from quiverlog.cli.formats.read_text import CountingFile, TextOptions, blocks_of


class Miser(io.RawIOBase):
    """Gives a few bytes at a time, as a decompressor may."""

    def __init__(self, content: bytes, size: int) -> None:
        self._inner = io.BytesIO(content)
        self._size = size

    def readable(self) -> bool:
        return True

    def readinto(self, buffer) -> int:
        return self._inner.readinto(memoryview(buffer)[: self._size])


TEXTS = (
    b"",
    b"\n",
    b"a\nbc\n\ndef",
    b"a" * 100 + b"\nb\n" + b"c" * 33,
    b"0123456\n" * 9,
    b"01234567\n89abcdef\n" * 5,
    b"\n" * 40,
)


@pytest.mark.parametrize("streamed", [True, False])
@pytest.mark.parametrize("text", TEXTS)
def test_whole_lines_and_every_byte_once(
    monkeypatch: pytest.MonkeyPatch, text: bytes, streamed: bool
) -> None:
    monkeypatch.setattr(read_text, "_BLOCK_BYTES", 16)
    for size in (1, 3, 16, 1000):
        source = CountingFile(io.BufferedReader(Miser(text, size), buffer_size=1))
        found = list(blocks_of(source, TextOptions(streamed=streamed)))
        assert b"".join(found) == text
        assert all(found)
        assert all(block.endswith(b"\n") for block in found[:-1])
        assert source.done == len(text)


@pytest.mark.parametrize(
    "schema", [None, pa.schema([("n", pa.int64()), ("name", pa.string())])], ids=["", "schema"]
)
def test_records_of_any_length_lie_in_any_number_of_blocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, schema: pa.Schema | None
) -> None:
    """With and without quotes."""
    monkeypatch.setattr(read_text, "_BLOCK_BYTES", 256)
    path = tmp_path / "rows.csv"
    names = [f'"q{n},\n"' if n % 40 > 35 else "n" * (n % 300) for n in range(2_000)]
    path.write_text("n,name\n" + "".join(f"{n},{names[n]}\n" for n in range(2_000)))
    with open_source(str(path), schema=schema) as source:
        table = pa.Table.from_batches(source.batches)
    assert table["n"].to_pylist() == list(range(2_000))
    assert table["name"].to_pylist() == [name.strip('"') or None for name in names]
