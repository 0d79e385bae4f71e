"""What the storage floor asks of a disk, and nothing more.

Owns two protocols, so that the same log runs on a real file system (`posix.PosixDisk`) and on the
simulator's disk, which loses, tears and delays. Paths are plain strings with `/` between names.

What a disk promises:
- `File.append` stores all or nothing as far as `size` tells; after an error `size` is unchanged
  and whatever was half written is overwritten by the next append.
- Views that `File.read` returned stay valid and unchanged for as long as they are referenced,
  whatever happens to the file: growth, deletion, replacement, `close`. A file under a view is never
  cut: whoever wants fewer bytes writes another file and gives it the name (`Disk.replace`).
- Nothing is durable before `sync` (contents) and `sync_dir` (names) have returned.
- The methods of a `Disk`, and `File.sync`, `read_copy`, `read_cached`, `resident`, `write_head` and
  `close`, may be called from any thread. `append`, `read`, `rewrite` and `truncate` of one file are
  called by one thread at a time.
- No operation needs a descriptor that the process may not have: a disk keeps some in reserve. When
  those are gone too, the error is `out_of_descriptors`: nothing was attempted.
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
    """True when an operation failed before it began: there was no descriptor to be had.

    Such a failure says nothing about the disk: the same operation may succeed a moment later.
    """
    while error is not None:
        if isinstance(error, OSError) and error.errno in _OUT_OF_DESCRIPTORS:
            return True
        error = error.__cause__
    return False


def special_file(path: str, mode: int) -> OSError:
    """Something that is no file (a directory, a FIFO, a device) has a file's name."""
    if stat.S_ISDIR(mode):
        return IsADirectoryError(errno.EISDIR, "Is a directory", path)
    return OSError(errno.ENXIO, "is not a regular file", path)


def is_special_file(error: OSError) -> bool:
    """True for what `special_file` made, and for what the system says of a socket or a loop."""
    return error.errno in _SPECIAL


def is_unreadable_file(error: BaseException) -> bool:
    """True when the disk does not give a file that was there, and may not the next time either."""
    return isinstance(error, OSError) and (
        isinstance(error, FileNotFoundError) or error.errno in _UNREADABLE or is_special_file(error)
    )


def write_error(path: str, error: OSError) -> QuiverlogError:
    """The error table's name for a failed write. Clients see the message: no whole path in it."""
    what = f"writing {short_name(path)}: {error.strerror or error}."
    if error.errno in _NO_ROOM:
        return DiskFull(what, file=path)
    if out_of_descriptors(error):
        return ThrottledBroker(what, file=path)
    return StorageFault(what, file=path)


def what_failed(error: OSError) -> str:
    """The file and what is wrong with it, in words that a client may hear."""
    file = f"{short_name(str(error.filename))}: " if error.filename else ""
    return f"{file}{error.strerror or error}"


def short_name(path: str) -> str:
    """A file as clients may hear of it: its directory's name and its own, never the whole path."""
    return "/".join(path.rsplit("/", 2)[-2:])


class FilePlace(NamedTuple):
    """What opens a file elsewhere: its whole path. `device` and `inode` tell that it is the one."""

    path: str
    device: int
    inode: int

    @property
    def can_be_told(self) -> bool:
        """False: the wire has no words for it, a name that is no text or a number too large."""
        is_text = not any("\ud800" <= character <= "\udfff" for character in self.path)
        return is_text and max(self.device, self.inode) < 2**63


class File(Protocol):
    """An append-only file. Its descriptor may come and go; `size` is what was appended."""

    path: str
    size: int

    def append(self, buffers: Sequence[Buffer]) -> int:
        """Write after the last byte; returns the position of the first byte written.

        Raises:
            DiskFull: no room; nothing was appended.
            ThrottledBroker: no descriptor to be had; nothing was attempted.
            StorageFault: another failure; nothing was appended.
        """

    def read(self, position: int, size: int) -> memoryview:
        """`size` bytes from `position`: small ones copied, large ones mapped. Short at the end.

        Mapped bytes are for a socket. Looking at a mapped byte that the disk cannot deliver ends
        the process (SIGBUS): ask `resident` before, or take `read_copy`.

        Raises:
            OSError: the file cannot be read.
        """

    def read_copy(self, position: int, size: int) -> bytes:
        """`size` bytes from `position`, copied: a bad sector is an error. Short at the end.

        Raises:
            OSError: the file cannot be read.
        """

    def read_cached(self, position: int, size: int) -> bytearray | None:
        """`size` bytes from `position`, copied; None unless all of them were in memory.

        Never waits for the disk and never raises: `read_copy` says what is wrong.
        """

    def place(self) -> FilePlace | None:
        """Where another process of this machine finds it; None: there is no telling."""

    def resident(self, position: int, size: int) -> bool:
        """True when these bytes are in memory, so that reading them cannot wait for the disk.

        True where the system cannot tell. The answer may be old a moment later.
        """

    def rewrite(self, position: int, data: Buffer) -> None:
        """Write the bytes that lie at `position` once more, so that the next `sync` takes them.

        A failed sync may leave bytes in the cache that count as written and are on no disk: no
        later sync would write them. `size` does not change.

        Raises:
            DiskFull, StorageFault: as `append`; the bytes are what they were.
        """

    def write_head(self, data: Buffer) -> None:
        """Overwrite the first bytes, which no view may cover. May be called from any thread.

        A power failure before the next `sync` leaves the old bytes or the new ones, never a
        mixture: they lie in one sector. `size` does not change.

        Raises:
            DiskFull, ThrottledBroker, StorageFault: as `append`; the bytes may be either.
        """

    def truncate(self, size: int) -> None:
        """Cut to `size` bytes. No view of the file may be alive."""

    def retract(self, size: int) -> None:
        """Take back the newest append, which nobody has read: the file ends at `size` again.

        Never fails: what cannot be cut off is overwritten by the next append.
        """

    def sync(self) -> None:
        """fdatasync. May be called from another thread.

        Raises:
            OSError: the system failed, or another file (or none) has the name by now: what was
                written is on the disk where nobody will look for it.
        """

    def close(self) -> None:
        """Let go of descriptor and mapping; views stay valid. The next use opens again."""


class DiskLock(Protocol):
    """A lock that the operating system drops with the process."""

    def release(self) -> None:
        """Give the lock back; safe to call twice."""

    def claim(self, owner: bytes) -> None:
        """Write into the lock who has it, durably. Nothing happens where it cannot be written."""

    def holds(self) -> bool:
        """True while the path names the locked directory, and nobody else's claim is in it.

        The guarded directories in it must be the same ones, too.

        A lock does not keep anybody from putting another directory in the place of this one, and
        some network file systems do not keep machines apart.
        """


class Disk(Protocol):
    """See the module docstring. Missing files raise FileNotFoundError, other failures OSError."""

    def open(self, path: str, *, create: bool) -> File:
        """`create`: the file must not exist; otherwise it must."""

    def read_file(self, path: str) -> bytes:
        """The whole of a small file."""

    def write_file_atomic(self, path: str, data: Buffer, *, durable: bool = True) -> None:
        """Old contents or new, never a mixture; on the disk when this returns.

        Not `durable`: the file may be missing, empty or torn after a power failure. Only for
        contents that carry a checksum and can be rebuilt.

        Raises:
            DiskFull, StorageFault: the old file is untouched, or (when the flush of the directory
                failed) the new one is there and may be gone after a power failure.
        """

    def overwrite(self, path: str, data: Buffer) -> None:
        """Write over the first bytes of a small file in place, or make it. Nothing is durable.

        After a power failure the file has the old contents or the new ones, or (a new one) is
        missing, empty or torn. Bytes behind `data` stay. For contents that carry a checksum.

        Raises:
            DiskFull, ThrottledBroker, StorageFault: it has the old contents or the new ones.
        """

    def rename(self, old: str, new: str) -> None:
        """Rename a file or directory; durable after `sync_dir` of the parent."""

    def replace(self, file: File, path: str) -> None:
        """Give an open file the name `path`, whatever had it; durable after `sync_dir`.

        Views of the file that had the name stay as they are.
        """

    def remove(self, path: str) -> None:
        """Remove a file."""

    def remove_tree(self, path: str) -> None:
        """Remove a directory and all in it; nothing happens when it is missing."""

    def list(self, path: str) -> list[str]:
        """Names in a directory, sorted."""

    def entries(self, path: str) -> dict[str, bool]:
        """Names in a directory, sorted, each with what `is_file` says of it."""

    def make_dir(self, path: str) -> None:
        """Make a directory (and its parents) unless it exists, for its owner's eyes only."""

    def restrict(self, path: str) -> bool:
        """Take a directory from all but its owner. Returns whether that changed anything."""

    def sync_dir(self, path: str) -> None:
        """Make the names in a directory durable. May be called from another thread."""

    def exists(self, path: str) -> bool:
        """True when there is a file or directory of this path."""

    def is_file(self, path: str) -> bool:
        """True when there is a regular file of this path, or a link to one."""

    def directories(self, path: str) -> tuple[str, ...]:
        """Names of the directories, and of links to some, in a directory, sorted."""

    def free_bytes(self, path: str) -> int:
        """Room left for an ordinary user on the file system that holds `path`."""

    def lock(self, path: str, *, guarded: Sequence[str] = ()) -> DiskLock:
        """Lock the directory `path` itself, and the file `lock` in it, made when missing.

        Args:
            guarded: names of directories in it that must not be replaced; see `DiskLock.holds`.

        Raises:
            DataDirectoryInUse: another process (or another holder in this one) has it.
        """
