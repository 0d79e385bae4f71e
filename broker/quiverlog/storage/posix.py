"""The real disk: positional writes, mapped reads, descriptors that come and go.

Owns descriptors and mappings. At most `files_open_max` files hold one (thousands of partitions lie
idle); a file that is not open is opened again at its next use. Mappings hold none (mapping.py).
Descriptors are closed when the last reference goes, never by hand: another thread may be in
fdatasync on one that was just evicted. So whoever uses a number holds the `Descriptor` meanwhile.

Mappings are never closed either: a view keeps its mapping alive. A file that outgrew its mapping is
mapped anew and the old mapping lives as long as its views.

A `DescriptorReserve` keeps some back, so that neither a flush nor a removal fails because clients
have taken all that the process may have.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import weakref
from collections import deque
from collections.abc import Sequence
from typing import Any, Final

from quiverlog.storage.descriptors import Descriptor, DescriptorReserve
from quiverlog.storage.disk import Buffer, File, is_special_file, special_file, write_error
from quiverlog.storage.mapping import Mapping
from quiverlog.storage.posix_lock import PosixLock

__all__ = ["RESERVED_DESCRIPTORS", "PosixDisk", "PosixFile"]

READ_COPY_BYTES_MAX: Final = 64 * 1024
"""Up to here a pread into fresh bytes is cheaper than mapping, faulting and unmapping."""
FILES_OPEN_MAX: Final = 1024
RESERVED_DESCRIPTORS: Final = 16
"""More than the jobs that run at the same time, each of which opens one file at a time."""
DIRECTORY_MODE: Final = 0o700
_BUFFERS_PER_WRITE_MAX: Final = 1024
"""IOV_MAX on Linux."""
_READ: Final = 1
_WRITTEN: Final = 2
"""How often the eviction hand passes a file that was read, and one that was written: a file with
unflushed bytes keeps its descriptor until the flush wherever that is possible."""


class PosixFile:
    """See `disk.File`. `passes`: how often the eviction hand lets it go on."""

    __slots__ = (
        "_descriptor",
        "_disk",
        "_identity",
        "_mapping",
        "_regions",
        "passes",
        "path",
        "size",
    )

    def __init__(self, disk: PosixDisk, path: str, found: os.stat_result) -> None:
        self._disk = disk
        self._identity = (found.st_dev, found.st_ino)
        self._descriptor: Descriptor | None = None
        self._mapping: Mapping | None = None
        self._regions: list[weakref.ref[Any]] = []
        self.path = path
        self.size = found.st_size
        self.passes = 0

    def _open(self) -> Descriptor:
        descriptor = self._disk.open_descriptor(self.path, os.O_RDWR)
        self._check_identity(os.fstat(descriptor.fd))
        self._descriptor = descriptor
        self._disk.opened(self)
        return descriptor

    def _check_identity(self, found: os.stat_result) -> None:
        if (found.st_dev, found.st_ino) != self._identity:
            raise OSError(errno.ESTALE, "the file was replaced by another one", self.path)

    def append(self, buffers: Sequence[Buffer]) -> int:
        position = self.size
        self.passes = _WRITTEN
        try:
            descriptor = self._descriptor or self._open()
        except OSError as error:
            raise write_error(self.path, error) from error
        fd = descriptor.fd
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
            raise write_error(self.path, error) from error
        self.size = position + total
        return position

    def read(self, position: int, size: int) -> memoryview:
        if size <= READ_COPY_BYTES_MAX or position >= self.size:
            return memoryview(self.read_copy(position, size))
        end = min(position + size, self.size)
        return self._mapped(end).view(position, end)

    def read_copy(self, position: int, size: int) -> bytes:
        self.passes = max(self.passes, _READ)
        descriptor = self._descriptor or self._open()
        data = os.pread(descriptor.fd, size, position)
        while len(data) < size and (
            more := os.pread(descriptor.fd, size - len(data), position + len(data))
        ):
            data += more
        return data

    def read_cached(self, position: int, size: int) -> bytearray | None:
        descriptor = self._descriptor
        if descriptor is None:
            return None
        data = bytearray(size)
        try:
            # One call where `resident` and `read_copy` are two; some file systems refuse the flag.
            count = os.preadv(descriptor.fd, [data], position, os.RWF_NOWAIT)
        except OSError:
            return None
        return data if count == size else None

    def resident(self, position: int, size: int) -> bool:
        end = min(position + size, self.size)
        if position >= end:
            return True
        try:
            return self._mapped(end).resident(position, end)
        except OSError:
            return True  # Reading it will tell what is wrong.

    def _mapped(self, end: int) -> Mapping:
        """A mapping that reaches to `end`; the file has these bytes. Others would be SIGBUS."""
        assert 0 < end <= self.size
        mapping = self._mapping
        descriptor = self._descriptor or self._open()
        if (file_size := descriptor.file_size()) < end:
            raise OSError(errno.EIO, f"the file was cut to {file_size} bytes", self.path)
        if mapping is None or mapping.capacity < end:
            self.passes = max(self.passes, _READ)
            try:
                mapping = Mapping(descriptor.fd, min(self.size, file_size))
            except OSError as error:
                raise OSError(error.errno, error.strerror, self.path) from error
            self._mapping = mapping
            alive = [region for region in self._regions if region() is not None]
            self._regions = [*alive, mapping.region]
        return mapping

    def rewrite(self, position: int, data: Buffer) -> None:
        assert position >= 0
        assert position + len(data) <= self.size
        self.passes = _WRITTEN
        try:
            descriptor = self._descriptor or self._open()
            _write_rest(descriptor.fd, [data], position, 0)
        except OSError as error:
            raise write_error(self.path, error) from error

    def write_head(self, data: Buffer) -> None:
        assert len(data) <= self.size
        try:
            descriptor = self._descriptor or self._open()
            _write_rest(descriptor.fd, [data], 0, 0)
        except OSError as error:
            raise write_error(self.path, error) from error

    def truncate(self, size: int) -> None:
        assert 0 <= size <= self.size
        self._mapping = None
        views = sum(region() is not None for region in self._regions)
        assert not views, f"{self.path} is cut under {views} mappings that somebody looks at"
        descriptor = self._descriptor or self._open()
        os.ftruncate(descriptor.fd, size)
        self.size = size

    def retract(self, size: int) -> None:
        assert 0 <= size <= self.size
        self.size = size
        with contextlib.suppress(OSError):
            descriptor = self._descriptor or self._open()
            os.ftruncate(descriptor.fd, size)

    def sync(self) -> None:
        # Taken once: another thread may evict this file's descriptor meanwhile.
        descriptor = self._descriptor
        if descriptor is None:
            descriptor = self._disk.open_descriptor(self.path, os.O_RDWR)
        os.fdatasync(descriptor.fd)
        # Nothing may be acknowledged that lies where no start will look for it.
        self._check_identity(os.stat(self.path))

    def close(self) -> None:
        self._descriptor = None
        self._mapping = None

    @property
    def is_open(self) -> bool:
        """True while the file holds a descriptor."""
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


class PosixDisk:
    """See `disk.Disk`.

    Args:
        files_open_max: files that hold a descriptor at the same time. The reserve and one for each
            operation under way come on top.
        reserved_descriptors: kept back for flushes and removals (`RESERVED_DESCRIPTORS` in a
            broker; a tool that reads a file needs none).
    """

    __slots__ = ("_files_open_max", "_open_files", "_reserve")

    def __init__(
        self,
        *,
        files_open_max: int = FILES_OPEN_MAX,
        reserved_descriptors: int = 0,
    ) -> None:
        assert files_open_max >= 1
        self._files_open_max = files_open_max
        self._open_files: deque[PosixFile] = deque()
        self._reserve = DescriptorReserve(reserved_descriptors)

    # --- descriptors ---------------------------------------------------------------------------
    def open_descriptor(self, path: str, flags: int) -> Descriptor:
        """Open a file, at the expense of the reserve where there is no other way."""
        return self._reserve.spend(lambda: Descriptor(path, flags))

    def opened(self, file: PosixFile) -> None:
        """A file took a descriptor: let others go when there are too many (second chance).

        Any thread may call this: each step is one atomic operation of the deque.
        """
        files = self._open_files
        files.append(file)
        for _ in range((_WRITTEN + 1) * len(files)):
            if len(files) <= self._files_open_max:
                return
            try:
                oldest = files.popleft()
            except IndexError:
                return
            if oldest is file or (oldest.passes > 0 and oldest.is_open):
                oldest.passes -= oldest is not file
                files.append(oldest)
            else:
                oldest.close()

    # --- files ---------------------------------------------------------------------------------
    def open(self, path: str, *, create: bool) -> PosixFile:
        if not create:
            found = os.stat(path)
            if not stat.S_ISREG(found.st_mode):
                raise special_file(path, found.st_mode)
            return PosixFile(self, path, found)
        try:
            descriptor = self.open_descriptor(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        except OSError as error:
            raise write_error(path, error) from error
        return PosixFile(self, path, os.fstat(descriptor.fd))

    def read_file(self, path: str) -> bytes:
        descriptor = self.open_descriptor(path, os.O_RDONLY)
        fd = descriptor.fd
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            raise special_file(path, found.st_mode)
        size = found.st_size
        data = os.pread(fd, size, 0)
        while len(data) < size and (more := os.pread(fd, size - len(data), len(data))):
            data += more
        return data

    def write_file_atomic(self, path: str, data: Buffer, *, durable: bool = True) -> None:
        temporary = f"{path}.tmp"
        try:
            descriptor = self.open_descriptor(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            _write_rest(descriptor.fd, [data], 0, 0)
            if durable:
                os.fsync(descriptor.fd)
            os.rename(temporary, path)
            if durable:
                self.sync_dir(os.path.dirname(path))
        except OSError as error:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise write_error(path, error) from error

    def rename(self, old: str, new: str) -> None:
        os.rename(old, new)

    def replace(self, file: File, path: str) -> None:
        assert os.path.dirname(file.path) == os.path.dirname(path), "names of one directory"
        os.rename(file.path, path)
        file.path = path

    def remove(self, path: str) -> None:
        os.unlink(path)

    # --- directories ---------------------------------------------------------------------------
    def remove_tree(self, path: str) -> None:
        try:
            names = self.list(path)
        except FileNotFoundError:
            return
        for name in names:
            entry = f"{path}/{name}"
            try:
                if stat.S_ISDIR(os.lstat(entry).st_mode):
                    self.remove_tree(entry)
                else:
                    os.unlink(entry)
            except FileNotFoundError:
                continue
        with contextlib.suppress(FileNotFoundError):
            os.rmdir(path)

    def list(self, path: str) -> list[str]:
        return sorted(self._reserve.spend(lambda: os.listdir(path)))

    def make_dir(self, path: str) -> None:
        missing: list[str] = []
        while path and not os.path.isdir(path):
            missing.append(path)
            path = os.path.dirname(path)
        for name in reversed(missing):
            try:
                os.mkdir(name, DIRECTORY_MODE)
            except FileExistsError:
                if not os.path.isdir(name):
                    raise NotADirectoryError(errno.ENOTDIR, _what_is_there(name), name) from None

    def restrict(self, path: str) -> bool:
        if not os.stat(path).st_mode & 0o077:
            return False
        os.chmod(path, DIRECTORY_MODE)
        return True

    def sync_dir(self, path: str) -> None:
        descriptor = self.open_descriptor(path or ".", os.O_RDONLY | os.O_DIRECTORY)
        os.fsync(descriptor.fd)

    def exists(self, path: str) -> bool:
        return os.path.exists(path)

    def is_file(self, path: str) -> bool:
        try:
            return stat.S_ISREG(os.stat(path).st_mode)
        except OSError as error:
            if isinstance(error, FileNotFoundError) or is_special_file(error):
                return False
            raise

    def is_dir(self, path: str) -> bool:
        return os.path.isdir(path)

    def free_bytes(self, path: str) -> int:
        room = os.statvfs(path)
        return room.f_bavail * room.f_frsize

    def lock(self, path: str, *, guarded: Sequence[str] = ()) -> PosixLock:
        return PosixLock(self, path, guarded)


def _what_is_there(path: str) -> str:
    return "is a symbolic link to nothing" if os.path.islink(path) else "is no directory"
