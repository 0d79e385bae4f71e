"""The configuration file: what a TOML file says, key by key, and in which line.

Owns what is taken for a configuration file at all: a regular file of bounded size, so that reading
one ends (a FIFO would wait for whoever writes it). Must not know: which keys there are.
"""

from __future__ import annotations

import os
import stat
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from quiverlog.errors import InvalidConfig

__all__ = ["CONFIG_FILE_BYTES_MAX", "FileValue", "read_config_file"]

CONFIG_FILE_BYTES_MAX: Final = 65_536


class FileValue(NamedTuple):
    """A dotted key, its value, and the line where its statement begins."""

    name: str
    value: object
    line: int


def read_config_file(path: Path) -> list[FileValue]:
    """All values of a file.

    Raises:
        InvalidConfig: it cannot be read, is no regular file, is too large, or is not TOML.
    """
    try:
        text = _read_bounded(path).decode()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidConfig(f"{path}: cannot be read: {error}.") from error
    try:
        values = dict(_flatten(tomllib.loads(text)))
        lines = _lines_of(text)
    except tomllib.TOMLDecodeError as error:
        raise InvalidConfig(f"{path}: not TOML: {error}.") from error
    except RecursionError:
        raise InvalidConfig(f"{path}: nested too deep.") from None
    return [FileValue(name, value, lines[name]) for name, value in values.items()]


def _read_bounded(path: Path) -> bytes:
    # O_NONBLOCK: opening a FIFO would wait for somebody to open its other end.
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(fd, "rb", buffering=0) as file:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise InvalidConfig(f"{path}: not a regular file.")
        data = bytearray()
        while piece := file.read(CONFIG_FILE_BYTES_MAX + 1 - len(data)):
            data += piece
    if len(data) > CONFIG_FILE_BYTES_MAX:
        raise InvalidConfig(f"{path}: larger than {CONFIG_FILE_BYTES_MAX} bytes.")
    return bytes(data)


def _flatten(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, object]]:
    """`[a] b.c = 1` -> `a.b.c`, 1: dotted keys, quoted keys and tables are all the same."""
    for key, value in table.items():
        if isinstance(value, dict) and value:
            yield from _flatten(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def _lines_of(text: str) -> dict[str, int]:
    """The line where each key's statement begins: after the last prefix of the text that is TOML
    without it. (`tomllib` keeps no positions; a configuration is short.)"""
    lines = text.split("\n")
    found: dict[str, int] = {}
    before = 0
    for count, line in enumerate(lines, 1):
        between_statements = before == count - 1
        if between_statements and (not line.strip() or line.lstrip().startswith("#")):
            before = count
            continue
        try:
            table = tomllib.loads("\n".join(lines[:count]))
        except tomllib.TOMLDecodeError:
            continue
        for name, _ in _flatten(table):
            found.setdefault(name, before + 1)
        before = count
    return found
