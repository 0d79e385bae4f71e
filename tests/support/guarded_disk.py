"""A disk that refuses to block the loop: what belongs in a job fails where the loop would wait.

Wraps a real disk. While `on_loop` is set (inside `Node.handle_many`) every call that may block
raises `BlockedLoop`; an append, which goes to the page cache, and a read of what is in memory do
not. What is in memory is kept here, by block: `evict` empties it, a read off the loop fills it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any, Final

from quiverlog.storage.disk.disk import Disk, File

__all__ = ["BlockedLoop", "GuardedDisk"]

_BLOCK_BYTES: Final = 4096
_BEGUN_BYTES: Final = 64
_LOOP_FILE_CALLS: Final = frozenset(("close", "place", "retract"))
_LOOP_DISK_CALLS: Final = frozenset(("exists",))
"""What may be called on the loop, besides what is written out below. Whatever else a disk can do,
now or one day, may wait for the file system. A segment that begins looks whether it
is there, an append that failed half way takes its bytes back, a file's place is known."""


class BlockedLoop(BaseException):
    """The loop would have waited for the disk. No `Exception`: no code may catch it."""


class GuardedDisk:
    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self.on_loop = False
        self.bytes_on_loop = 0
        """Copied on the loop to be looked at: headers that are walked, rows that are verified."""
        self.forgetful = False
        """Memory so short that everything has left it by the next look."""
        # By path: the blocks in memory; a file that is not there is wholly in memory.
        self._resident: dict[str, set[int]] = {}
        self._paths: set[str] = set()

    def evict(self) -> None:
        """Nothing is in memory any more."""
        self._resident = {path: set() for path in self._paths}

    def is_resident(self, path: str, position: int, size: int) -> bool:
        """True when these bytes are in memory."""
        found = self._resident.get(path)
        return found is None or _blocks(position, size) <= found

    def touched(self, path: str, position: int, size: int) -> None:
        """These bytes were read or written."""
        if path in self._resident and not self.forgetful:
            self._resident[path] |= _blocks(position, size)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._disk, name)
        if not callable(found) or name in _LOOP_DISK_CALLS:
            return found
        return self._guarded(name, found)

    def lock(self, path: str, *, guarded: Sequence[str] = ()) -> Any:
        """See `Disk.lock`; what the lock does later waits for the file system, too."""
        return _GuardedCalls(self, self._guarded("lock", self._disk.lock)(path, guarded=guarded))

    def open(self, path: str, *, create: bool) -> Any:
        self._paths.add(path)
        return _GuardedFile(self, self._disk.open(path, create=create))

    def _guarded(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def guarded(*arguments: Any, **options: Any) -> Any:
            if self.on_loop and not (name == "remove" and _is_just_begun(arguments[0])):
                raise BlockedLoop(f"{name}{arguments[:1]} in handle_many")
            return call(*arguments, **options)

        return guarded


class _GuardedCalls:
    """Something that lies on the disk, all of whose calls may wait for it."""

    def __init__(self, disk: GuardedDisk, inner: object) -> None:
        self._guard = disk
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return self._guard._guarded(name, getattr(self._inner, name))


class _GuardedFile:
    def __init__(self, disk: GuardedDisk, file: File) -> None:
        object.__setattr__(self, "_guard", disk)
        object.__setattr__(self, "_file", file)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._file, name)
        if not callable(found) or name in _LOOP_FILE_CALLS:
            return found
        return self._guard._guarded(name, found)

    def resident(self, position: int, size: int) -> bool:
        return self._guard.is_resident(self.path, position, size)

    def append(self, buffers: Any) -> Any:
        position = self._file.append(buffers)
        self._guard.touched(self.path, position, self.size - position)
        return position

    def read(self, position: int, size: int) -> Any:
        self._look(position, size)
        return self._file.read(position, size)

    def read_copy(self, position: int, size: int) -> Any:
        self._look(position, size)
        data = self._file.read_copy(position, size)
        if self._guard.on_loop:
            self._guard.bytes_on_loop += len(data)
        return data

    def read_cached(self, position: int, size: int) -> Any:
        return self._file.read_cached(position, size) if self.resident(position, size) else None

    def _look(self, position: int, size: int) -> None:
        size = max(0, min(size, self.size - position))
        guard = self._guard
        if guard.on_loop and not guard.forgetful and not self.resident(position, size):
            raise BlockedLoop(f"{self.path}: reading {size} bytes at {position} in handle_many")
        if not guard.on_loop:
            guard.touched(self.path, position, size)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._file, name, value)


def _is_just_begun(path: str) -> bool:
    """Taking back a file whose creation failed is as much work as beginning it."""
    return os.path.getsize(path) <= _BEGUN_BYTES


def _blocks(position: int, size: int) -> set[int]:
    return set(range(position // _BLOCK_BYTES, -(-(position + size) // _BLOCK_BYTES)))
