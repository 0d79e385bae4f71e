"""Standard streams as a command may find them: closed, a terminal, of an encoding that lacks
characters.

Owns that a command can always print. A stream that the shell closed (`>&-`) is None in Python, and
its number would go to the next file that is opened.
"""

from __future__ import annotations

import errno
import io
import os
import sys
from typing import Any

from quiverlog.cli.console.failures import ExitCode, report
from quiverlog.cli.console.terminal import shield

__all__ = ["flush_output", "prepare_streams"]


class _ClosedOutput(io.RawIOBase):
    """Stands for a closed standard output: the first write to it is an error that says so.

    What is left in the buffers before it comes again when the program ends, and has been told.
    """

    _is_told = False

    def writable(self) -> bool:
        return True

    def write(self, data: Any, /) -> int:
        if self._is_told:
            return len(data)
        self._is_told = True
        raise OSError(errno.EBADF, "standard output is closed: send it to a file or a pipe")


class _ClosedInput(io.RawIOBase):
    """Stands for a closed standard input: no rows were given, which is not the same as none."""

    def readable(self) -> bool:
        return True

    def readinto(self, _buffer: Any, /) -> int:
        raise OSError(errno.EBADF, "standard input is closed: give it a file or a pipe")


def prepare_streams() -> None:
    """Give closed streams stand-ins, by their numbers; escape what cannot be encoded or shown."""
    if sys.stdin is None:
        _null("r")  # keeps number 0 from the next file
        sys.stdin = io.TextIOWrapper(io.BufferedReader(_ClosedInput()), "utf-8")
    if sys.stdout is None:
        _null("w")  # keeps number 1 from the next file
        sys.stdout = io.TextIOWrapper(io.BufferedWriter(_ClosedOutput()), "utf-8")
    if sys.stderr is None:
        sys.stderr = _null("w")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="backslashreplace")
    sys.stdout, sys.stderr = shield(sys.stdout), shield(sys.stderr)


_kept: list[io.TextIOWrapper] = []


def _null(mode: str) -> io.TextIOWrapper:
    stream = open(os.devnull, mode, encoding="utf-8")  # noqa: SIM115
    assert isinstance(stream, io.TextIOWrapper)
    _kept.append(stream)  # open as long as the program runs
    return stream


def flush_output(code: int, *, debug: bool = False) -> int:
    """Write what stdout still holds; the exit code, which tells of a failure to do so.

    Without this the interpreter finds out at its end, and says it in its own words.
    """
    try:
        sys.stdout.flush()
    except OSError as error:
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout = _null("w")  # what it holds has nowhere to go
        if code == ExitCode.OK and not isinstance(error, BrokenPipeError):
            return report(error, debug=debug)
    return code
