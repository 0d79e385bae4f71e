"""File formats by suffix. An unknown suffix is refused: rows in a format other than the name's
would be noticed too late."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import click

__all__ = ["FileKind", "compression_of", "kind_of"]

_FORMATS = {
    ".csv": "csv",
    ".tsv": "tsv",
    ".json": "json",
    ".jsonl": "json",
    ".ndjson": "json",
    ".parquet": "parquet",
    ".arrow": "arrow-file",
    ".feather": "arrow-file",
    ".ipc": "arrow-file",
    ".arrows": "arrow",
}
_COMPRESSIONS = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd", ".lz4": "lz4"}
_SUFFIX_CHARS_MAX = 12
"""Longer text after the last dot is not a suffix."""


@dataclass(frozen=True, slots=True)
class FileKind:
    """`format` None: the name has no suffix. `compression`: a codec of pyarrow."""

    format: str | None
    compression: str | None = None


def kind_of(path: str, *, option: str) -> FileKind:
    """Return a name's format; `option`, for the error, is the one that names a format."""
    is_file = path.startswith("/dev/shm/") or not path.startswith(("/dev/", "/proc/"))
    if path == "-" or not is_file:
        return FileKind(None)
    suffixes = [suffix.lower() for suffix in Path(path).suffixes]
    compression = _COMPRESSIONS.get(suffixes[-1]) if suffixes else None
    if compression is not None:
        suffixes.pop()
    if not suffixes or len(suffixes[-1]) > _SUFFIX_CHARS_MAX:
        return FileKind(None, compression)
    found = _FORMATS.get(suffixes[-1])
    if found is None:
        raise click.UsageError(
            f"{Path(path).name!r}: {suffixes[-1]} is no suffix of a known format: use one of "
            f"{_known_suffixes()}, or give {option}."
        )
    return FileKind(found, compression)


def compression_of(path: str) -> str | None:
    if path == "-":
        return None
    return _COMPRESSIONS.get(Path(path).suffix.lower())


def _known_suffixes() -> str:
    return f"{' '.join(_FORMATS)} (then {' '.join(_COMPRESSIONS)} if compressed)"
