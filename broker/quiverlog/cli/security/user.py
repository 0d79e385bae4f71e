"""`quiverlog user ...` and `quiverlog whoami`: users, and the one of a connection.

There is no option that has a password as its value: every user of a machine sees the words of a
command.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

import click

from quiverlog.cli.console.failures import CommandFailed
from quiverlog.cli.console.options import (
    bootstrap_option,
    complete_users,
    confirmed,
    debug_option,
    format_option,
    open_client,
)
from quiverlog.cli.console.output import print_change, print_fields, print_json, print_table
from quiverlog.errors import (
    ConnectionClosed,
    ConnectionFailed,
    InvalidSecurity,
    OutcomeUnknown,
    RequestTimedOut,
)

__all__ = ["user", "whoami"]

_Command = TypeVar("_Command", bound=Callable[..., Any])
_RANDOM_BYTES: Final = 24
_UNANSWERED: Final = (ConnectionClosed, ConnectionFailed, OutcomeUnknown, RequestTimedOut)
_YES: Final = click.option("--yes", "-y", is_flag=True, help="Do not ask.")
# Of a user that is there: not for `create` and `hash`.
_NAME: Final = click.argument("name", shell_complete=complete_users)


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


class _Password(NamedTuple):
    text: str
    is_made: bool = False

    @contextlib.contextmanager
    def kept(self) -> Iterator[None]:
        """Print a password that was made here also where it may count and that is not known."""
        try:
            yield
        # Also an impatient Ctrl-C: the broker may have the change.
        except (*_UNANSWERED, KeyboardInterrupt):
            if self.is_made:
                click.echo("whether this password counts is not known:", err=True)
                print(self.text)
            raise

    def print_change(self, output_format: str, fields: dict[str, object], sentence: str) -> None:
        """As `print_change`, with a password that was made here."""
        shown = {"password": self.text} if self.is_made else {}
        print_change(output_format, fields | shown, sentence)
        if self.is_made and output_format != "json":
            print(self.text)


def read_password(
    password_file: Path | None, password_env: str | None, *, generate: bool = False
) -> _Password:
    from quiverlog.client.base.login import read_single_line

    given = [one for one in (password_file, password_env, generate) if one]
    if len(given) > 1:
        raise click.UsageError("Give one of --password-file, --password-env and --generate.")
    if generate:
        return _Password(secrets.token_urlsafe(_RANDOM_BYTES), is_made=True)
    if password_file is not None:
        try:
            return _Password(read_single_line(str(password_file), str(password_file)))
        except InvalidSecurity as error:
            raise CommandFailed(error.message) from None
    if password_env is not None:
        found = os.environ.get(password_env)
        if found is None:
            raise CommandFailed(f"{password_env}: the environment has no such variable.")
        return _Password(found)
    # To standard error, so that a script can read what a command prints.
    typed = click.prompt("Password", hide_input=True, confirmation_prompt=True, err=True)
    return _Password(str(typed))


@click.group()
def user() -> None:
    """Make, list and change users. Brokers never get a password: docs/security.md."""


@user.command()
@click.argument("name")
@click.option("--admin", is_flag=True, help="It may do everything, whatever the rules are.")
@password_options
@bootstrap_option
@format_option()
@debug_option
def create(
    name: str,
    admin: bool,
    password_file: Path | None,
    password_env: str | None,
    generate: bool,
    bootstrap: str,
    timeout_s: float,
    output_format: str,
) -> None:
    """Make a user."""
    password = read_password(password_file, password_env, generate=generate)
    with open_client(bootstrap, timeout_s=timeout_s) as client, password.kept():
        client.create_user(name, password.text, is_admin=admin)
    password.print_change(output_format, {"name": name, "is_admin": admin}, f"user {name} is made")


@user.command("list")
@bootstrap_option
@format_option()
@debug_option
def list_(bootstrap: str, timeout_s: float, output_format: str) -> None:
    """List the users."""
    with open_client(bootstrap, timeout_s=timeout_s) as client:
        found = client.list_users()
    if output_format == "json":
        print_json(
            [
                {
                    "name": one.name,
                    "is_admin": one.is_admin,
                    "passwords": one.passwords,
                    "tokens": one.token_count,
                    "changed": one.changed.isoformat(),
                }
                for one in found
            ]
        )
        return
    print_table(
        ["NAME", "ADMIN", "PASSWORDS", "TOKENS", "CHANGED"],
        [
            (
                one.name,
                "yes" if one.is_admin else "",
                max(one.passwords.values(), default=0),
                one.token_count,
                f"{one.changed:%Y-%m-%d %H:%M:%S}",
            )
            for one in found
        ],
        right=["PASSWORDS", "TOKENS"],
    )


@user.command()
@_NAME
@_YES
@bootstrap_option
@format_option()
@debug_option
def delete(name: str, yes: bool, bootstrap: str, timeout_s: float, output_format: str) -> None:
    """Delete a user and its tokens. Its connections end."""
    if not yes:
        confirmed(f"Delete user {name}, with its tokens?")
    with open_client(bootstrap, timeout_s=timeout_s) as client:
        client.delete_user(name)
    print_change(output_format, {"name": name, "deleted": True}, f"user {name} is deleted")


@user.command()
@_NAME
@click.option(
    "--keep-old",
    is_flag=True,
    help="The password before counts on, until --drop-old: no program is shut out meanwhile.",
)
@click.option("--drop-old", is_flag=True, help="End the older password, and set none.")
@password_options
@bootstrap_option
@format_option()
@debug_option
def passwd(
    name: str,
    keep_old: bool,
    drop_old: bool,
    password_file: Path | None,
    password_env: str | None,
    generate: bool,
    bootstrap: str,
    timeout_s: float,
    output_format: str,
) -> None:
    """Change a user's password. Connections that used the one before end."""
    # Nothing is typed for it: an empty password would be set by chance.
    if drop_old:
        if keep_old or generate or password_file or password_env:
            raise click.UsageError("--drop-old sets no password: give it alone.")
        with open_client(bootstrap, timeout_s=timeout_s) as client:
            client.drop_old_password(name)
        fields = {"name": name, "old_counts": False}
        print_change(output_format, fields, f"user {name} has the newer password alone")
        return
    password = read_password(password_file, password_env, generate=generate)
    with open_client(bootstrap, timeout_s=timeout_s) as client, password.kept():
        client.change_password(name, password.text, keep_old=keep_old)
    both = ", beside the one before" if keep_old else ""
    password.print_change(
        output_format,
        {"name": name, "old_counts": keep_old},
        f"user {name} has a new password{both}",
    )


@user.command("admin")
@_NAME
@click.argument("state", type=click.Choice(["on", "off"]))
@_YES
@bootstrap_option
@format_option()
@debug_option
def admin_(
    name: str, state: str, yes: bool, bootstrap: str, timeout_s: float, output_format: str
) -> None:
    """Let a user do everything, whatever the rules are (on), or no more (off)."""
    # It may be the last administrator: `super.users` of a broker is the way back then.
    if state == "off" and not yes:
        confirmed(f"Take the rights of an administrator from {name}?")
    with open_client(bootstrap, timeout_s=timeout_s) as client:
        client.set_admin(name, state == "on")
    is_admin = state == "on"
    print_change(
        output_format,
        {"name": name, "is_admin": is_admin},
        f"user {name} {'is an' if is_admin else 'is no'} administrator",
    )


@user.command("hash")
@click.argument("name")
@password_options
@debug_option
def hash_(name: str, password_file: Path | None, password_env: str | None, generate: bool) -> None:
    """Print the lines for `admin.credential.file`, with which a cluster gets its first user."""
    from quiverlog.local.secret_file import credential_text
    from quiverlog.types import USER_NAME

    if not USER_NAME.fullmatch(name):
        raise click.BadParameter("a user has 1 to 128 letters, digits and `._@-`.")
    password = read_password(password_file, password_env, generate=generate)
    try:
        text = credential_text(name, password.text)
    except ValueError as error:
        raise CommandFailed(f"{error}.") from None
    print(text, end="")
    if password.is_made:
        click.echo(f"the password of {name}: {password.text}", err=True)


@click.command()
@bootstrap_option
@format_option()
@debug_option
def whoami(bootstrap: str, timeout_s: float, output_format: str) -> None:
    """Show which user a broker takes this command for, and by which login."""
    with open_client(bootstrap, timeout_s=timeout_s) as client:
        found = client.who_am_i()
    fields = {
        "principal": found.principal,
        "mechanism": found.mechanism or None,
        "expires_s": found.expires_s,
        "may_do_everything": found.is_super or not found.authorises,
        "listener": found.listener,
    }
    if output_format == "json":
        print_json(fields)
        return
    print_fields(
        {
            "principal": found.principal,
            "login": found.mechanism or "none",
            "ends": _end(found.mechanism, found.expires_s),
            "rules": _rules(is_super=found.is_super, authorises=found.authorises),
            "listener": found.listener,
        }
    )


def _end(mechanism: str, expires_s: float | None) -> str:
    from quiverlog.wire.authentication_messages import CERTIFICATE

    if expires_s is not None:
        return f"{expires_s:.0f} s"
    if not mechanism:
        return "never"
    return "with its certificate" if mechanism == CERTIFICATE else "with its password"


def _rules(*, is_super: bool, authorises: bool) -> str:
    if not authorises:
        return "do not apply: no listener of this broker asks for logins"
    return "do not apply: an administrator" if is_super else "apply"
