"""What the storage floor asks of a disk, and nothing more.

Owns two protocols, so that the same log runs on a real file system (`posix.PosixDisk`) and on the
simulator's disk, which loses, tears and delays. Paths are plain strings with `/` between names.

What a disk promises:
- `File.append` stores all or nothing as far as `size` tells; after an error `size` is unchanged
  and whatever was half written is overwritten by the next append.
- Views that `File.read` returned stay valid and unchanged for as long as they are referenced,
  whatever happens to the file: growth, deletion, `close`. (`truncate` only ever takes bytes that
  no reader was given.)
- Nothing is durable before `sync` (contents) and `sync_dir` (names) have returned.
- All methods are called from one thread, except `File.sync` and those that a `SyncTicket` uses
  (`sync_dir`, `write_file_atomic`), which may run in another.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

__all__ = ["Buffer", "Disk", "DiskLock", "File"]

Buffer = bytes | bytearray | memoryview


class File(Protocol):
    """An append-only file. Its descriptor may come and go; `size` is what was appended."""

    path: str
    size: int

    def append(self, buffers: Sequence[Buffer]) -> int:
        """Write after the last byte; returns the position of the first byte written.

        Raises:
            DiskFull: no room; nothing was appended.
            StorageFault: another failure; nothing was appended.
        """

    def read(self, position: int, size: int) -> memoryview:
        """`size` bytes from `position`: small ones copied, large ones mapped. Short at the end.

        Raises:
            OSError: the file cannot be read.
        """

    def rewrite(self, position: int, data: Buffer) -> None:
        """Write the bytes that lie at `position` once more, so that the next `sync` takes them.

        A failed sync may leave bytes in the cache that count as written and are on no disk: no
        later sync would write them. `size` does not change.

        Raises:
            DiskFull, StorageFault: as `append`; the bytes are what they were.
        """

    def truncate(self, size: int) -> None:
        """Cut to `size` bytes. Only for bytes that no view covers."""

    def sync(self) -> None:
        """fdatasync. May be called from another thread. Raises OSError."""

    def close(self) -> None:
        """Let go of descriptor and mapping; views stay valid. The next use opens again."""


class DiskLock(Protocol):
    """A lock that the operating system drops with the process."""

    def release(self) -> None:
        """Give the lock back; safe to call twice."""


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
            DiskFull, StorageFault: the old file is untouched.
        """

    def rename(self, old: str, new: str) -> None:
        """Rename a file or directory; durable after `sync_dir` of the parent."""

    def remove(self, path: str) -> None:
        """Remove a file."""

    def remove_tree(self, path: str) -> None:
        """Remove a directory and all in it; nothing happens when it is missing."""

    def list(self, path: str) -> list[str]:
        """Names in a directory, sorted."""

    def make_dir(self, path: str) -> None:
        """Make a directory (and its parents) unless it exists."""

    def sync_dir(self, path: str) -> None:
        """Make the names in a directory durable. May be called from another thread."""

    def exists(self, path: str) -> bool:
        """Is there a file or directory?"""

    def free_bytes(self, path: str) -> int:
        """Room left for an ordinary user on the file system that holds `path`."""

    def lock(self, path: str) -> DiskLock:
        """Take the lock file `path`, made when missing.

        Raises:
            DataDirectoryInUse: another process (or another holder in this one) has it.
        """
