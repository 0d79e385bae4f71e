"""Files of the simulated disk, as a program holds them: open, with a size, and a lock.

Owns what a descriptor does: appends at the end, reads that are mappings from a size on, and being
opened again by name when the descriptor is gone. The bytes are the inode's, names and faults the
disk's.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Sequence
from typing import TYPE_CHECKING

from quiverlog.errors import QuiverlogError, StorageFault, ThrottledBroker
from quiverlog.storage.disk.disk import Buffer, FilePlace, out_of_descriptors, short_name

from .inodes import Inode

if TYPE_CHECKING:
    from .disk import SimDisk

__all__ = ["SimFile", "SimLock", "refused"]

_COPY_BYTES_MAX = 512
"""Reads up to here are copies; larger ones are mappings."""


def refused(path: str, error: OSError) -> QuiverlogError:
    """The error table's name for a failed write, as the real disk has it."""
    what = f"writing {short_name(path)}: {error.strerror}."
    return (ThrottledBroker if out_of_descriptors(error) else StorageFault)(what, file=path)


class SimFile:
    """See `quiverlog.storage.disk.disk.File`. Dead after a crash."""

    def __init__(self, disk: SimDisk, path: str, inode: Inode) -> None:
        self._disk = disk
        self._life = disk.life
        self._inode: Inode | None = inode
        self.path = path
        self.size = len(inode.data)

    def _use(self, kind: str) -> Inode:
        """The file's contents; opened again by name when the descriptor is gone."""
        disk = self._disk
        assert self._life == disk.life, f"{self.path} is used after a crash"
        if self._inode is not None and disk.evicts():
            self._inode = None
        if self._inode is None:
            disk.step("open", self.path)
            self._inode = disk.inode(self.path)
        disk.step(kind, self.path)
        return self._inode

    def append(self, buffers: Sequence[Buffer]) -> int:
        data = b"".join(buffers)
        position = self.size
        try:
            inode = self._use("append")
        except OSError as error:
            left = self._disk.half_written(len(data))
            if left and self._inode is not None:
                self._inode.write(position, data[:left])
            raise refused(self.path, error) from error
        self._disk.take_room(len(data), self.path)
        inode.write(position, data)
        self.size += len(data)
        return position

    def rewrite(self, position: int, data: Buffer) -> None:
        try:
            inode = self._use("append")
        except OSError as error:
            raise refused(self.path, error) from error
        end = position + len(data)
        assert inode.data[position:end] == data, "rewrite must not change anything"
        inode.rewrite(position, bytes(data))

    def write_head(self, data: Buffer) -> None:
        assert len(data) <= self.size
        try:
            inode = self._use("append")
        except OSError as error:
            raise refused(self.path, error) from error
        inode.rewrite(0, bytes(data))

    def read(self, position: int, size: int) -> memoryview:
        inode = self._use("read")
        end = min(position + size, self.size)
        if end > len(inode.data):
            raise OSError(errno.EIO, f"is shorter than {self.size} bytes", self.path)
        inode.warm(position, end)
        if end - position <= _COPY_BYTES_MAX:
            return memoryview(bytes(inode.data[position:end]))
        return inode.view(position, end)

    def read_copy(self, position: int, size: int) -> bytes:
        inode = self._use("read")
        end = min(position + size, self.size)
        inode.warm(position, end)
        return bytes(inode.data[position:end])

    def read_cached(self, position: int, size: int) -> bytearray | None:
        if self._inode is None or not self.resident(position, size):
            return None
        return bytearray(self._inode.data[position : position + size])

    def place(self) -> FilePlace | None:
        return None  # No other process sees a simulated file.

    def resident(self, position: int, size: int) -> bool:
        assert self._life == self._disk.life, f"{self.path} is used after a crash"
        inode = self._disk.inode(self.path) if self._inode is None else self._inode
        return inode.resident(position, min(position + size, self.size))

    def truncate(self, size: int) -> None:
        self._use("truncate").truncate(size)
        self.size = size

    def retract(self, size: int) -> None:
        self.size = size
        with contextlib.suppress(OSError):
            self._use("retract").truncate(size)

    def sync(self) -> None:
        inode = self._use("fsync")
        if self._disk.sync_fails():
            inode.sync_failed()
            raise OSError(errno.EIO, "simulated fsync failure", self.path)
        inode.sync()

    def close(self) -> None:
        self._inode = None


class SimLock:
    """See `quiverlog.storage.disk.disk.DiskLock`: gone with the process."""

    def __init__(self, disk: SimDisk, path: str) -> None:
        self._disk, self._path = disk, path

    def release(self) -> None:
        self._disk.locks.discard(self._path)

    def claim(self, owner: bytes) -> None:
        pass

    def holds(self) -> bool:
        return self._path in self._disk.locks
