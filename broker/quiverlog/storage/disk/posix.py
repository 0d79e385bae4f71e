"""The POSIX disk: names, directories, open descriptors, and the lock on a data directory.

At most `files_open_max` files hold a descriptor; a file without one opens again at its next use.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
import weakref
from collections import deque
from collections.abc import Sequence
from typing import Final, Protocol

from quiverlog.errors import DataDirectoryInUse
from quiverlog.storage.disk.descriptors import READ_FLAGS, Descriptor, DescriptorReserve
from quiverlog.storage.disk.disk import (
    Buffer,
    File,
    is_special_file,
    out_of_descriptors,
    special_file,
    write_error,
)
from quiverlog.storage.disk.posix_file import WRITTEN, PosixFile, write_all

__all__ = ["RESERVED_DESCRIPTORS", "PosixDisk", "PosixFile", "PosixLock"]


# While a lock's descriptors are open, the kernel reuses their inode numbers for no other file: a
# directory with the same number is the same directory.
_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY
_LOCK_FILE: Final = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW


class _Opener(Protocol):
    def open_descriptor(self, path: str, flags: int) -> Descriptor: ...

    def read_file(self, path: str) -> bytes: ...


class PosixLock:
    """flock on the directory itself, and on the file `lock` in it, which holds the owner's claim.

    The kernel releases both with the process. A broker whose lock file is gone still has the
    directory.
    """

    __slots__ = ("__weakref__", "_claim", "_directories", "_disk", "_file", "_path")

    def __init__(self, disk: _Opener, path: str, guarded: Sequence[str]) -> None:
        self._path = path
        self._disk = disk
        self._claim = b""
        self._directories: dict[str, Descriptor] = {}
        self._file: Descriptor | None = None
        try:
            self._directories[path] = disk.open_descriptor(path, _DIRECTORY)
            self._flock(self._directories[path])
            self._file = disk.open_descriptor(f"{path}/lock", _LOCK_FILE)
            self._flock(self._file)
            for name in guarded:
                inside = f"{path}/{name}"
                self._directories[inside] = disk.open_descriptor(inside, _DIRECTORY)
            assert len(self._directories) == 1 + len(guarded), "each is another one"
        except BaseException:
            self.release()
            raise

    def _flock(self, descriptor: Descriptor) -> None:
        try:
            fcntl.flock(descriptor.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                raise DataDirectoryInUse(f"{self._path} is locked by another broker.") from None
            raise

    def directory(self, path: str) -> Descriptor | None:
        """Return this lock's descriptor of the directory; None where another directory has the path
        now: to sync the locked one would not help the next start."""
        descriptor = self._directories.get(path)
        return descriptor if descriptor is not None and _is_at(descriptor, path) else None

    def release(self) -> None:
        # The traceback of a failed start may keep a descriptor open.
        for descriptor in (*self._directories.values(), self._file):
            if descriptor is not None:
                with contextlib.suppress(OSError):
                    fcntl.flock(descriptor.fd, fcntl.LOCK_UN)
        self._directories.clear()
        self._file = None

    def claim(self, owner: bytes) -> None:
        assert self._file is not None, "a lock that was released claims nothing"
        assert owner, "an empty claim names no owner"
        with contextlib.suppress(OSError):  # A full disk must not keep a broker from starting.
            os.ftruncate(self._file.fd, 0)
            if os.pwrite(self._file.fd, owner, 0) == len(owner):
                self._claim = owner
                os.fsync(self._file.fd)  # The next start compares the mark of a stop with it.
        if not self._claim:  # A partial claim would be another broker's.
            with contextlib.suppress(OSError):
                os.ftruncate(self._file.fd, 0)

    def holds(self) -> bool:
        # Another thread may release it meanwhile: these descriptors live until this returns.
        directories = dict(self._directories)
        if self._file is None or not directories:
            return False
        try:
            if not all(map(_is_at, directories.values(), directories)):
                return False
            claim = self._disk.read_file(f"{self._path}/lock")
        except FileNotFoundError:
            # The lock file may be missing, as the directory is locked. The directories may not.
            return all(map(os.path.isdir, directories))
        except NotADirectoryError:
            return False
        except OSError:
            return True  # Unknown, for example without a descriptor.
        return claim in (self._claim, b"") or not self._claim


def _is_at(descriptor: Descriptor, path: str) -> bool:
    mine, there = os.fstat(descriptor.fd), os.stat(path)
    return (mine.st_dev, mine.st_ino) == (there.st_dev, there.st_ino)


FILES_OPEN_MAX: Final = 1024
RESERVED_DESCRIPTORS: Final = 16
"""More than the jobs that run at once by default; each opens one file at a time."""
DIRECTORY_MODE: Final = 0o700
_SMALL_FILE_BYTES: Final = 4096
"""A shorter read has reached the end of the file."""


class PosixDisk:
    """`reserved_descriptors` are kept for flushes and removals; a tool that reads a file needs
    none."""

    __slots__ = ("_files_open_max", "_lock", "_open_files", "_reserve")

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
        # The lock has some directories open; its last holder closes them.
        self._lock: weakref.ref[PosixLock] | None = None

    # --- descriptors ---------------------------------------------------------------------------
    def open_descriptor(self, path: str, flags: int) -> Descriptor:
        if self._reserve.is_full:
            try:
                return Descriptor(path, flags)
            except OSError as error:
                if not out_of_descriptors(error):
                    raise
        try:
            return self._reserve.spend(lambda: Descriptor(path, flags))
        except OSError as error:
            if not out_of_descriptors(error) or not self._close_one():
                raise
        return self._open_instead(path, flags)

    def _open_instead(self, path: str, flags: int) -> Descriptor:
        while True:
            try:
                return Descriptor(path, flags)
            except OSError as error:
                if not out_of_descriptors(error) or not self._close_one():
                    raise

    def _close_one(self) -> bool:
        while self._open_files:
            with contextlib.suppress(IndexError):  # Another thread has taken the last one.
                file = self._open_files.popleft()
                if file.is_open:
                    file.close()
                    return True
        return False

    def opened(self, file: PosixFile) -> None:
        """Close files above the bound, second chance. Thread-safe: each step is one atomic
        operation of the deque."""
        files = self._open_files
        files.append(file)
        for _ in range((WRITTEN + 1) * len(files)):
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
        file = PosixFile(self, path, os.fstat(descriptor.fd), descriptor)
        self.opened(file)
        return file

    def read_file(self, path: str) -> bytes:
        # A start reads thousands of files: no call more than needed.
        try:
            fd = os.open(path, READ_FLAGS)
        except OSError as error:
            if not out_of_descriptors(error):
                raise
            fd = self._reserve.spend(lambda: os.open(path, READ_FLAGS))
        try:
            data = os.pread(fd, _SMALL_FILE_BYTES, 0)
            return data if 0 < len(data) < _SMALL_FILE_BYTES else self._read_on(path, fd, data)
        except OSError as error:
            if error.errno not in (errno.ESPIPE, errno.EISDIR):
                raise
            raise special_file(path, os.fstat(fd).st_mode) from error
        finally:
            os.close(fd)

    def _read_on(self, path: str, fd: int, data: bytes) -> bytes:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            raise special_file(path, found.st_mode)
        size = found.st_size
        while len(data) < size and (more := os.pread(fd, size - len(data), len(data))):
            data += more
        assert len(data) <= size, "a small file is replaced, never grown"
        return data

    def write_file_atomic(self, path: str, data: Buffer, *, durable: bool = True) -> None:
        assert not path.endswith(("/", ".tmp"))
        temporary = f"{path}.tmp"
        try:
            descriptor = self.open_descriptor(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            write_all(descriptor.fd, [data], 0, 0)
            if durable:
                os.fsync(descriptor.fd)
            del descriptor  # One at a time: the directory needs one next.
            os.rename(temporary, path)
            if durable:
                self.sync_dir(os.path.dirname(path))
        except OSError as error:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise write_error(path, error) from error

    def overwrite(self, path: str, data: Buffer) -> None:
        assert not path.endswith(("/", ".tmp"))
        assert len(data) > 0
        try:
            descriptor = self.open_descriptor(path, os.O_WRONLY | os.O_CREAT)
            write_all(descriptor.fd, [data], 0, 0)
        except OSError as error:
            raise write_error(path, error) from error

    def rename(self, old: str, new: str) -> None:
        assert os.path.dirname(old) == os.path.dirname(new), "one directory makes it durable"
        assert old != new
        os.rename(old, new)

    def replace(self, file: File, path: str) -> None:
        assert os.path.dirname(file.path) == os.path.dirname(path), "names of one directory"
        assert file.path != path
        os.rename(file.path, path)
        file.path = path

    def remove(self, path: str) -> None:
        os.unlink(path)

    # --- directories ---------------------------------------------------------------------------
    def remove_tree(self, path: str) -> None:
        assert path.rpartition("/")[2] not in ("", ".", ".."), "a directory by its own name"
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

    def entries(self, path: str) -> dict[str, bool]:
        def look() -> list[tuple[str, bool]]:
            with os.scandir(path) as found:  # Has the type of most entries without a call for each.
                return [
                    (entry.name, entry.is_file(follow_symlinks=False) or self._leads_to_file(entry))
                    for entry in found
                ]

        return dict(sorted(self._reserve.spend(look)))

    def _leads_to_file(self, entry: os.DirEntry[str]) -> bool:
        return entry.is_symlink() and self.is_file(entry.path)

    def directories(self, path: str) -> tuple[str, ...]:
        def look() -> tuple[str, ...]:
            with os.scandir(path) as found:
                return tuple(sorted(entry.name for entry in found if _is_directory(entry)))

        return self._reserve.spend(look)

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
        lock = self._lock() if self._lock is not None else None
        descriptor = lock.directory(path) if lock is not None else None
        if descriptor is None:
            descriptor = self.open_descriptor(path or ".", os.O_RDONLY | os.O_DIRECTORY)
        os.fsync(descriptor.fd)

    def exists(self, path: str) -> bool:
        # Not `os.path.exists`: a stat that fails for another reason would make an existing file
        # look new.
        try:
            os.stat(path)
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
                return False
            raise
        return True

    def is_file(self, path: str) -> bool:
        try:
            return stat.S_ISREG(os.stat(path).st_mode)
        except OSError as error:
            # ENOTDIR: for example a link that goes through a file.
            missing = isinstance(error, FileNotFoundError | NotADirectoryError)
            if missing or is_special_file(error):
                return False
            raise

    def free_bytes(self, path: str) -> int:
        room = os.statvfs(path)
        return room.f_bavail * room.f_frsize

    def lock(self, path: str, *, guarded: Sequence[str] = ()) -> PosixLock:
        lock = PosixLock(self, path, guarded)
        self._lock = weakref.ref(lock)
        return lock


def _is_directory(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # For example a circular link.
        return False


def _what_is_there(path: str) -> str:
    return "is a symbolic link to nothing" if os.path.islink(path) else "is no directory"
