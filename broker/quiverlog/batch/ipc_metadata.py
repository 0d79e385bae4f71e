"""Reads the metadata of an Arrow IPC record-batch message without decoding rows.

The metadata is a flatbuffer from an untrusted writer, and decides how much memory decoding takes:
this reader checks every index. Arrow verifies the same bytes again when it decodes them.

    u32 0xFFFFFFFF | i32 metadata_bytes | flatbuffer Message, padded | body
    Message: version, header type (3 = RecordBatch), header, body length
    RecordBatch: length, nodes [(length, null count)], buffers [(offset, length)], compression
"""

from __future__ import annotations

import struct
from operator import itemgetter
from typing import Any, Final, NamedTuple

from quiverlog.errors import CorruptBatch
from quiverlog.types import Compression

__all__ = ["IpcMetadata", "IpcShape", "claimed_size", "read_ipc_metadata"]

_CONTINUATION: Final = 0xFFFFFFFF
_PREFIX_BYTES: Final = 8
_METADATA_V5: Final = 4
_RECORD_BATCH: Final = 3
_NODES_MAX: Final = 100_000

_PREFIX: Final = struct.Struct("<II")
_U32: Final = struct.Struct("<I")
_I32: Final = struct.Struct("<i")
_I64: Final = struct.Struct("<q")
_I16: Final = struct.Struct("<h")
_VTABLE: Final = {n: struct.Struct(f"<{n}H") for n in range(1, 12)}
_PLAIN: Final = Compression.NONE
_CODECS: Final = {0: Compression.LZ4, 1: Compression.ZSTD}


class IpcMetadata(NamedTuple):
    """`nodes` and `buffers` are flat: pairs one after the other."""

    body_at: int
    body_bytes: int
    row_count: int
    nodes: tuple[int, ...]
    """(length, null count) of every field, depth first."""
    buffers: tuple[int, ...]
    """(offset in the body, length) of every buffer."""
    compression: Compression
    decoded_bytes: int = 0
    """As the buffers declare it; `check_structure` adds it up."""
    as_sample: bool = False
    """All bytes but the numbers are those of this library's encoder."""
    surely_readable: bool = False
    """The metadata alone prove that Arrow can read the rows."""


class IpcShape:
    """The positions of the numbers in the metadata of one schema's batches.

    With one encoder, a schema's batches differ in a few numbers only. Where all other bytes equal
    those of `sample`, the numbers lie at the same places and are unpacked in one call.

    `sample` is a message that this process encoded: an untrusted one could make numbers and
    structure overlap. Raises ValueError: it leaves a number out.
    """

    __slots__ = ("_body_bytes", "_buffers", "_fixed", "_nodes", "_others", "_rows", "_unpack",
                 "body_at")  # fmt: skip

    def __init__(self, sample: memoryview) -> None:
        places = _walk(sample)
        if not all(places[1:5]) or places.compression:
            raise ValueError("the sample has no place for a number")
        flat = sample[_PREFIX_BYTES : places.body_at]
        counts = {
            places.body_bytes: 1,
            places.row_count: 1,
            places.nodes: 2 * _count(flat, places.nodes - 4),
            places.buffers: 2 * _count(flat, places.buffers - 4),
        }
        layout, at, fields = "<", 0, 0
        others: list[int] = []
        found: dict[int, slice] = {}
        for place, count in sorted(counts.items()):
            start = _PREFIX_BYTES + place
            layout += f"{start - at}s{count}q"
            others.append(fields)
            found[place] = slice(fields + 1, fields + 1 + count)
            fields += 1 + count
            at = start + 8 * count
        layout += f"{places.body_at - at}s"
        others.append(fields)
        self.body_at = places.body_at
        self._body_bytes = found[places.body_bytes].start
        self._rows = found[places.row_count].start
        self._nodes = found[places.nodes]
        self._buffers = found[places.buffers]
        self._others = itemgetter(*others)
        self._unpack = struct.Struct(layout).unpack_from
        self._fixed: tuple[Any, ...] = self._others(self._unpack(sample))
        walked = _read(sample)._replace(as_sample=True)
        assert self.read(sample) == walked, "both readers find the same numbers"

    def read(self, message: memoryview, size: int | None = None) -> IpcMetadata | None:
        """`size`: of the whole message, of which `message` is the beginning."""
        if len(message) < self.body_at:
            return None
        found = self._unpack(message)
        if self._others(found) != self._fixed:
            return None
        body_bytes = found[self._body_bytes]
        if not 0 <= body_bytes <= (len(message) if size is None else size) - self.body_at:
            return None
        return IpcMetadata(
            self.body_at,
            body_bytes,
            found[self._rows],
            found[self._nodes],
            found[self._buffers],
            _PLAIN,
            as_sample=True,
        )


def read_ipc_metadata(message: memoryview, size: int | None = None) -> IpcMetadata:
    """`size`: of the whole message, of which `message` is the beginning."""
    size = len(message) if size is None else size
    try:
        metadata = _read(message)
    except (struct.error, IndexError, KeyError, ValueError) as error:
        raise CorruptBatch(f"the Arrow message's metadata cannot be read: {error}.") from None
    if metadata.body_bytes < 0 or metadata.body_at + metadata.body_bytes > size:
        raise CorruptBatch(
            f"the Arrow message claims a body of {metadata.body_bytes} bytes in a batch that has "
            f"{size - metadata.body_at} left."
        )
    return metadata


def claimed_size(message: memoryview) -> tuple[int, int] | None:
    try:
        places = _walk(message)
        flat = message[_PREFIX_BYTES : places.body_at]
        body_bytes = _I64.unpack_from(flat, places.body_bytes)[0] if places.body_bytes else 0
        rows = _I64.unpack_from(flat, places.row_count)[0] if places.row_count else 0
    except (struct.error, IndexError, ValueError):
        return None
    return (places.body_at + body_bytes, rows) if body_bytes >= 0 else None


class _Places(NamedTuple):
    """Positions in the flatbuffer, which begins after the prefix; 0: left out."""

    body_at: int
    body_bytes: int
    row_count: int
    nodes: int
    buffers: int
    compression: int


def _walk(message: memoryview) -> _Places:
    continuation, metadata_bytes = _PREFIX.unpack_from(message)
    body_at = _PREFIX_BYTES + metadata_bytes
    if continuation != _CONTINUATION or metadata_bytes < 8 or body_at > len(message):
        raise ValueError("no record-batch message here")
    flat = message[_PREFIX_BYTES:body_at]
    root, fields = _table(flat, _U32.unpack_from(flat)[0], 4)
    version, header_type = _I16.unpack_from(flat, root + fields[0])[0], flat[root + fields[1]]
    if version != _METADATA_V5 or header_type != _RECORD_BATCH or not (fields[0] and fields[1]):
        raise ValueError(f"message type {header_type} of metadata version {version}")
    body_bytes = root + fields[3] if fields[3] else 0
    batch, fields = _table(flat, _follow(flat, root + fields[2]), 5)
    # Their number of buffers would depend on the data.
    if fields[4] and _count(flat, _follow(flat, batch + fields[4])):
        raise ValueError("variadic buffers belong to views, which no topic stores")
    return _Places(
        body_at,
        body_bytes,
        batch + fields[0] if fields[0] else 0,
        _follow(flat, batch + fields[1]) + 4 if fields[1] else 0,
        _follow(flat, batch + fields[2]) + 4 if fields[2] else 0,
        batch + fields[3] if fields[3] else 0,
    )


def _read(message: memoryview) -> IpcMetadata:
    places = _walk(message)
    flat = message[_PREFIX_BYTES : places.body_at]
    return IpcMetadata(
        places.body_at,
        _I64.unpack_from(flat, places.body_bytes)[0] if places.body_bytes else 0,
        _I64.unpack_from(flat, places.row_count)[0] if places.row_count else 0,
        _pairs(flat, places.nodes) if places.nodes else (),
        _pairs(flat, places.buffers) if places.buffers else (),
        _compression(flat, places.compression) if places.compression else Compression.NONE,
    )


def _table(flat: memoryview, at: int, wanted: int) -> tuple[int, tuple[int, ...]]:
    vtable = at - _I32.unpack_from(flat, at)[0]
    if vtable < 0 or at < 0:
        raise ValueError("an offset points outside")
    vtable_bytes = flat[vtable] | flat[vtable + 1] << 8
    present = min(max(vtable_bytes - 4, 0) // 2, wanted)
    if present == 0:
        return at, (0,) * wanted
    offsets = _VTABLE[present].unpack_from(flat, vtable + 4)
    return at, offsets if present == wanted else offsets + (0,) * (wanted - present)


def _follow(flat: memoryview, at: int) -> int:
    return at + int(_U32.unpack_from(flat, at)[0])


def _pairs(flat: memoryview, at: int) -> tuple[int, ...]:
    return struct.unpack_from(f"<{2 * _count(flat, at - 4)}q", flat, at)


def _count(flat: memoryview, at: int) -> int:
    count = int(_U32.unpack_from(flat, at)[0])
    # Before anything of that size is allocated.
    if count > _NODES_MAX:
        raise ValueError(f"{count} nodes or buffers")
    return count


def _compression(flat: memoryview, at: int) -> Compression:
    table, fields = _table(flat, _follow(flat, at), 2)
    codec = flat[table + fields[0]] if fields[0] else 0
    method = flat[table + fields[1]] if fields[1] else 0
    if method != 0:
        raise ValueError(f"compression method {method}")
    return _CODECS[codec]
