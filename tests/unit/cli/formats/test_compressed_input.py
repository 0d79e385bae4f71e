"""`produce` of text that is compressed, or not UTF-8, and whose name has no suffix for it."""

from __future__ import annotations

import bz2
import gzip
import io
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from quiverlog.cli.console.failures import CommandFailed
from quiverlog.cli.formats.read_files import open_source

ROWS = b"city,n\n" + b"".join(b"Oslo %d,%d\n" % (i, i) for i in range(5000))


def by_arrow(codec: str) -> Callable[[bytes], bytes]:
    def compress(data: bytes) -> bytes:
        sink = pa.BufferOutputStream()
        with pa.CompressedOutputStream(sink, codec) as stream:
            stream.write(data)
        return sink.getvalue().to_pybytes()

    return compress


CODECS = {
    "gzip": gzip.compress,
    "bz2": bz2.compress,
    "zstd": by_arrow("zstd"),
    "lz4": by_arrow("lz4"),
}


class Stdin:
    """As `sys.stdin`, over bytes that come as a pipe brings them."""

    def __init__(self, data: bytes) -> None:
        self.buffer = io.BufferedReader(_Pipe(data))


class _Pipe(io.RawIOBase):
    def __init__(self, data: bytes) -> None:
        self._rest = data

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview, /) -> int:  # type: ignore[override]
        part, self._rest = self._rest[: min(len(buffer), 700)], self._rest[700:]
        buffer[: len(part)] = part
        return len(part)


def rows_of(path: str, file_format: str = "auto") -> int:
    with open_source(path, file_format) as source:
        return sum(batch.num_rows for batch in source.batches)


@pytest.mark.parametrize("file_format", ["auto", "csv"])
@pytest.mark.parametrize("codec", CODECS)
def test_compressed_stdin_is_unpacked(
    monkeypatch: pytest.MonkeyPatch, codec: str, file_format: str
) -> None:
    monkeypatch.setattr(sys, "stdin", Stdin(CODECS[codec](ROWS)))
    assert rows_of("-", file_format) == 5000


@pytest.mark.parametrize("codec", CODECS)
def test_a_compressed_file_without_a_suffix_is_unpacked(tmp_path: Path, codec: str) -> None:
    path = tmp_path / "rows"
    path.write_bytes(CODECS[codec](ROWS))
    assert rows_of(str(path)) == 5000


@pytest.mark.parametrize("codec", CODECS)
def test_a_compressed_file_with_a_suffix_of_text_is_refused(tmp_path: Path, codec: str) -> None:
    path = tmp_path / "rows.csv"
    path.write_bytes(CODECS[codec](ROWS))
    with pytest.raises(CommandFailed, match=f"compressed with {codec}"):
        rows_of(str(path))


@pytest.mark.parametrize("codec", CODECS)
def test_what_breaks_off_is_no_end(monkeypatch: pytest.MonkeyPatch, codec: str) -> None:
    data = CODECS[codec](ROWS)
    monkeypatch.setattr(sys, "stdin", Stdin(data[: len(data) // 2]))
    with pytest.raises(CommandFailed, match="Truncated"):
        rows_of("-", "csv")


def test_letters_alone_are_no_compression(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", Stdin(b"BZh9,n\nx,1\n"))
    assert rows_of("-") == 1


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-be"])
def test_utf_16_is_named(tmp_path: Path, encoding: str) -> None:
    path = tmp_path / "rows.csv"
    path.write_bytes("\ufeffa\n1\n".encode(encoding))
    with pytest.raises(CommandFailed, match="UTF-16"):
        rows_of(str(path))
