"""One file of the real disk: positional writes, mapped reads, a descriptor that comes and goes.

Owns a file's descriptor, its mapping, and how long it is. The descriptor may be taken away for
another file at any time (posix.py says when); the next use opens the file again, by its name, and
sees to it that it is the same one. Whoever uses a descriptor holds the `Descriptor` meanwhile,
because another thread may be in fdatasync on one that was just evicted.

Mappings are never closed: a view keeps its mapping alive. A file that outgrew its mapping is mapped
anew and the old mapping lives as long as its views.

Invariant: no byte at or behind `size` is ever served; what lies there was not appended.
"""

from __future__ import annotations

import contextlib
import errno
import os
import weakref
from collections.abc import Sequence
from typing import Any, Final, Protocol

from quiverlog.storage.descriptors import Descriptor
from quiverlog.storage.disk import Buffer, FilePlace, write_error
from quiverlog.storage.mapping import Mapping

__all__ = ["WRITTEN", "PosixFile", "write_all"]

READ_COPY_BYTES_MAX: Final = 64 * 1024
"""Up to here a pread into fresh bytes is cheaper than mapping, faulting and unmapping."""
HEAD_BYTES: Final = 64
"""A read of no more, from the beginning, is of a segment's header."""
_BUFFERS_PER_WRITE_MAX: Final = 1024
"""IOV_MAX on Linux."""
_READ: Final = 1
WRITTEN: Final = 2
"""How often the eviction hand passes a file that was read, and one that was written: a file with
unflushed bytes keeps its descriptor until the flush wherever that is possible."""


class _Descriptors(Protocol):
    """The part of the disk that a file needs."""

    def open_descriptor(self, path: str, flags: int) -> Descriptor: ...

    def opened(self, file: PosixFile) -> None: ...


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

    def __init__(
        self,
        disk: _Descriptors,
        path: str,
        found: os.stat_result,
        descriptor: Descriptor | None = None,
    ) -> None:
        self._disk = disk
        self._identity = (found.st_dev, found.st_ino)
        self._descriptor = descriptor
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

    def _open_briefly(self) -> Descriptor:
        """A descriptor for one read, closed behind it."""
        descriptor = self._disk.open_descriptor(self.path, os.O_RDONLY)
        self._check_identity(os.fstat(descriptor.fd))
        return descriptor

    def _check_identity(self, found: os.stat_result) -> None:
        if (found.st_dev, found.st_ino) != self._identity:
            raise OSError(errno.ESTALE, "the file was replaced by another one", self.path)

    def append(self, buffers: Sequence[Buffer]) -> int:
        assert buffers
        position = self.size
        self.passes = WRITTEN
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
            assert 0 <= written <= total
            if written != total:
                write_all(fd, buffers, position, written)
        except OSError as error:
            # Best effort: what stays behind is overwritten by the next append at this position.
            with contextlib.suppress(OSError):
                os.ftruncate(fd, position)
            raise write_error(self.path, error) from error
        assert position == self.size, "one thread appends"
        self.size = position + total
        return position

    def read(self, position: int, size: int) -> memoryview:
        assert position >= 0
        assert size >= 0
        if size <= READ_COPY_BYTES_MAX or position >= self.size:
            return memoryview(self.read_copy(position, size))
        end = min(position + size, self.size)
        return self._mapped(end).view(position, end)

    def read_copy(self, position: int, size: int) -> bytes:
        assert position >= 0
        self.passes = max(self.passes, _READ)
        descriptor = self._descriptor
        if descriptor is None:
            # Of many files a start reads the head, and no more for now: it keeps none of them open.
            descriptor = self._open() if position + size > HEAD_BYTES else self._open_briefly()
        data = os.pread(descriptor.fd, size, position)
        while len(data) < size and (
            more := os.pread(descriptor.fd, size - len(data), position + len(data))
        ):
            data += more
        assert len(data) <= size
        return data

    def read_cached(self, position: int, size: int) -> bytearray | None:
        assert position >= 0
        assert size >= 0
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

    def place(self) -> FilePlace | None:
        path = self.path
        if not os.path.isabs(path):
            try:
                path = os.path.join(os.getcwd(), path)  # `abspath` takes `..` behind a link away.
            except OSError:  # The working directory is gone.
                return None
        assert os.path.isabs(path)
        place = FilePlace(path, *self._identity)
        return place if place.can_be_told else None

    def resident(self, position: int, size: int) -> bool:
        assert position >= 0
        assert size >= 0
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
        assert mapping.capacity >= end
        return mapping

    def rewrite(self, position: int, data: Buffer) -> None:
        assert position >= 0
        assert position + len(data) <= self.size
        self.passes = WRITTEN
        try:
            descriptor = self._descriptor or self._open()
            write_all(descriptor.fd, [data], position, 0)
        except OSError as error:
            raise write_error(self.path, error) from error

    def write_head(self, data: Buffer) -> None:
        assert 0 < len(data) <= self.size
        try:
            descriptor = self._descriptor or self._open()
            write_all(descriptor.fd, [data], 0, 0)
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


def write_all(fd: int, buffers: Sequence[Buffer], position: int, written: int) -> None:
    """Go on after a short write (a signal, a full disk, more buffers than one call takes)."""
    assert position >= 0
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
            assert 0 < count <= len(view)
            at += count
            view = view[count:]
    assert not skip, "more was written than there is"
