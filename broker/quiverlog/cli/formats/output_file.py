"""The file that a command writes. Refused are, without --format, names without a known suffix (`-o
start` is an offset in kcat and rpk) and, without --force, files that are not empty."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import IO, Final

import click

from quiverlog.cli.console.failures import CommandFailed
from quiverlog.cli.formats.formats import FileKind, compression_of, kind_of

__all__ = ["check_free", "force_option", "free_name", "is_special", "open_new", "output_kind"]

_OFFSET: Final = re.compile(
    r"beginning|start|earliest|smallest|end|latest|largest|stored|[se]?@.*|[+-]?\d+(:[+-]?\d+)?",
    re.IGNORECASE | re.ASCII,
)
"""Values of `-o` in kcat and rpk."""
_STARTS: Final = {
    "beginning": "earliest", "start": "earliest", "smallest": "earliest",
    "end": "latest", "largest": "latest",
}  # fmt: skip

_STREAMS: Final = ("stdin", "stdout", "stderr")
_DESCRIPTOR: Final = re.compile(
    rf"/dev/(?P<name>{'|'.join(_STREAMS)})|(?:/dev|/proc/self)/fd/(?P<number>\d{{1,9}})",
    re.ASCII,
)

force_option = click.option("--force", is_flag=True, help="Write over a file that is there.")


def _own_options(offset: str) -> str:
    word = _STARTS.get(offset.lower(), offset.lower())
    if word in ("earliest", "latest") or word.isdigit():
        return f"--from {word}"
    if word.startswith("-") and word[1:].isdigit():
        return f"--from earliest, and the last rows are --tail {word[1:]}"
    return "--from 0 or --from 2024-05-06T07:08:09Z"


def output_kind(output: str, given: str | None, *, reads_offsets: bool = False) -> FileKind:
    """Return format and compression of an output.

    Args:
        given: the format that the user named.
        reads_offsets: the command has `--from`, for which the user may have taken `-o`.
    """
    if reads_offsets and _OFFSET.fullmatch(output):
        raise click.UsageError(
            f"-o is --output, a file to write, and {output!r} looks like an offset: where to begin "
            f"is --from, as in {_own_options(output)}. A file of that name is ./{output}, with "
            "--format."
        )
    if given is not None:
        return FileKind(given, compression_of(output))
    found = kind_of(output, option="--format")
    if found.format is None and output != "-" and not is_special(output):
        hint = "; where to begin is --from" if reads_offsets else ""
        raise click.UsageError(
            f"--output {output!r} has no suffix of a format: name it {output}.csv or "
            f"{output}.parquet, for example, or give --format{hint}."
        )
    return FileKind(found.format or "table", found.compression)


def is_special(output: str) -> bool:
    """Return True for a pipe or a device, whose opening may block until Ctrl-C."""
    if _descriptor(output) is not None:
        return True  # The shell has opened it, and has overwritten or not.
    return os.path.exists(output) and not os.path.isfile(output)


def _descriptor(output: str) -> int | None:
    """Return the descriptor of `/dev/stdout`, `/dev/fd/3` and the like; else None."""
    found = _DESCRIPTOR.fullmatch(output)
    if found is None:
        return None
    return int(found["number"]) if found["number"] else _STREAMS.index(found["name"])


def check_free(output: str | Path, *, force: bool) -> None:
    """Raise CommandFailed for a file that is not empty, before any work is done."""
    if force or str(output) == "-" or is_special(str(output)):
        return
    if not os.path.isfile(output) or not os.path.getsize(output):
        return
    raise CommandFailed(
        f"{output} is there already: choose another name, or --force to replace it."
    )


def free_name(path: Path) -> Path:
    found, number = path, 1
    while found.exists():
        number += 1
        found = path.with_name(f"{path.stem}-{number}{path.suffix}")
    return found


def open_new(output: str, *, force: bool) -> IO[bytes]:
    """Raises CommandFailed: there is a file by now that is not empty."""
    descriptor = _descriptor(output)
    if descriptor is not None:
        # Opened by name it would be truncated, even where the shell appends to it.
        try:
            return open(os.dup(descriptor), "wb")
        except OSError as error:
            raise OSError(error.errno, error.strerror, output) from error
    if not force and not is_special(output):
        try:
            return open(output, "xb")
        except FileExistsError:
            check_free(output, force=False)
    return open(output, "wb")
