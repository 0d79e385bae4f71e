"""`quiverlog secret ...`: make the cluster's secret, and replace it."""

from __future__ import annotations

from pathlib import Path

import click

from quiverlog.cli.console.failures import CommandFailed
from quiverlog.cli.console.options import debug_option
from quiverlog.local.secret_file import make_secret, write_private
from quiverlog.wire.peer_proof import SECRETS_MAX, parse_secrets

__all__ = ["secret"]

_FILE = click.Path(dir_okay=False, path_type=Path)


@click.group()
def secret() -> None:
    """Make and replace the secret by which the brokers of a cluster prove that they are peers.

    Each broker has a copy of the file (`cluster.secret.file`); docs/security.md has the steps.
    """


@secret.command()
@click.argument("file", type=_FILE, required=False)
@debug_option
def new(file: Path | None) -> None:
    """Make a secret, in a new FILE that its owner alone may read; without FILE it is printed."""
    if file is None:
        print(make_secret())
        return
    try:
        write_private(file, f"{make_secret()}\n")
    except FileExistsError:
        raise CommandFailed(
            f"{file} is there already: `quiverlog secret rotate {file}` adds a new secret to it."
        ) from None
    except OSError as error:
        raise CommandFailed(f"{file} cannot be written: {error.strerror}.") from error
    print(f"made {file}: give every broker of the cluster this file")


@secret.command()
@click.argument("file", type=_FILE)
@debug_option
def rotate(file: Path) -> None:
    """Put a new secret before the one in FILE. Both count until the old one is retired."""
    lines, at = _read(file)
    if len(at) == SECRETS_MAX:
        raise CommandFailed(
            f"{file} has {SECRETS_MAX} secrets: when every broker has both,"
            f" `quiverlog secret retire {file}` takes the old one out."
        )
    lines.insert(at[0], make_secret())
    _replace(file, lines)
    print(f"{file} has a new secret before the old one: give every broker this file")


@secret.command()
@click.argument("file", type=_FILE)
@debug_option
def retire(file: Path) -> None:
    """Take the old secret out of FILE, when every broker has the new one."""
    lines, at = _read(file)
    if len(at) == 1:
        raise CommandFailed(f"{file} has one secret, which stays.")
    del lines[at[1]]
    _replace(file, lines)
    print(f"{file} has the new secret alone: give every broker this file")


def _read(file: Path) -> tuple[list[str], list[int]]:
    """Return the lines of a file, and which of them are secrets."""
    try:
        text = file.read_bytes()
        parse_secrets(text)
    except OSError as error:
        raise CommandFailed(f"{file} cannot be read: {error.strerror}.") from error
    except ValueError as error:
        raise CommandFailed(f"{file}: {error}.") from None
    lines = text.decode().splitlines()
    return lines, [at for at, one in enumerate(lines) if one.strip() and one.lstrip()[0] != "#"]


def _replace(file: Path, lines: list[str]) -> None:
    try:
        write_private(file, "".join(f"{line}\n" for line in lines), replaces=True)
    except OSError as error:
        raise CommandFailed(f"{file} cannot be replaced: {error.strerror}.") from error
