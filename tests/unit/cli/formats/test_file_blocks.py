"""Blocks of a file: whole lines, every byte once, in memory that is used again."""

from __future__ import annotations

import io
from pathlib import Path

import pyarrow as pa
import pytest

from quiverlog.cli.formats import read_csv
from quiverlog.cli.formats.read_csv import FileBlocks, done_ahead
from quiverlog.cli.formats.read_files import open_source
from quiverlog.cli.formats.read_text import CountingFile


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


@pytest.mark.parametrize("is_given_back", [True, False])
@pytest.mark.parametrize("first_bytes", [None, 1, 5])
@pytest.mark.parametrize("text", TEXTS)
def test_whole_lines_and_every_byte_once(
    monkeypatch: pytest.MonkeyPatch, text: bytes, first_bytes: int | None, is_given_back: bool
) -> None:
    monkeypatch.setattr(read_csv, "_BLOCK_BYTES", 16)
    for size in (1, 3, 16, 1000):
        source = CountingFile(io.BufferedReader(Miser(text, size), buffer_size=1))
        blocks = FileBlocks(source, first_bytes=first_bytes)
        found = []
        for block in blocks:
            found.append(bytes(block))
            if is_given_back:
                block[:] = b"x" * len(block)  # whoever gives it back has no use for it any more
                blocks.give_back(block)
        assert b"".join(found) == text
        assert all(found)
        assert all(block.endswith(b"\n") for block in found[:-1])
        assert source.done == len(text)


def test_memory_is_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_csv, "_BLOCK_BYTES", 16)
    memories: list[object] = []  # kept, so that each has an identity of its own
    blocks = FileBlocks(CountingFile(io.BufferedReader(io.BytesIO(b"1234567\n" * 50))))
    for block in blocks:
        memories.append(block.obj)
        blocks.give_back(block)
    assert len({id(memory) for memory in memories}) == 2 < len(memories)


def test_a_block_that_is_read_lies_still(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Several blocks are parsed at a time, with and without quotes, of lines of any length."""
    monkeypatch.setattr(read_csv, "_BLOCK_BYTES", 256)
    path = tmp_path / "rows.csv"
    names = [f'"q{n},\n"' if n % 40 > 35 else "n" * (n % 300) for n in range(2_000)]
    path.write_text("n,name\n" + "".join(f"{n},{names[n]}\n" for n in range(2_000)))
    for schema in (None, pa.schema([("n", pa.int64()), ("name", pa.string())])):
        with open_source(str(path), schema=schema) as source:
            table = pa.Table.from_batches(source.batches)
        assert table["n"].to_pylist() == list(range(2_000))
        assert table["name"].to_pylist() == [name.strip('"') or None for name in names]


def test_the_first_results_are_under_way_before_they_are_asked_for() -> None:
    begun: list[int] = []

    def items():
        for n in range(2):
            begun.append(n)
            yield n
        raise OSError("the file is gone")

    results = done_ahead(str, items(), threads=2)
    assert begun == [0, 1]
    assert [next(results), next(results)] == ["0", "1"]
    with pytest.raises(OSError, match="the file is gone"):
        next(results)
