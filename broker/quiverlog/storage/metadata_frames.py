"""The bytes of the metadata log: packing, parsing, and telling torn from damaged.

Owns the layout that metadata_log.py draws. Reads the bytes of a whole file; must not know the disk.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from quiverlog.batch.checksum import crc32c
from quiverlog.errors import CorruptLog
from quiverlog.storage.frames import check_version
from quiverlog.storage.tail import SECTOR_BYTES, looks_unwritten

__all__ = [
    "FILE_HEADER_BYTES",
    "FRAME_OVERHEAD_BYTES",
    "ITEM_OVERHEAD_BYTES",
    "VERSION_QUORUM",
    "VERSION_SINGLE",
    "Frames",
    "file_header",
    "pack_frame",
    "parse",
    "restore_error",
]

_MAGIC: Final = b"QVMETLOG"
VERSION_SINGLE: Final = 1
"""Entries are the controller's own: of a broker that had no quorum yet."""
VERSION_QUORUM: Final = 2
"""Entries are those of quorum_items.py."""
_HEAD: Final = struct.Struct("<8sH6x")
_FRAME: Final = struct.Struct("<II")
_U32: Final = struct.Struct("<I")
FILE_HEADER_BYTES: Final = _HEAD.size
FRAME_OVERHEAD_BYTES: Final = _FRAME.size
ITEM_OVERHEAD_BYTES: Final = _U32.size
_HOLE_BYTES_MIN: Final = 8
_SEARCH_CHECKSUM_BYTES_MIN: Final = 64 * 1024 * 1024
_SEARCH_STEPS_MIN: Final = 1_000_000


class Frames(NamedTuple):
    """What a file holds: `end` is the position after the last whole frame, `last` its position."""

    version: int
    entries: list[bytes]
    end: int
    last: int


def file_header(version: int) -> bytes:
    """What a file begins with."""
    return _HEAD.pack(_MAGIC, version)


def pack_frame(entries: Sequence[bytes]) -> bytes:
    """One frame; it is read back whole or not at all."""
    assert entries
    assert all(entries), "a search for frames takes none for one that has an empty entry"
    payload = b"".join(_U32.pack(len(entry)) + entry for entry in entries)
    size = _U32.pack(len(payload))
    return size + _U32.pack(crc32c(payload, crc32c(size))) + payload


def parse(path: str, data: bytes, newest: int = VERSION_SINGLE) -> Frames:
    """Read a whole file of a version up to `newest`.

    Raises:
        CorruptLog: not a metadata log, or damaged.
        UnsupportedFormat: a newer version wrote it.
    """
    if len(data) < FILE_HEADER_BYTES or data[:8] != _MAGIC:
        raise restore_error(path, "is not a metadata log")
    version = _HEAD.unpack_from(data)[1]
    check_version(path, version, newest)
    entries: list[bytes] = []
    view = memoryview(data)
    at = last = FILE_HEADER_BYTES
    while at < len(data):
        end = _frame_end(view, at)
        if end is None:
            if not _is_torn(view, at):
                raise _damaged(path, at)
            return Frames(version, entries, at, last)
        try:
            entries.extend(_split(view[at + _FRAME.size : end]))
        except struct.error as error:
            raise _damaged(path, at) from error
        last, at = at, end
    assert last <= at == len(data)
    return Frames(version, entries, at, last)


def restore_error(path: str, what: str, **details: int) -> CorruptLog:
    """A file of the metadata is not what it was when the broker stopped.

    Says what to do, which is not the same everywhere: a voter with an earlier state of its disk has
    forgotten what it told the others, and decisions that hold may be lost.
    """
    return CorruptLog(
        f"{path} {what}; nothing was changed. A broker that is alone: restore the file from a"
        " backup. One of several: never from a backup, empty its data directory, and it joins the"
        " others again (docs/cluster.md).",
        file=path,
        **details,
    )


def _damaged(path: str, at: int) -> CorruptLog:
    return restore_error(path, f"is damaged at byte {at}", position=at)


def _frame_end(view: memoryview, at: int) -> int | None:
    """Where the frame at `at` ends; None when it is not whole."""
    if len(view) - at < _FRAME.size:
        return None
    size, crc = _FRAME.unpack_from(view, at)
    end = at + _FRAME.size + int(size)
    if size == 0 or end > len(view):
        return None
    assert at < end <= len(view)
    payload = view[at + _FRAME.size : end]
    return end if crc32c(payload, crc32c(view[at : at + 4])) == crc else None


def _is_torn(view: memoryview, at: int) -> bool:
    """True when an append that a crash interrupted begins at `at`, and not damage."""
    size = _FRAME.unpack_from(view, at)[0] if len(view) - at >= _FRAME.size else 0
    end = at + _FRAME.size + size
    if end <= len(view) and not looks_unwritten(view, at, end) and not _has_hole(view, at, end):
        return False
    return not _only_size_is_wrong(view, at) and not _valid_frame_after(view, at + 1)


def _has_hole(view: memoryview, start: int, end: int) -> bool:
    """True when a sector of [start, end) is zero: those of one append arrive in any order.

    The sector that `start` lies in was there before. What the last one has of the frame may be
    little, and then zeros prove nothing.
    """
    assert 0 <= start < end
    first = -(-start // SECTOR_BYTES) * SECTOR_BYTES
    assert start <= first < start + SECTOR_BYTES
    sectors = range(first, end - _HOLE_BYTES_MIN + 1, SECTOR_BYTES)
    return any(not any(view[at : min(at + SECTOR_BYTES, end)]) for at in sectors)


def _only_size_is_wrong(view: memoryview, at: int) -> bool:
    """True when the rest of the file has the checksum at `at`: then it was not cut short."""
    if len(view) - at < _FRAME.size:
        return False
    payload = view[at + _FRAME.size :]
    return bool(_FRAME.unpack_from(view, at)[1] == crc32c(payload, crc32c(_U32.pack(len(payload)))))


def _valid_frame_after(view: memoryview, at: int) -> bool:
    """True when a whole frame lies at or after `at`. Frames are not aligned: no byte is skipped.

    Costs time in proportion to the bytes. Only where the lengths in a frame agree with each other
    is a checksum taken, and when looking costs several times what a plain file costs (somebody
    stored frames within frames) the answer is yes: then a person has to look at the file.
    """
    checksum_bytes = max(4 * (len(view) - at), _SEARCH_CHECKSUM_BYTES_MIN)
    steps = max(len(view) - at, _SEARCH_STEPS_MIN)
    for start in _candidates(view, at):
        size = int(_FRAME.unpack_from(view, start)[0])
        agree, walked = _lengths_agree(view, start + _FRAME.size, start + _FRAME.size + size)
        steps -= walked
        checksum_bytes -= size if agree else 0
        if min(steps, checksum_bytes) < 0 or (agree and _frame_end(view, start) is not None):
            return True
    return False


def _candidates(view: memoryview, at: int) -> Iterator[int]:
    """Positions whose frame size, and first entry's length, fit into what is left.

    The search for a possible highest byte of both lengths is left to `re`: it is 0 in any file of
    less than 16 MiB, and the rest of the check runs at few positions. Neither length is 0.
    """
    top = b"[\\x00-" + re.escape(bytes([min((len(view) - at) >> 24, 255)])) + b"]"
    length = b"(?!\\x00{4})..." + top
    pattern = re.compile(b"(?s)(?=" + length + b"...." + length + b")")
    for match in pattern.finditer(view, at):
        start = match.start()
        size = int(_FRAME.unpack_from(view, start)[0])
        first = int(_U32.unpack_from(view, start + _FRAME.size)[0])
        if size >= _U32.size + first and start + _FRAME.size + size <= len(view):
            yield start


def _lengths_agree(view: memoryview, at: int, end: int) -> tuple[bool, int]:
    """(do the entries' lengths lead exactly from `at` to `end`, how many were looked at)."""
    walked = 0
    while at + _U32.size <= end:
        walked += 1
        size = int(_U32.unpack_from(view, at)[0])
        if size == 0:  # No entry is empty, and a page of zeros is no chain.
            return False, walked
        at += _U32.size + size
    return at == end, walked


def _split(payload: memoryview) -> Iterator[bytes]:
    at = 0
    while at < len(payload):
        (size,) = _U32.unpack_from(payload, at)
        at += 4
        if at + size > len(payload):
            raise struct.error("an entry is longer than its frame")
        yield bytes(payload[at : at + size])
        at += size
