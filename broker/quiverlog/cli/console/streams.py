"""Standard streams as a command may find them: closed, a terminal, of a poor encoding.

A stream that the shell closed (`>&-`) is None in Python, and the next opened file would get its
number.
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
    """Replaces a closed standard output: the first write raises an error that names the cause.

    The buffers are flushed once more at the program's end, when that error was reported.
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
    """Replaces a closed standard input: a missing input is an error, unlike an empty one."""

    def readable(self) -> bool:
        return True

    def readinto(self, _buffer: Any, /) -> int:
        raise OSError(errno.EBADF, "standard input is closed: give it a file or a pipe")


def prepare_streams() -> None:
    """Replace closed streams, under their numbers; escape what cannot be encoded or shown."""
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
    """Write what stdout still holds; return the exit code, FAILED if that fails.

    The interpreter would do it at its end, with a message of its own.
    """
    try:
        sys.stdout.flush()
    except OSError as error:
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout = _null("w")  # the old one would be flushed again at the end
        if code == ExitCode.OK and not isinstance(error, BrokenPipeError):
            return report(error, debug=debug)
    return code
