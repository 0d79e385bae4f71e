"""A password for a command: of a file, of the environment, or typed.

There is no option that has it as its value: every user of a machine sees the words of a command.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from quiverlog.cli.console.failures import CommandFailed
from quiverlog.errors import InvalidSecurity

__all__ = ["password_options", "read_password"]

_Command = TypeVar("_Command", bound=Callable[..., Any])
_RANDOM_BYTES: Final = 24


def password_options(command: _Command) -> _Command:
    command = click.option(
        "--generate",
        is_flag=True,
        help="Make a random password, and print it.",
    )(command)
    command = click.option(
        "--password-env",
        metavar="NAME",
        help="The environment variable that has the password.",
    )(command)
    return click.option(
        "--password-file",
        type=click.Path(dir_okay=False, path_type=Path),
        metavar="FILE",
        help="A file whose only line is the password. Without any of these it is typed.",
    )(command)


def read_password(
    password_file: Path | None, password_env: str | None, *, generate: bool = False
) -> tuple[str, bool]:
    """Return the password, and whether it was made here."""
    from quiverlog.client.base.login import line_of

    given = [one for one in (password_file, password_env, generate) if one]
    if len(given) > 1:
        raise click.UsageError("Give one of --password-file, --password-env and --generate.")
    if generate:
        return secrets.token_urlsafe(_RANDOM_BYTES), True
    if password_file is not None:
        try:
            return line_of(str(password_file), str(password_file)), False
        except InvalidSecurity as error:
            raise CommandFailed(error.message) from None
    if password_env is not None:
        found = os.environ.get(password_env)
        if found is None:
            raise CommandFailed(f"{password_env}: the environment has no such variable.")
        return found, False
    typed = click.prompt("Password", hide_input=True, confirmation_prompt=True, err=True)
    return str(typed), False
