"""The lock on a data directory, and whether it is still the directory that was locked.

Owns the descriptors of the lock. As long as they are open, the system gives their inode numbers to
nobody else, so a directory with the same number is the same directory.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from collections.abc import Sequence
from typing import Final, Protocol

from quiverlog.errors import DataDirectoryInUse
from quiverlog.storage.descriptors import Descriptor

__all__ = ["PosixLock"]

_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY
_LOCK_FILE: Final = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW


class _Opener(Protocol):
    """What the lock asks of the disk that it lies on."""

    def open_descriptor(self, path: str, flags: int) -> Descriptor: ...

    def read_file(self, path: str) -> bytes: ...


class PosixLock:
    """flock on the directory itself, and on the file `lock` in it. See `disk.DiskLock`.

    The kernel drops both with the process, however that ends. A broker whose lock file is deleted
    still has the directory. Older brokers lock the file alone. It holds the owner's claim.

    Args:
        guarded: names of directories in it that must stay the ones they are.

    Raises:
        DataDirectoryInUse: another process (or another holder in this one) has it.
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
        """The descriptor of a directory that this lock has open; None for others.

        None also where another directory has the path by now: what is done to the one that was
        locked would be of no use to the next start.
        """
        descriptor = self._directories.get(path)
        return descriptor if descriptor is not None and _is_at(descriptor, path) else None

    def release(self) -> None:
        # Whoever keeps the traceback of a start that failed may keep a descriptor open with it.
        for descriptor in (*self._directories.values(), self._file):
            if descriptor is not None:
                with contextlib.suppress(OSError):
                    fcntl.flock(descriptor.fd, fcntl.LOCK_UN)
        self._directories.clear()
        self._file = None

    def claim(self, owner: bytes) -> None:
        assert self._file is not None, "a lock that was released claims nothing"
        assert owner, "an empty claim is anybody's"
        with contextlib.suppress(OSError):  # A full disk must not keep a broker from starting.
            os.ftruncate(self._file.fd, 0)
            if os.pwrite(self._file.fd, owner, 0) == len(owner):
                self._claim = owner
                os.fsync(self._file.fd)  # The next start compares the mark of a stop with it.
        if not self._claim:  # Half a claim would be taken for another broker's.
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
            # The lock file may go: the directory is locked. The directories may not.
            return all(map(os.path.isdir, directories))
        except NotADirectoryError:
            return False
        except OSError:
            return True  # Not known: no descriptor, say.
        return claim in (self._claim, b"") or not self._claim


def _is_at(descriptor: Descriptor, path: str) -> bool:
    """True when `path` names what the descriptor has open."""
    mine, there = os.fstat(descriptor.fd), os.stat(path)
    return (mine.st_dev, mine.st_ino) == (there.st_dev, there.st_ino)
