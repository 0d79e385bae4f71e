"""System calls that fail on demand, for the code that makes them through a module's `os`.

Owns the counting and the failing. `with failing_calls(nth, errno.EIO) as calls:` lets the nth call
to the file system fail and all later ones succeed (or fail too, with `for_ever`).
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

from quiverlog.storage.disk import descriptors, posix, posix_file

__all__ = ["CALLS", "CallLog", "failing_calls"]

FLUSHES = ("fdatasync", "fsync")
CALLS = (
    *FLUSHES,
    *("listdir", "lstat", "open", "pread", "stat"),
    *("chmod", "ftruncate", "mkdir", "pwrite", "pwritev", "rename", "rmdir", "unlink"),
)
"""`close` is left out: it reports nothing that a caller could act upon."""


class CallLog:
    """The calls that were made, and whether the one that was to fail did."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.places: list[tuple[object, ...]] = []
        """Of each call: the lines of the product that led to it. Only where none is to fail."""
        self.failed = ""


class _Os:
    """`os`, with some functions replaced."""

    def __init__(self, replaced: dict[str, Callable[..., Any]]) -> None:
        self._replaced = replaced

    def __getattr__(self, name: str) -> Any:
        return self._replaced.get(name) or getattr(os, name)


def _lines_of_the_product() -> Iterator[tuple[str, int]]:
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_globals.get("__name__", "").startswith("quiverlog."):
            yield frame.f_code.co_filename, frame.f_lineno
        frame = frame.f_back


@contextlib.contextmanager
def failing_calls(
    nth: int, number: int, *, for_ever: bool = False, only: str = ""
) -> Iterator[CallLog]:
    """Calls are counted from 0; `only` counts those of one name.

    A write that fails leaves half of its bytes in the file.
    """
    log = CallLog()

    def replace(name: str) -> Callable[..., Any]:
        real = getattr(os, name)

        def call(*args: Any, **options: Any) -> Any:
            if only in ("", name):
                count = len(log.names)
                log.names.append(name)
                if nth < 0:
                    log.places.append((name, *_lines_of_the_product()))
                if count == nth or (for_ever and count > nth):
                    log.failed = log.failed or name
                    if name == "pwrite":
                        real(args[0], bytes(args[1])[: len(args[1]) // 2], args[2])
                    raise OSError(number, os.strerror(number), str(args[0]))
            return real(*args, **options)

        return call

    replaced = _Os({name: replace(name) for name in CALLS})
    with contextlib.ExitStack() as stack:
        for module in (posix, posix_file, descriptors, posix_file, posix):
            stack.enter_context(mock.patch.object(module, "os", replaced))
        yield log
