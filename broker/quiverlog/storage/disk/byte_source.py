"""Bytes for Python itself to read, copied with pread, a window at a time: a bad sector is then an
error of a range; through a mapping it would be SIGBUS.

Unreadable or cut blocks are replaced by bytes that no batch has, and a walk finds damage there.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Final, Protocol

from quiverlog.batch.checksum import crc32c
from quiverlog.limits import KIB, MIB
from quiverlog.storage.disk.disk import File, is_special_file

__all__ = [
    "BLOCK_BYTES",
    "BufferBytes",
    "ByteSource",
    "FileBytes",
    "checksum",
    "is_unreadable",
    "readable_bytes",
]

_WINDOW_BYTES: Final = 256 * KIB
_CHECKSUM_BYTES: Final = MIB
BLOCK_BYTES: Final = 4 * KIB
_UNREADABLE: Final = b"\xee"
"""Neither zero (bytes that were never written) nor a batch's magic."""


class ByteSource(Protocol):
    @property
    def size(self) -> int: ...

    def read(self, position: int, size: int) -> memoryview:
        """Return bytes, fewer only at the end of the source."""


class BufferBytes:
    __slots__ = ("_view",)

    def __init__(self, view: bytes | memoryview) -> None:
        self._view = memoryview(view)

    @property
    def size(self) -> int:
        return len(self._view)

    def read(self, position: int, size: int) -> memoryview:
        return self._view[position : position + size]


class FileBytes:
    """The first `size` bytes of a file, read `window_bytes` at a time.

    `before` is called with (position, size) before each window; its exceptions leave `read`.
    """

    __slots__ = ("_before", "_file", "_start", "_whole", "_window", "_window_bytes", "size")

    def __init__(
        self,
        file: File,
        size: int,
        *,
        window_bytes: int = _WINDOW_BYTES,
        before: Callable[[int, int], None] | None = None,
    ) -> None:
        assert 0 <= size <= file.size
        self._file = file
        self._before = before
        self._window_bytes = window_bytes
        self._window = memoryview(b"")
        self._start = 0
        self._whole = True
        self.size = size

    def holds(self, start: int, end: int) -> bool:
        return self._whole and self._start <= start and end <= self._start + len(self._window)

    def read(self, position: int, size: int) -> memoryview:
        assert 0 <= position <= self.size
        size = min(size, self.size - position)
        at = position - self._start
        if at < 0 or at + size > len(self._window):
            wanted = min(max(size, self._window_bytes), self.size - position)
            if self._before is not None:
                self._before(position, wanted)
            data, self._whole = _read_around_errors(self._file, position, wanted)
            self._window = memoryview(data)
            assert len(self._window) == wanted, "a source returns the bytes below its size"
            self._start, at = position, 0
        return self._window[at : at + size]


def _read_around_errors(file: File, position: int, size: int) -> tuple[bytes, bool]:
    try:
        data = file.read_copy(position, size)
        if len(data) == size:
            return data, True
        return data + _UNREADABLE * (size - len(data)), False  # The file was cut.
    except OSError as error:
        if not is_unreadable(error):
            raise
    parts: list[bytes] = []
    end = position + size
    while position < end:
        block = min(BLOCK_BYTES - position % BLOCK_BYTES, end - position)
        try:
            data = file.read_copy(position, block)
        except OSError as error:
            if not is_unreadable(error):
                raise
            data = b""
        assert len(data) <= block
        parts.append(data + _UNREADABLE * (block - len(data)))
        position += block
    assert position == end
    return b"".join(parts), False


def readable_bytes(file: File, position: int, size: int) -> int:
    try:
        return len(file.read_copy(position, size))
    except OSError as error:
        if not is_unreadable(error):
            raise
    at, end = position, position + size
    while at < end:
        block = min(BLOCK_BYTES - at % BLOCK_BYTES, end - at)
        assert block > 0
        try:
            count = len(file.read_copy(at, block))
        except OSError:
            break
        at += count
        if count < block:
            break
    return at - position


def is_unreadable(error: OSError) -> bool:
    """Return whether the disk cannot give these bytes, or no regular file has the name."""
    return error.errno == errno.EIO or is_special_file(error)


def checksum(source: ByteSource, start: int, end: int, crc: int = 0) -> int:
    assert 0 <= start <= end <= source.size
    for at in range(start, end, _CHECKSUM_BYTES):
        crc = crc32c(source.read(at, min(_CHECKSUM_BYTES, end - at)), crc)
    return crc
