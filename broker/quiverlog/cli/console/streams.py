"""Standard streams that are closed, a terminal, or of an encoding that lacks characters.

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
    """Replaces a closed standard output: the first write raises an error that names the cause."""

    _is_reported = False

    def writable(self) -> bool:
        return True

    def write(self, data: Any, /) -> int:
        if self._is_reported:
            return len(data)  # Python flushes the buffers once more at its end.
        self._is_reported = True
        raise OSError(errno.EBADF, "standard output is closed: send it to a file or a pipe")


class _ClosedInput(io.RawIOBase):
    """Replaces a closed standard input: reading raises, where an empty one would end at once."""

    def readable(self) -> bool:
        return True

    def readinto(self, _buffer: Any, /) -> int:
        raise OSError(errno.EBADF, "standard input is closed: give it a file or a pipe")


def prepare_streams() -> None:
    """Replace closed streams; escape characters that cannot be encoded or control a terminal."""
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
    """Flush stdout, before the interpreter does it with a message of its own; return the exit code,
    FAILED if that fails."""
    try:
        sys.stdout.flush()
    except OSError as error:
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout = _null("w")  # Else the interpreter flushes the old one at its end.
        if code == ExitCode.OK and not isinstance(error, BrokenPipeError):
            return report(error, debug=debug)
    return code
