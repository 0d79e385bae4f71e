"""One file of the POSIX disk: positional writes, mapped reads, a descriptor that comes and goes.

A file that is opened again must be the same one. A caller holds the `Descriptor` while it uses it:
another thread may evict it. A mapping stays without a descriptor and covers up to twice the bytes:
a growing file needs few.

Invariant: no view of a mapping reaches beyond `size`; beyond the file's end the kernel sends
SIGBUS.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import mmap
import os
import weakref
from collections.abc import Sequence
from functools import cache
from typing import Any, Final, Protocol

from quiverlog.storage.disk.descriptors import Descriptor
from quiverlog.storage.disk.disk import Buffer, FilePlace, write_error

__all__ = ["WRITTEN", "Mapping", "PosixFile", "write_all"]


# Bytes of a file in memory, without a descriptor of their own.
_CAPACITY_BYTES_MIN: Final = 1024 * 1024
_PAGES_PER_PROBE: Final = 4096
_FAILED: Final = ctypes.c_void_p(-1).value

_LIBC: Final = ctypes.CDLL(None, use_errno=True)
_LIBC.mmap.restype = ctypes.c_void_p
_LIBC.mmap.argtypes = [
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_longlong,
]
_LIBC.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_MINCORE: Final[Any] = getattr(_LIBC, "mincore", None)
if _MINCORE is not None:
    _MINCORE.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]
_ProbeVector: Final = ctypes.c_char * _PAGES_PER_PROBE


@cache
def _region_type(capacity: int) -> Any:
    """Return an array type that unmaps itself. Capacities are powers of two: there are few."""
    munmap, address_of = _LIBC.munmap, ctypes.addressof

    def unmap(self: Any) -> None:
        munmap(address_of(self), capacity)

    names = {"_type_": ctypes.c_char, "_length_": capacity, "__del__": unmap}
    return type("_Region", (ctypes.Array,), names)


class Mapping:
    """A read-only, shared mapping of a file from its first byte on; `fd` may be closed
    afterwards."""

    __slots__ = ("_address", "_region", "_view", "capacity")

    def __init__(self, fd: int, size: int) -> None:
        assert size > 0
        if os.fstat(fd).st_size < size:  # Another process has cut the file.
            raise OSError(errno.EIO, f"the file is shorter than {size} bytes")
        self.capacity = max(_CAPACITY_BYTES_MIN, 1 << size.bit_length())
        assert self.capacity >= size
        address = _LIBC.mmap(None, self.capacity, mmap.PROT_READ, mmap.MAP_SHARED, fd, 0)
        if address is None or address == _FAILED:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        self._address: int = address
        region = _region_type(self.capacity).from_address(address)
        self._region = weakref.ref(region)
        self._view = memoryview(region).cast("B").toreadonly()

    def view(self, position: int, end: int) -> memoryview:
        assert 0 <= position <= end <= self.capacity
        return self._view[position:end]

    @property
    def region(self) -> weakref.ref[Any]:
        return self._region

    def resident(self, position: int, end: int) -> bool:
        """Return whether all pages of [position, end) are cached; True if unknown.

        By mincore: preadv with RWF_NOWAIT would copy the bytes, and tmpfs refuses it.
        """
        assert 0 <= position <= end <= self.capacity
        if _MINCORE is None:
            return True
        at = position - position % mmap.PAGESIZE
        vector = _ProbeVector()
        while at < end:
            length = min(end - at, _PAGES_PER_PROBE * mmap.PAGESIZE)
            pages = -(-length // mmap.PAGESIZE)
            assert 0 < pages <= len(vector), "mincore writes a byte for each page"
            if _MINCORE(self._address + at, length, vector) != 0:
                return True
            if vector.raw.find(0, 0, pages) >= 0:  # Linux sets only the lowest bit.
                return False
            at += length
        return True


READ_COPY_BYTES_MAX: Final = 64 * 1024
"""Up to here a pread is cheaper than mapping, faulting and unmapping."""
HEAD_BYTES: Final = 64
_BUFFERS_PER_WRITE_MAX: Final = 1024
"""IOV_MAX on Linux."""
_READ: Final = 1
WRITTEN: Final = 2
"""How often eviction passes a read file, and a written one: a file with unflushed bytes keeps its
descriptor until the flush where possible."""


class _Descriptors(Protocol):
    def open_descriptor(self, path: str, flags: int) -> Descriptor: ...

    def opened(self, file: PosixFile) -> None: ...


class PosixFile:
    """A `disk.File`. `passes`: how often eviction still passes it."""

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
            # The next append overwrites what stays.
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
            # A start reads only the head of many files: it keeps none of them open.
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
            # One call instead of `resident` and `read_copy`; some file systems refuse the flag.
            count = os.preadv(descriptor.fd, [data], position, os.RWF_NOWAIT)
        except OSError:
            return None
        return data if count == size else None

    def place(self) -> FilePlace | None:
        path = self.path
        if not os.path.isabs(path):
            try:
                # `abspath` would remove a `..` after a link.
                path = os.path.join(os.getcwd(), path)
            except OSError:  # The working directory was removed.
                return None
        assert os.path.isabs(path)
        place = FilePlace(path, *self._identity)
        return place if place.fits_wire else None

    def resident(self, position: int, size: int) -> bool:
        assert position >= 0
        assert size >= 0
        end = min(position + size, self.size)
        if position >= end:
            return True
        try:
            return self._mapped(end).resident(position, end)
        except OSError:
            return True  # Reading it will give the error.

    def _mapped(self, end: int) -> Mapping:
        """Return a mapping up to `end`; the file must have these bytes: others are SIGBUS."""
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
        assert not views, f"{self.path} is cut under {views} mappings with readers"
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
        # Read once: another thread may evict this file's descriptor meanwhile.
        descriptor = self._descriptor
        if descriptor is None:
            descriptor = self._disk.open_descriptor(self.path, os.O_RDWR)
        os.fdatasync(descriptor.fd)
        # No start would find rows in a file without its name, so they must not be acknowledged.
        self._check_identity(os.stat(self.path))

    def close(self) -> None:
        self._descriptor = None
        self._mapping = None

    @property
    def is_open(self) -> bool:
        return self._descriptor is not None


def write_all(fd: int, buffers: Sequence[Buffer], position: int, written: int) -> None:
    """Continue after a short write: a signal, a full disk, more than IOV_MAX buffers."""
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
