"""A disk that refuses to block the loop: what belongs in a job fails where the loop would wait.

Wraps a real disk. While `on_loop` is set (inside `Node.handle_many`) every call that may block
raises `BlockedLoop`; an append, which goes to the page cache, and a warm read do not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from quiverlog.storage.disk import Disk, File

__all__ = ["BlockedLoop", "GuardedDisk"]

_FILE_CALLS: Final = frozenset(("sync", "truncate", "rewrite"))
_DISK_CALLS: Final = frozenset(
    ("write_file_atomic", "rename", "remove", "remove_tree", "make_dir", "sync_dir", "list",
     "read_file", "lock")
)  # fmt: skip


class BlockedLoop(BaseException):
    """The loop would have waited for the disk. No `Exception`: nobody may catch it."""


class GuardedDisk:
    """See the module docstring."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self.on_loop = False

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._disk, name)
        return self._guarded(name, found) if name in _DISK_CALLS else found

    def open(self, path: str, *, create: bool) -> Any:
        return _GuardedFile(self, self._disk.open(path, create=create))

    def _guarded(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def guarded(*arguments: Any, **options: Any) -> Any:
            if self.on_loop:
                raise BlockedLoop(f"{name}{arguments[:1]} in handle_many")
            return call(*arguments, **options)

        return guarded


class _GuardedFile:
    def __init__(self, disk: GuardedDisk, file: File) -> None:
        object.__setattr__(self, "_guard", disk)
        object.__setattr__(self, "_file", file)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._file, name)
        return self._guard._guarded(name, found) if name in _FILE_CALLS else found

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._file, name, value)
