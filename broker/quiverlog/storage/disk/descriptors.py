"""Descriptors: closed with their last reference, and some kept in reserve."""

from __future__ import annotations

import contextlib
import os
from collections import deque
from collections.abc import Callable
from typing import Final, TypeVar

from quiverlog.storage.disk.disk import out_of_descriptors

__all__ = ["READ_FLAGS", "Descriptor", "DescriptorReserve"]

FILE_MODE: Final = 0o600
_FLAGS: Final = os.O_CLOEXEC | os.O_NONBLOCK
"""No effect on a regular file; opening a FIFO without it would wait for a writer."""
READ_FLAGS: Final = os.O_RDONLY | _FLAGS

T = TypeVar("T")


class Descriptor:
    __slots__ = ("fd",)

    def __init__(self, path: str, flags: int) -> None:
        self.fd = -1
        self.fd = os.open(path, flags | _FLAGS, FILE_MODE)

    def file_size(self) -> int:
        return os.fstat(self.fd).st_size

    def __del__(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)


class DescriptorReserve:
    """Spare descriptors, closed one by one for operations that find none, and reopened later.

    Thread-safe: each deque operation is atomic; if another thread gets a closed one, the next is
    closed.
    """

    __slots__ = ("_kept", "_kept_max")

    def __init__(self, kept_max: int) -> None:
        assert kept_max >= 0
        self._kept: deque[Descriptor] = deque()
        self._kept_max = kept_max
        self._refill()

    @property
    def is_full(self) -> bool:
        return len(self._kept) == self._kept_max > 0

    def _refill(self) -> None:
        with contextlib.suppress(OSError):
            while len(self._kept) < self._kept_max:
                self._kept.append(Descriptor(os.devnull, os.O_RDONLY))

    def spend(self, operation: Callable[[], T]) -> T:
        if len(self._kept) < self._kept_max:
            self._refill()
        for _ in range(self._kept_max):
            try:
                return operation()
            except OSError as error:
                if not out_of_descriptors(error):
                    raise
            with contextlib.suppress(IndexError):  # Another thread has taken the last one.
                self._kept.popleft()
        return operation()
