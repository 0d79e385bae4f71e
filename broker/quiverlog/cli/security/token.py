"""`quiverlog token ...`: tokens, for programs that must not have a password."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

import click

from quiverlog.cli.console.failures import CommandFailed
from quiverlog.cli.console.options import (
    Seconds,
    bootstrap_option,
    complete_users,
    completed,
    confirmed,
    debug_option,
    format_option,
    open_client,
)
from quiverlog.cli.console.output import print_change, print_json, print_table
from quiverlog.limits import TOKEN_LIFETIME_MS_DEFAULT, TOKEN_LIFETIME_MS_MAX

if TYPE_CHECKING:
    from quiverlog.client.client import Client

__all__ = ["token"]

_OWNER = click.option(
    "--owner", default="", metavar="USER", shell_complete=complete_users, help="Another user's."
)


def _complete_ids(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    def ids(client: Client) -> list[str]:
        # Own ones, unless `--owner` comes first: few may ask for those of others.
        owner = ctx.params.get("owner") or client.who_am_i().principal.removeprefix("user:")
        users = client.list_users(owner, with_tokens=True)
        return [token.token_id for one in users for token in one.tokens]

    return completed(ctx, incomplete, ids)


@click.group()
def token() -> None:
    """Make, list and end tokens: what logs in as a user for at most a day, without its password."""


@token.command()
@click.option(
    "--lifetime",
    type=Seconds(1),
    default=TOKEN_LIFETIME_MS_DEFAULT / 1000,
    show_default=True,
    metavar="SECONDS",
    help=f"At most {TOKEN_LIFETIME_MS_MAX // 1000}.",
)
@click.option(
    "--file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write it to this new file, which its owner alone may read; otherwise it is printed.",
)
@click.option(
    "--force",
    is_flag=True,
    help="Replace the file, at one moment, so that programs read the old token or the new one.",
)
@_OWNER
@bootstrap_option
@format_option()
@debug_option
def create(
    lifetime: float,
    file: Path | None,
    force: bool,
    owner: str,
    bootstrap: str,
    timeout_s: float,
    output_format: str,
) -> None:
    """Make a token. It is shown once."""
    from quiverlog.local.secret_file import private_file

    if force and file is None:
        raise click.UsageError("--force is for --file.")
    try:
        with contextlib.ExitStack() as stack:
            # Before a token is made that nothing would keep.
            kept = stack.enter_context(private_file(file, replaces=force)) if file else None
            with open_client(bootstrap, timeout_s=timeout_s) as client:
                made = client.create_token(lifetime, owner=owner)
            if kept is not None:
                kept.write(f"{made.text}\n".encode())
    except FileExistsError:
        raise CommandFailed(f"{file} is there already: --force replaces it.") from None
    except OSError as error:
        raise CommandFailed(f"{file} cannot be written: {error.strerror}.") from error
    if output_format == "json":
        shown = {"token": made.text} if file is None else {"file": str(file)}
        expires = made.expires.isoformat()
        print_json({"token_id": made.token_id, "user": made.owner, "expires": expires, **shown})
        return
    ends = f"{made.expires:%Y-%m-%d %H:%M:%S} UTC"
    click.echo(f"token {made.token_id} of user {made.owner} counts until {ends}", err=True)
    if file is None:
        print(made.text)


@token.command("list")
@click.option(
    "--user", "name", metavar="NAME", shell_complete=complete_users, help="Those of one user."
)
@bootstrap_option
@format_option()
@debug_option
def list_(name: str | None, bootstrap: str, timeout_s: float, output_format: str) -> None:
    """List tokens: their ids, not the tokens."""
    with open_client(bootstrap, timeout_s=timeout_s) as client:
        users = client.list_users(name, with_tokens=True)
    rows = [(one.name, token) for one in users for token in one.tokens]
    if output_format == "json":
        print_json(
            [
                {
                    "user": owner,
                    "token_id": one.token_id,
                    "created": one.created.isoformat(),
                    "expires": one.expires.isoformat(),
                }
                for owner, one in rows
            ]
        )
        return
    print_table(
        ["USER", "TOKEN", "CREATED", "EXPIRES"],
        [
            (
                owner,
                one.token_id,
                f"{one.created:%Y-%m-%d %H:%M:%S}",
                f"{one.expires:%Y-%m-%d %H:%M:%S}",
            )
            for owner, one in rows
        ],
    )


@token.command()
@click.argument("token_ids", nargs=-1, metavar="[TOKEN]...", shell_complete=_complete_ids)
@click.option("--all", "ends_all", is_flag=True, help="All tokens of the user.")
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@_OWNER
@bootstrap_option
@format_option()
@debug_option
def end(
    token_ids: tuple[str, ...],
    ends_all: bool,
    yes: bool,
    owner: str,
    bootstrap: str,
    timeout_s: float,
    output_format: str,
) -> None:
    """End tokens, by their ids. Connections that used them end."""
    if bool(token_ids) is ends_all:
        raise click.UsageError("Give ids of tokens, or --all.")
    # Programs that use them stop at once.
    if ends_all and not yes:
        confirmed(f"End all tokens of {owner or 'this user'}?")
    with open_client(bootstrap, timeout_s=timeout_s) as client:
        count = client.end_tokens(None if ends_all else token_ids, owner=owner)
    print_change(output_format, {"ended": count}, f"{count} ended")
