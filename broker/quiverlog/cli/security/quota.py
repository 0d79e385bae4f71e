"""`quiverlog quota ...`: how much each client may ask of a broker."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import click

from quiverlog.cli.console.options import (
    INT64_MAX,
    Rate,
    bootstrap_option,
    complete_users,
    completed,
    debug_option,
    format_option,
    open_client,
)
from quiverlog.cli.console.output import human_bytes, print_change, print_json, print_table
from quiverlog.types import QuotaKind

if TYPE_CHECKING:
    from quiverlog.client.client import Client

__all__ = ["quota"]

_Command = TypeVar("_Command", bound=Callable[..., Any])


@click.group()
def quota() -> None:
    """Limit what each client may ask of a broker: bytes in a second, and connections.

    The limit of the user counts, else that of the client id, else the default, which each user has
    for itself. A client that is over its limit is answered, and then read from later.
    """


class _Owner(NamedTuple):
    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.name}".strip()


def _complete_clients(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    def known(client: Client) -> Iterator[str]:
        kind = QuotaKind.CLIENT_ID.label
        return (one.name for one in client.list_quotas() if one.kind == kind)

    return completed(ctx, incomplete, known)


def _owner_options(command: _Command) -> _Command:
    command = click.option(
        "--default", "is_default", is_flag=True, help="Each user without a quota of its own."
    )(command)
    command = click.option(
        "--client-id", metavar="ID", shell_complete=_complete_clients,
        help="All connections under this client id, of users without a quota.",
    )(command)  # fmt: skip
    return click.option(
        "--user", metavar="USER", shell_complete=complete_users,
        help="All connections of this user.",
    )(command)  # fmt: skip


def _owner(user: str | None, client_id: str | None, is_default: bool) -> _Owner:
    given = [
        _Owner(kind.label, name)
        for kind, name in (
            (QuotaKind.USER, user),
            (QuotaKind.CLIENT_ID, client_id),
            (QuotaKind.DEFAULT, "" if is_default else None),
        )
        if name is not None
    ]
    if len(given) != 1:
        raise click.UsageError("Give one of --user, --client-id and --default.")
    return given[0]


class _Count(click.ParamType[int]):
    """A number from 1 on; `none` is 0."""

    name = "COUNT"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if str(value).strip().lower() == "none":
            return 0
        return int(click.IntRange(1, INT64_MAX).convert(value, param, ctx))


@quota.command("set")
@_owner_options
@click.option("--bytes-in", type=Rate(), help="Of produced rows in a second, e.g. 10MiB; or none.")
@click.option("--bytes-out", type=Rate(), help="Of rows that are read in a second.")
@click.option("--connections", type=_Count(), help="Open at a time; or none.")
@bootstrap_option
@format_option()
@debug_option
def set_(
    user: str | None,
    client_id: str | None,
    is_default: bool,
    bytes_in: int | None,
    bytes_out: int | None,
    connections: int | None,
    bootstrap: str,
    timeout_s: float,
    output_format: str,
) -> None:
    """Set limits, as `quiverlog quota set --user alice --bytes-in 10MiB`; others stay.

    They are limits at each broker. The command ends when all live brokers go by them.
    """
    owner = _owner(user, client_id, is_default)
    if bytes_in is None and bytes_out is None and connections is None:
        raise click.UsageError("Give --bytes-in, --bytes-out or --connections.")
    with open_client(bootstrap, timeout_s=timeout_s, request_timeout_s=timeout_s) as client:
        client.set_quota(*owner, bytes_in=bytes_in, bytes_out=bytes_out, connections=connections)
        found = [one for one in client.list_quotas() if (one.kind, one.name) == owner]
    print_change(output_format, [asdict(one) for one in found], f"quota of {owner} set")


@quota.command("list")
@bootstrap_option
@format_option()
@debug_option
def list_(bootstrap: str, timeout_s: float, output_format: str) -> None:
    """List quotas. An empty field is no limit: the next one counts."""
    with open_client(bootstrap, timeout_s=timeout_s) as client:
        found = client.list_quotas()
    if output_format == "json":
        print_json([asdict(one) for one in found])
        return
    print_table(
        ("OF", "NAME", "BYTES IN/S", "BYTES OUT/S", "CONNECTIONS"),
        [
            (
                one.kind,
                one.name,
                human_bytes(one.bytes_in) if one.bytes_in else "",
                human_bytes(one.bytes_out) if one.bytes_out else "",
                str(one.connections or ""),
            )
            for one in found
        ],
    )


@quota.command()
@_owner_options
@bootstrap_option
@format_option()
@debug_option
def remove(
    user: str | None,
    client_id: str | None,
    is_default: bool,
    bootstrap: str,
    timeout_s: float,
    output_format: str,
) -> None:
    """Take all limits of a quota away; one that is gone already is no error."""
    owner = _owner(user, client_id, is_default)
    with open_client(bootstrap, timeout_s=timeout_s, request_timeout_s=timeout_s) as client:
        client.set_quota(*owner, bytes_in=0, bytes_out=0, connections=0)
    print_change(output_format, {"removed": owner._asdict()}, f"quota of {owner} removed")
