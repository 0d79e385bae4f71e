"""The broker's own decisions, in order: a small log of opaque records.

Owns the file `metadata/metadata.log`. `append` returns when the records are on the disk. Every
append is one frame, so that a crash keeps all of its records or none:

```
file:   8s magic "QVMETLOG" | u16 version | 6 bytes 0 | frame...
frame:  u32 size | u32 crc32c over the size and the payload | payload
payload: per record u32 length | bytes
```

A frame that the file ends inside of, or whose last sector never arrived, was never acknowledged
and is cut. Anything else that does not match its checksum is damage: the broker does not start on
half of its decisions (replication rule 13 in spirit), the file is left as it is.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Final

from quiverlog.batch.checksum import crc32c
from quiverlog.errors import CorruptLog, QuiverlogError, StorageFault
from quiverlog.storage.disk import Disk, File
from quiverlog.storage.frames import check_version
from quiverlog.storage.tail import looks_unwritten

__all__ = ["MetadataLog"]

_MAGIC: Final = b"QVMETLOG"
_VERSION: Final = 1
_HEAD: Final = struct.Struct("<8sH6x")
_FRAME: Final = struct.Struct("<II")
_U32: Final = struct.Struct("<I")
_COMPACT_FRAMES_MIN: Final = 1_000
_COMPACT_BYTES_MIN: Final = 256 * 1024


class MetadataLog:
    """See the module docstring."""

    __slots__ = ("_disk", "_fault", "_file", "_offset", "_path", "_records", "_snapshot_bytes")

    def __init__(self, disk: Disk, path: str, file: File, records: list[bytes]) -> None:
        self._disk = disk
        self._path = path
        self._file = file
        self._records = records
        self._offset = len(records)
        self._snapshot_bytes = _COMPACT_BYTES_MIN
        self._fault = ""

    @classmethod
    def open(
        cls, disk: Disk, directory: str, *, create: bool = True, bytes_min: int = 0
    ) -> MetadataLog:
        """Open or create the log in `directory`.

        Args:
            create: a missing file may be made. Where there are partitions it may not: all of them
                would look like leftovers of topics that were deleted.
            bytes_min: what the file is known to have held when it was last closed in order.

        Raises:
            CorruptLog: a record is damaged, or the file is missing or cut; nothing is changed.
            UnsupportedFormat: a newer version wrote it.
        """
        disk.make_dir(directory)
        path = f"{directory}/metadata.log"
        if not disk.exists(path):
            if not create or bytes_min:
                raise CorruptLog(
                    f"{path} is missing, yet there are partitions: restore the file from a backup;"
                    " nothing was changed.",
                    file=path,
                )
            disk.write_file_atomic(path, _HEAD.pack(_MAGIC, _VERSION))
        data = disk.read_file(path)
        if len(data) < bytes_min:
            raise CorruptLog(
                f"{path} has {len(data)} bytes and had {bytes_min} when the broker stopped: restore"
                " the file from a backup; nothing was changed.",
                file=path,
            )
        records, end, last = _parse(path, data)
        file = disk.open(path, create=False)
        if end < len(data):
            file.truncate(end)
        # The last append's flush may have failed, or never been: what was read is in the cache, and
        # the kernel may hold it for written. Decisions are built upon it from now on.
        file.rewrite(last, data[last:end])
        file.sync()
        return cls(disk, path, file, records)

    @property
    def size_bytes(self) -> int:
        """Bytes of the file."""
        return self._file.size

    @property
    def wants_compaction(self) -> bool:
        """Is most of the file likely to be history that a snapshot leaves out?"""
        return self._offset >= _COMPACT_FRAMES_MIN and self._file.size >= 2 * self._snapshot_bytes

    def records(self) -> Iterator[bytes]:
        """What was in the file at opening; only once, the memory is given back."""
        records, self._records = self._records, []
        return iter(records)

    def append(self, records: Sequence[bytes]) -> int:
        """Make records durable, together. Returns the number of the first.

        Raises:
            DiskFull: nothing was appended.
            StorageFault: the disk failed; every further append fails until a restart, because a
                failed fsync leaves open what the disk holds.
        """
        if self._fault:
            raise StorageFault(f"{self._path} takes no writes: {self._fault}.")
        self._file.append([_frame(records)])
        try:
            self._file.sync()
        except OSError as error:
            self._fault = f"fsync failed: {error}"
            raise StorageFault(f"{self._path}: {self._fault}.") from error
        first = self._offset
        self._offset += len(records)
        return first

    def compact(self, records: Sequence[bytes]) -> None:
        """Replace everything by `records`, which must stand for it.

        Raises:
            DiskFull, StorageFault: the log is as it was.
        """
        if self._fault:
            raise StorageFault(f"{self._path} takes no writes: {self._fault}.")
        data = _HEAD.pack(_MAGIC, _VERSION) + _frame(records)
        self._disk.write_file_atomic(self._path, data)
        self._file.close()
        self._file = self._disk.open(self._path, create=False)
        self._snapshot_bytes = max(len(data), _COMPACT_BYTES_MIN)
        self._offset = len(records)

    def close(self) -> None:
        """Everything is durable already."""
        self._file.close()


def _frame(records: Sequence[bytes]) -> bytes:
    payload = b"".join(_U32.pack(len(record)) + record for record in records)
    size = _U32.pack(len(payload))
    return size + _U32.pack(crc32c(payload, crc32c(size))) + payload


def _parse(path: str, data: bytes) -> tuple[list[bytes], int, int]:
    """(records, the position after the last whole frame, the position of that frame)."""
    if len(data) < _HEAD.size or data[:8] != _MAGIC:
        raise CorruptLog(f"{path} is not a metadata log.", file=path)
    check_version(path, _HEAD.unpack_from(data)[1], _VERSION)
    records: list[bytes] = []
    view = memoryview(data)
    at = last = _HEAD.size
    while at < len(data):
        end = _frame_end(view, at)
        if end is None:
            size = _FRAME.unpack_from(view, at)[0] if len(data) - at >= _FRAME.size else 0
            if looks_unwritten(view, at, min(at + _FRAME.size + size, len(data))) or (
                at + _FRAME.size + size > len(data) or len(data) - at < _FRAME.size
            ):
                if _only_size_is_wrong(view, at) or _valid_frame_after(view, at + 1):
                    raise _damaged(path, at)
                return records, at, last
            raise _damaged(path, at)
        try:
            records.extend(_split(view[at + _FRAME.size : end]))
        except struct.error as error:
            raise _damaged(path, at) from error
        last, at = at, end
    return records, at, last


def _damaged(path: str, at: int) -> QuiverlogError:
    return CorruptLog(
        f"{path} is damaged at byte {at}: restore the file from a backup; it was not changed.",
        file=path,
        position=at,
    )


def _frame_end(view: memoryview, at: int) -> int | None:
    """Where the frame at `at` ends; None when it is not whole."""
    if len(view) - at < _FRAME.size:
        return None
    size, crc = _FRAME.unpack_from(view, at)
    end = at + _FRAME.size + int(size)
    if size == 0 or end > len(view):
        return None
    payload = view[at + _FRAME.size : end]
    return end if crc32c(payload, crc32c(view[at : at + 4])) == crc else None


def _only_size_is_wrong(view: memoryview, at: int) -> bool:
    """Does the rest of the file have the checksum at `at`? Then it was whole, and not cut short."""
    if len(view) - at < _FRAME.size:
        return False
    payload = view[at + _FRAME.size :]
    return bool(_FRAME.unpack_from(view, at)[1] == crc32c(payload, crc32c(_U32.pack(len(payload)))))


def _valid_frame_after(view: memoryview, at: int) -> bool:
    """Is there a whole frame at or after `at`? Frames are not aligned: every byte is tried."""
    return any(_frame_end(view, start) is not None for start in range(at, len(view) - 8))


def _split(payload: memoryview) -> Iterator[bytes]:
    at = 0
    while at < len(payload):
        (size,) = _U32.unpack_from(payload, at)
        at += 4
        if at + size > len(payload):
            raise struct.error("a record is longer than its frame")
        yield bytes(payload[at : at + size])
        at += size
