"""One broker a data directory: the lock on the real disk.

Owns the two descriptors that hold it, and the claim by which a broker sees that it is still the
owner. Must not know what lies in the directory.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from collections.abc import Callable

from quiverlog.errors import DataDirectoryInUse
from quiverlog.storage.descriptors import Descriptor

__all__ = ["PosixLock"]


class PosixLock:
    """flock on the directory itself, and on the file `lock` in it.

    The kernel drops both with the process, however that ends. A broker whose lock file is deleted
    still has the directory. Older brokers lock the file alone. It holds the owner's claim.
    """

    __slots__ = ("_claim", "_descriptors", "_path", "_read_file")

    def __init__(
        self,
        path: str,
        open_descriptor: Callable[[str, int], Descriptor],
        read_file: Callable[[str], bytes],
    ) -> None:
        self._path = path
        self._read_file = read_file
        self._claim = b""
        self._descriptors: list[Descriptor] = []
        names = (
            (path, os.O_RDONLY | os.O_DIRECTORY),
            (f"{path}/lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW),
        )
        for name, flags in names:
            descriptor = open_descriptor(name, flags)
            try:
                fcntl.flock(descriptor.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                self.release()
                if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                    raise DataDirectoryInUse(f"{path} is locked by another broker.") from None
                raise
            self._descriptors.append(descriptor)

    def release(self) -> None:
        self._descriptors.clear()

    def claim(self, owner: bytes) -> None:
        with contextlib.suppress(OSError):  # A full disk must not keep a broker from starting.
            os.ftruncate(self._descriptors[-1].fd, 0)
            os.pwrite(self._descriptors[-1].fd, owner, 0)
            self._claim = owner

    def holds(self) -> bool:
        if not self._descriptors:
            return False
        mine = os.fstat(self._descriptors[0].fd)
        try:
            there = os.stat(self._path)
            if (mine.st_dev, mine.st_ino) != (there.st_dev, there.st_ino):
                return False
            claim = self._read_file(f"{self._path}/lock")
        except FileNotFoundError:
            return os.path.isdir(self._path)  # The lock file may go: the directory is locked.
        except OSError:
            return True  # Not known: no descriptor, say.
        return claim in (self._claim, b"") or not self._claim
