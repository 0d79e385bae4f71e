"""The process's standard streams: there, whatever the broker was started with.

A process that is started without one of them gives its number to the first file that it opens, and
what is meant for standard error (a stack, say) goes into that file. uvloop ends such a process.
"""

from __future__ import annotations

import contextlib
import os
import sys
from typing import Final

__all__ = ["STDERR", "STDOUT", "hold_standard_streams", "say"]

STDOUT: Final = 1
STDERR: Final = 2


def hold_standard_streams() -> None:
    """Put /dev/null in the place of those that are closed. Call it before anything is opened."""
    for number in range(STDERR + 1):
        try:
            os.fstat(number)
        except OSError:
            found = os.open(os.devnull, os.O_RDWR)
            if found != number:
                os.dup2(found, number)
                os.close(found)
            os.set_inheritable(number, True)
    if sys.stdout is None:
        sys.stdout = open(STDOUT, "w", closefd=False)  # noqa: SIM115
    if sys.stderr is None:
        sys.stderr = open(STDERR, "w", closefd=False)  # noqa: SIM115


def say(line: str, number: int) -> None:
    """Write a line at once. That nobody takes it, or there is no room, ends no broker.

    Not through Python's stream: that keeps what it could not write, fails with it once more when
    the process ends, and makes its exit code 120.
    """
    assert number in (STDOUT, STDERR)
    rest = f"{line}\n".encode(errors="backslashreplace")
    with contextlib.suppress(OSError):
        while rest:
            rest = rest[os.write(number, rest) :]
