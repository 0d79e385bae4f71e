"""The disk interface of storage: the same log runs on `posix.PosixDisk` and on the simulator's
disk.

Paths are strings with `/`. Thread-safe are the methods of `Disk`, and `File.sync`, `read_copy`,
`read_cached`, `resident`, `write_head` and `close`; others of one file need one thread at a time.

A disk promises that `File.append` stores all or nothing, by `size`; that views from `File.read`
stay valid and unchanged while referenced (a file under a view is never cut: a shorter one is
written and given the name, `Disk.replace`); that nothing is durable before `sync` (contents) and
`sync_dir` (names) have returned; that an error of `out_of_descriptors` means that nothing was done.
"""

from __future__ import annotations

import errno
import stat
from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

from quiverlog.errors import DiskFull, QuiverlogError, StorageFault, ThrottledBroker

__all__ = [
    "Buffer",
    "Disk",
    "DiskLock",
    "File",
    "is_special_file",
    "is_unreadable_file",
    "out_of_descriptors",
    "short_name",
    "special_file",
    "what_failed",
    "write_error",
]

Buffer = bytes | bytearray | memoryview

_NO_ROOM: Final = frozenset((errno.ENOSPC, errno.EDQUOT, errno.EFBIG))
_SPECIAL: Final = frozenset((errno.EISDIR, errno.ENXIO, errno.ELOOP))
_UNREADABLE: Final = frozenset((errno.EIO, errno.ESTALE))
_OUT_OF_DESCRIPTORS: Final = frozenset((errno.EMFILE, errno.ENFILE))


def out_of_descriptors(error: BaseException | None) -> bool:
    """Return whether an operation failed before it began, for lack of a descriptor: the disk may be
    fine."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in _OUT_OF_DESCRIPTORS:
            return True
        error = error.__cause__
    return False


def special_file(path: str, mode: int) -> OSError:
    if stat.S_ISDIR(mode):
        return IsADirectoryError(errno.EISDIR, "Is a directory", path)
    return OSError(errno.ENXIO, "is not a regular file", path)


def is_special_file(error: OSError) -> bool:
    return error.errno in _SPECIAL


def is_unreadable_file(error: BaseException) -> bool:
    return isinstance(error, OSError) and (
        isinstance(error, FileNotFoundError) or error.errno in _UNREADABLE or is_special_file(error)
    )


def write_error(path: str, error: OSError) -> QuiverlogError:
    """Return the error for a failed write. Clients see its message: no whole path in it."""
    what = f"writing {short_name(path)}: {error.strerror or error}."
    if error.errno in _NO_ROOM:
        return DiskFull(what, file=path)
    if out_of_descriptors(error):
        return ThrottledBroker(what, file=path)
    return StorageFault(what, file=path)


def what_failed(error: OSError) -> str:
    file = f"{short_name(str(error.filename))}: " if error.filename else ""
    return f"{file}{error.strerror or error}"


def short_name(path: str) -> str:
    """Return the directory's name and the file's: clients never see the whole path."""
    return "/".join(path.rsplit("/", 2)[-2:])


class FilePlace(NamedTuple):
    path: str
    device: int
    inode: int

    @property
    def fits_wire(self) -> bool:
        """Return False where the wire cannot carry it: a name that is no text, or a number too
        large."""
        is_text = not any("\ud800" <= character <= "\udfff" for character in self.path)
        return is_text and max(self.device, self.inode) < 2**63


class File(Protocol):
    """An append-only file. Its descriptor may come and go."""

    path: str
    size: int

    def append(self, buffers: Sequence[Buffer]) -> int:
        """Write after the last byte; return the position of the first byte written.

        Raises DiskFull, ThrottledBroker (no free descriptor), StorageFault: nothing was appended.
        """

    def read(self, position: int, size: int) -> memoryview:
        """Return `size` bytes from `position`, fewer at the end: small ones copied, large ones
        mapped.

        Reading a mapped byte that the disk cannot deliver ends the process (SIGBUS): call
        `resident` before, or use `read_copy`. Raises OSError.
        """

    def read_copy(self, position: int, size: int) -> bytes:
        """Return a copy of `size` bytes, fewer at the end. Raises OSError, also for a bad
        sector."""

    def read_cached(self, position: int, size: int) -> bytearray | None:
        """Return a copy; None unless all bytes were in memory. Never waits for the disk, never
        raises."""

    def place(self) -> FilePlace | None: ...

    def resident(self, position: int, size: int) -> bool:
        """Return whether these bytes are in memory, which may change at any time; True where the
        system does not report it."""

    def rewrite(self, position: int, data: Buffer) -> None:
        """Write the bytes at `position` once more, so that the next `sync` includes them.

        After a failed sync, bytes may be clean in the cache and on no disk: no later sync would
        write them. `size` does not change.

        Raises:
            DiskFull, ThrottledBroker, StorageFault: as `append`; the bytes are unchanged.
        """

    def write_head(self, data: Buffer) -> None:
        """Overwrite the first bytes, which no view may cover. Thread-safe.

        After a power failure before the next `sync` the bytes are old or new, never a mixture: they
        are within one sector. `size` does not change.

        Raises:
            DiskFull, ThrottledBroker, StorageFault: as `append`; the bytes may be either.
        """

    def truncate(self, size: int) -> None:
        """Cut to `size` bytes. No view of the file may be alive."""

    def retract(self, size: int) -> None:
        """Take back the newest append, which has no readers.

        Never fails: what cannot be cut off is overwritten by the next append.
        """

    def sync(self) -> None:
        """Call fdatasync. Thread-safe.

        Raises:
            OSError: the system failed, or another file (or none) has the name now, so that no start
                would find what was written.
        """

    def close(self) -> None:
        """Close descriptor and mapping; views stay valid. The next use opens again."""


class DiskLock(Protocol):
    def release(self) -> None:
        """Release the lock; may be called twice."""

    def claim(self, owner: bytes) -> None:
        """Write the owner into the lock, durably, if the disk lets it."""

    def holds(self) -> bool:
        """Return whether the path is the locked directory, with the same guarded directories and no
        other owner's claim; True where the disk does not show it.

        A lock does not prevent that the directory is replaced, and some network file systems do not
        exclude other machines.
        """


class Disk(Protocol):
    """File system operations. Unless a method names other errors, missing files raise
    FileNotFoundError, other failures OSError."""

    def open(self, path: str, *, create: bool) -> File:
        """Open a file. `create`: it must not exist; otherwise it must."""

    def read_file(self, path: str) -> bytes: ...

    def write_file_atomic(self, path: str, data: Buffer, *, durable: bool = True) -> None:
        """Replace the file, durably; never a mixture.

        Not `durable`: it may be missing, empty or torn after a power failure; for contents with a
        checksum that can be rebuilt.

        Raises:
            DiskFull, ThrottledBroker, StorageFault: the old file is untouched, or (when the flush
                of the directory failed) the new one is there and may be gone after a power failure.
        """

    def overwrite(self, path: str, data: Buffer) -> None:
        """Overwrite the first bytes of a small file in place, or create it. Nothing is durable.

        After a power failure it has the old contents or the new ones, or (if created) is missing,
        empty or torn. Bytes after `data` stay. For contents with a checksum.

        Raises:
            DiskFull, ThrottledBroker, StorageFault: it has the old contents or the new ones.
        """

    def rename(self, old: str, new: str) -> None:
        """Rename a file or directory; durable after `sync_dir` of the parent."""

    def replace(self, file: File, path: str) -> None:
        """Give an open file the name `path`, replacing its holder; durable after `sync_dir`."""

    def remove(self, path: str) -> None: ...

    def remove_tree(self, path: str) -> None:
        """Remove a directory and all in it, if it exists."""

    def list(self, path: str) -> list[str]:
        """Return sorted names."""

    def entries(self, path: str) -> dict[str, bool]:
        """Return sorted names, each with the result of `is_file`."""

    def make_dir(self, path: str) -> None:
        """Make a directory (and its parents) unless it exists, accessible to its owner only."""

    def restrict(self, path: str) -> bool:
        """Make a directory inaccessible to all but its owner. Returns whether that changed
        anything."""

    def sync_dir(self, path: str) -> None:
        """Make the names in a directory durable. Thread-safe."""

    def exists(self, path: str) -> bool: ...

    def is_file(self, path: str) -> bool:
        """Return whether a regular file, or a link to one, has this path."""

    def directories(self, path: str) -> tuple[str, ...]:
        """Return sorted names of directories, and of links to some."""

    def free_bytes(self, path: str) -> int:
        """Return the room for an ordinary user on the file system of `path`."""

    def lock(self, path: str, *, guarded: Sequence[str] = ()) -> DiskLock:
        """Lock the directory `path` itself, and the file `lock` in it, made when missing.

        Args:
            guarded: names of directories in it that must not be replaced; see `DiskLock.holds`.

        Raises:
            DataDirectoryInUse: another process (or another holder in this one) has it.
        """
