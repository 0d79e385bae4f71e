"""`quiverlog acl ...`: rules, which principal may do what with which resource."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import click

from quiverlog.cli.console.failures import ExitCode
from quiverlog.cli.console.options import (
    bootstrap_option,
    complete_topics,
    complete_users,
    completed,
    debug_option,
    format_option,
    open_client,
)
from quiverlog.cli.console.output import print_json, print_table
from quiverlog.types import Operation, ResourceKind

if TYPE_CHECKING:
    from quiverlog.client.admin.rules import AccessRule
    from quiverlog.client.client import Client

__all__ = ["acl", "as_principal", "complete_principals"]

_Command = TypeVar("_Command", bound=Callable[..., Any])
_OPERATIONS = [one.label for one in Operation]


@click.group()
def acl() -> None:
    """See and change rules: what each principal may do, where brokers authenticate clients.

    What no rule allows is denied, and a deny counts before every allow, however specific.
    """


class _Resource(NamedTuple):
    kind: str
    name: str

    @property
    def is_prefix(self) -> bool:
        return self.name.endswith("*")


def as_principal(_ctx: click.Context, _parameter: click.Parameter, value: str | None) -> str | None:
    # A name alone is a user's, which nearly all are.
    if value is None or ":" in value or value in ("anonymous", "*", ""):
        return value
    return f"user:{value}"


def complete_principals(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """Return those of rules, and users, which are written without a kind as well."""

    def known(client: Client) -> set[str]:
        # Most leave the kind out: `as_principal` adds it.
        kind = "user:" if incomplete.startswith("user:") else ""
        users = (f"{kind}{one.name}" for one in client.list_users())
        return {*users, *(one.principal for one in client.list_rules())}

    always = (one for one in ("anonymous", "user:*") if one.startswith(incomplete))
    return sorted({*always, *completed(ctx, incomplete, known)})


def _complete_numbers(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    return completed(
        ctx, incomplete, lambda client: (str(one.number) for one in client.list_rules())
    )


def _principal_argument(command: _Command) -> _Command:
    return click.argument(
        "principal", metavar="PRINCIPAL", callback=as_principal, shell_complete=complete_principals
    )(command)


def _resource_options(command: _Command) -> _Command:
    command = click.option(
        "--token", metavar="USER", shell_complete=complete_users, help="Tokens of this user."
    )(command)
    command = click.option("--user", metavar="USER", shell_complete=complete_users, help="A user.")(
        command
    )
    command = click.option("--cluster", is_flag=True, help="The cluster itself.")(command)
    command = click.option("--transactional-id", metavar="ID", help="A transactional id.")(command)
    command = click.option("--group", metavar="NAME", help="A group.")(command)
    return click.option(
        "--topic",
        "-t",
        metavar="NAME",
        shell_complete=complete_topics,
        help="A topic; 'orders-*' is each whose name begins so, '*' is each. Other names likewise.",
    )(command)


def _resource(options: dict[str, Any], *, needed: bool) -> _Resource | None:
    found: list[_Resource] = []
    for kind in ResourceKind:
        value = options[kind.label.replace("-", "_")]
        if kind is ResourceKind.CLUSTER:  # A flag: there is one cluster.
            value = "" if value else None
        if value is not None:
            found.append(_Resource(kind.label, value))
    if len(found) > 1 or (needed and not found):
        given = " Give only one." if found else " Give one."
        names = ", ".join(f"--{kind.label}" for kind in ResourceKind)
        raise click.UsageError(f"The resource is one of {names}.{given}")
    return found[0] if found else None


def _operations(_ctx: click.Context, _parameter: click.Parameter, value: str) -> list[str]:
    found = [part.strip() for part in value.split(",")]
    for part in found:
        if part not in _OPERATIONS:
            raise click.BadParameter(f"{part!r} is none of {', '.join(_OPERATIONS)}.")
    return found


def _complete_operations(_ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    # The shell completes the whole word, of which the part behind the last comma is new.
    before, comma, last = incomplete.rpartition(",")
    return [f"{before}{comma}{one}" for one in _OPERATIONS if one.startswith(last)]


@acl.command()
@_principal_argument
@click.argument("effect", type=click.Choice(["allow", "deny"]), metavar="allow|deny")
@click.argument(
    "operations", metavar="OPERATION[,OPERATION]...", callback=_operations,
    shell_complete=_complete_operations,
)  # fmt: skip
@_resource_options
@click.option(
    "--from", "network", metavar="NETWORK", default="", help="Only from there: 10.1.0.0/16."
)
@bootstrap_option
@format_option()
@debug_option
def add(
    principal: str,
    effect: str,
    operations: list[str],
    network: str,
    bootstrap: str,
    timeout_s: float,
    output_format: str,
    **options: Any,
) -> None:
    """Add rules: `quiverlog acl add alice allow read,write --topic 'orders-*'`.

    PRINCIPAL is a user, `user:*` for each user, `anonymous`, or `*` for each caller.
    OPERATION is all, read, write, create, delete, alter, describe or alter-configs.
    All but create imply describe; a topic that a client may not describe does not exist for it.
    The command ends when no broker goes by the earlier rules any more.
    """
    from quiverlog.client.admin.rules import AccessRule

    resource = _resource(options, needed=True)
    assert resource is not None
    rules = [
        AccessRule(
            principal,
            effect == "allow",
            operation,
            resource.kind,
            resource.name.removesuffix("*"),
            resource.is_prefix,
            network,
        )
        for operation in operations
    ]
    with open_client(bootstrap, timeout_s=timeout_s, request_timeout_s=timeout_s) as client:
        numbers = client.add_rules(rules)
    if output_format == "json":
        print_json([{**asdict(one), "number": n} for one, n in zip(rules, numbers, strict=True)])
        return
    for rule, number in zip(rules, numbers, strict=True):
        click.echo(f"rule {number}: {_sentence(rule)}")


def _sentence(rule: AccessRule) -> str:
    may = "may" if rule.allows else "may not"
    what = "do anything with" if rule.operation == "all" else rule.operation
    where = f" from {rule.network}" if rule.network else ""
    return f"{rule.principal} {may} {what} {rule.resource}{where}"


@acl.command(name="list")
@click.option(
    "--principal", callback=as_principal, metavar="NAME", shell_complete=complete_principals,
    help="Rules of this principal.",
)  # fmt: skip
@_resource_options
@bootstrap_option
@format_option()
@debug_option
def list_(
    principal: str | None, bootstrap: str, timeout_s: float, output_format: str, **options: Any
) -> None:
    """List rules: all, or those of a principal, and those about one resource."""
    resource = _resource(options, needed=False)
    kind = None if resource is None else resource.kind
    name = None if resource is None else resource.name
    with open_client(bootstrap, timeout_s=timeout_s) as client:
        found = client.list_rules(principal=principal or "", kind=kind, name=name)
    if output_format == "json":
        print_json([asdict(one) for one in found])
        return
    print_table(
        ("RULE", "PRINCIPAL", "EFFECT", "OPERATION", "RESOURCE", "FROM"),
        [
            (
                str(one.number),
                one.principal,
                "allow" if one.allows else "deny",
                one.operation,
                one.resource,
                one.network,
            )
            for one in found
        ],
    )


@acl.command()
@click.argument(
    "numbers", nargs=-1, required=True, type=click.IntRange(1), metavar="NUMBER...",
    shell_complete=_complete_numbers,
)  # fmt: skip
@bootstrap_option
@format_option()
@debug_option
def remove(numbers: tuple[int, ...], bootstrap: str, timeout_s: float, output_format: str) -> None:
    """Remove rules by their numbers, which `acl list` shows: all of them or none.

    A number is never used again; a rule that is gone already is no error.
    """
    with open_client(bootstrap, timeout_s=timeout_s, request_timeout_s=timeout_s) as client:
        client.remove_rules(numbers)
    if output_format == "json":
        print_json({"removed": list(numbers)})
        return
    click.echo(f"removed: {', '.join(map(str, numbers))}")


@acl.command()
@_principal_argument
@click.argument("operation", type=click.Choice(_OPERATIONS[1:]), metavar="OPERATION")
@_resource_options
@click.option("--from", "address", metavar="ADDRESS", default="", help="From this address.")
@bootstrap_option
@format_option()
@debug_option
def check(
    principal: str,
    operation: str,
    address: str,
    bootstrap: str,
    timeout_s: float,
    output_format: str,
    **options: Any,
) -> int:
    """Decide whether a principal may do something, and by which rule: exit code 0 yes, 1 no."""
    resource = _resource(options, needed=True)
    assert resource is not None
    # One answer for several names would be wrong for some of them.
    if resource.is_prefix:
        raise click.UsageError(
            f"{resource.name!r}: ask about one name; rules may say otherwise about another one that"
            " begins so."
        )
    with open_client(bootstrap, timeout_s=timeout_s) as client:
        found = client.check_access(
            principal, operation, resource.kind, resource.name, address=address
        )
    if output_format == "json":
        print_json(
            {"principal": principal, "operation": operation, **resource._asdict(), **asdict(found)}
        )
    else:
        why = f"by rule {found.rule}" if found.rule else "no rule allows it"
        if found.is_allowed and not found.rule:
            why = "the rows of this topic are checked one by one"
        if found.is_super_user:
            why = "it is a super user of the broker that was asked"
        said = "yes" if found.is_allowed else "no"
        named = resource.name and f" {resource.name}"
        click.echo(f"may {principal} {operation} {resource.kind}{named}? {said}, {why}")
        if not found.is_on:
            click.echo(
                "This broker authenticates no client: each client may do all there.",
                err=True,
            )
    return ExitCode.OK if found.is_allowed else ExitCode.FAILED
