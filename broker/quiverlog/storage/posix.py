"""The real disk: positional writes, mapped reads, descriptors that come and go.

Owns descriptors and mappings. At most `files_open_max` files hold one (thousands of partitions lie
idle); a file that is not open is opened again at its next use. Descriptors are closed when the last
reference goes, never by hand: another thread may be in fdatasync on one that was just evicted.

Mappings are never closed either: a view keeps its mapping alive, the collector unmaps. A file that
grew is mapped anew and the old mapping lives as long as its views.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import mmap
import os
import shutil
from collections import deque
from collections.abc import Sequence
from typing import Final

from quiverlog.errors import DataDirectoryInUse, DiskFull, QuiverlogError, StorageFault
from quiverlog.storage.disk import Buffer

__all__ = ["PosixDisk", "PosixFile"]

READ_COPY_BYTES_MAX: Final = 64 * 1024
"""Up to here a pread into fresh bytes is cheaper than mapping, faulting and unmapping."""
FILES_OPEN_MAX: Final = 1024
_BUFFERS_PER_WRITE_MAX: Final = 1024
"""IOV_MAX on Linux."""
_NO_ROOM: Final = frozenset((errno.ENOSPC, errno.EDQUOT, errno.EFBIG))


def _storage_error(path: str, error: OSError) -> QuiverlogError:
    """The error table's name for a failed write."""
    if error.errno in _NO_ROOM:
        return DiskFull(f"writing {path}: {error.strerror}.")
    return StorageFault(f"writing {path}: {error.strerror}.")


class _Descriptor:
    """An open descriptor, closed when nobody refers to it any more."""

    __slots__ = ("fd",)

    def __init__(self, path: str, flags: int) -> None:
        self.fd = -1
        self.fd = os.open(path, flags | os.O_CLOEXEC, 0o644)

    def __del__(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)


class PosixFile:
    """See `disk.File`. `recent`: used since the eviction hand last passed."""

    __slots__ = ("_descriptor", "_disk", "_view", "path", "recent", "size")

    def __init__(self, disk: PosixDisk, path: str, size: int) -> None:
        self._disk = disk
        self._descriptor: _Descriptor | None = None
        self._view: memoryview | None = None
        self.path = path
        self.size = size
        self.recent = False

    def _open(self) -> _Descriptor:
        descriptor = self._descriptor = _Descriptor(self.path, os.O_RDWR)
        self._disk.opened(self)
        return descriptor

    def append(self, buffers: Sequence[Buffer]) -> int:
        position = self.size
        self.recent = True
        try:
            fd = (self._descriptor or self._open()).fd
        except OSError as error:
            raise _storage_error(self.path, error) from error
        try:
            if len(buffers) == 1:
                total = len(buffers[0])
                written = os.pwrite(fd, buffers[0], position)
            else:
                total = sum(map(len, buffers))
                written = os.pwritev(fd, buffers[:_BUFFERS_PER_WRITE_MAX], position)
            if written != total:
                _write_rest(fd, buffers, position, written)
        except OSError as error:
            # Best effort: what stays behind is overwritten by the next append at this position.
            with contextlib.suppress(OSError):
                os.ftruncate(fd, position)
            raise _storage_error(self.path, error) from error
        self.size = position + total
        return position

    def read(self, position: int, size: int) -> memoryview:
        self.recent = True
        if size <= READ_COPY_BYTES_MAX:
            fd = (self._descriptor or self._open()).fd
            return memoryview(os.pread(fd, size, position))
        end = min(position + size, self.size)
        view = self._view
        if view is None or len(view) < end:
            view = self._map()
        return view[position:end]

    def _map(self) -> memoryview:
        fd = (self._descriptor or self._open()).fd
        try:
            mapping = mmap.mmap(fd, self.size, mmap.MAP_SHARED, mmap.PROT_READ)
        except ValueError as error:  # Somebody else has cut the file.
            raise OSError(errno.EIO, f"is shorter than {self.size} bytes", self.path) from error
        view = self._view = memoryview(mapping)
        return view

    def rewrite(self, position: int, data: Buffer) -> None:
        assert position + len(data) <= self.size
        try:
            _write_rest((self._descriptor or self._open()).fd, [data], position, 0)
        except OSError as error:
            raise _storage_error(self.path, error) from error

    def truncate(self, size: int) -> None:
        self._view = None
        os.ftruncate((self._descriptor or self._open()).fd, size)
        self.size = size

    def sync(self) -> None:
        # Taken once: the loop's thread may evict this file's descriptor meanwhile.
        descriptor = self._descriptor
        if descriptor is None:
            descriptor = _Descriptor(self.path, os.O_RDWR)
        os.fdatasync(descriptor.fd)

    def close(self) -> None:
        self._descriptor = None
        self._view = None

    @property
    def is_open(self) -> bool:
        """Does it hold a descriptor?"""
        return self._descriptor is not None


def _write_rest(fd: int, buffers: Sequence[Buffer], position: int, written: int) -> None:
    """Go on after a short write (a signal, a full disk, more buffers than one call takes)."""
    skip = written
    at = position + written
    for buffer in buffers:
        view = memoryview(buffer)
        if skip >= len(view):
            skip -= len(view)
            continue
        view = view[skip:]
        skip = 0
        while len(view):
            count = os.pwrite(fd, view, at)
            if count == 0:
                raise OSError(errno.EIO, "nothing was written")
            at += count
            view = view[count:]


class _PosixLock:
    """flock on a file: the kernel drops it with the process, however that ends."""

    __slots__ = ("_descriptor",)

    def __init__(self, path: str) -> None:
        self._descriptor: _Descriptor | None = _Descriptor(path, os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(self._descriptor.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self._descriptor = None
            if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                raise DataDirectoryInUse(f"{path} is locked by another broker.") from None
            raise

    def release(self) -> None:
        self._descriptor = None


class PosixDisk:
    """See `disk.Disk`.

    Args:
        files_open_max: files that hold a descriptor at the same time. A mapped file holds a second
            one (the mapping's own), so count two each against the process's limit.
    """

    __slots__ = ("_files_open_max", "_open_files")

    def __init__(self, *, files_open_max: int = FILES_OPEN_MAX) -> None:
        assert files_open_max >= 1
        self._files_open_max = files_open_max
        self._open_files: deque[PosixFile] = deque()

    def opened(self, file: PosixFile) -> None:
        """A file took a descriptor: let others go when there are too many (second chance)."""
        files = self._open_files
        files.append(file)
        for _ in range(2 * len(files)):
            if len(files) <= self._files_open_max:
                return
            oldest = files.popleft()
            if oldest is file or (oldest.recent and oldest.is_open):
                oldest.recent = False
                files.append(oldest)
            else:
                oldest.close()

    def open(self, path: str, *, create: bool) -> PosixFile:
        if not create:
            return PosixFile(self, path, os.stat(path).st_size)
        try:
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644))
        except OSError as error:
            raise _storage_error(path, error) from error
        return PosixFile(self, path, 0)

    def read_file(self, path: str) -> bytes:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            size = os.fstat(fd).st_size
            data = os.pread(fd, size, 0)
            while len(data) < size and (more := os.pread(fd, size - len(data), len(data))):
                data += more
            return data
        finally:
            os.close(fd)

    def write_file_atomic(self, path: str, data: Buffer, *, durable: bool = True) -> None:
        temporary = f"{path}.tmp"
        try:
            descriptor = _Descriptor(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            _write_rest(descriptor.fd, [data], 0, 0)
            if durable:
                os.fsync(descriptor.fd)
            os.rename(temporary, path)
            if durable:
                self.sync_dir(os.path.dirname(path))
        except OSError as error:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise _storage_error(path, error) from error

    def rename(self, old: str, new: str) -> None:
        os.rename(old, new)

    def remove(self, path: str) -> None:
        os.unlink(path)

    def remove_tree(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(path)

    def list(self, path: str) -> list[str]:
        return sorted(os.listdir(path))

    def make_dir(self, path: str) -> None:
        os.makedirs(path, exist_ok=True)

    def sync_dir(self, path: str) -> None:
        fd = os.open(path or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def exists(self, path: str) -> bool:
        return os.path.exists(path)

    def free_bytes(self, path: str) -> int:
        stat = os.statvfs(path)
        return stat.f_bavail * stat.f_frsize

    def lock(self, path: str) -> _PosixLock:
        return _PosixLock(path)
