"""`quiverlog security ...`: certificates for people without an authority of their own."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from quiverlog.cli.cluster.acl import as_principal, complete_principals
from quiverlog.cli.console.failures import CommandFailed, ExitCode
from quiverlog.cli.console.options import bootstrap_option, debug_option, format_option, open_client
from quiverlog.cli.console.output import print_json, print_table
from quiverlog.limits import CLUSTER_ID_CHARS_MAX
from quiverlog.local.failures import LocalClusterFailed
from quiverlog.local.new_folder import new_folder
from quiverlog.local.tls_files import CLIENT_FILE, FOLDER_MODE, TlsFolder, is_host

if TYPE_CHECKING:
    from quiverlog.client.admin.rules import AccessDecision

__all__ = ["security"]

_AUTHORITY_DAYS = 3_650
_DAYS = 397
_BROKER = re.compile(r"(?P<node_id>0|[1-9][0-9]{0,9})(=(?P<hosts>.+))?")
_CLIENT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_DAY_S = 86_400

_folder = click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
_brokers = click.option(
    "--broker",
    "brokers",
    multiple=True,
    metavar="NODE_ID=HOST,...",
    help="A broker, and the names and addresses under which clients and brokers reach it; may be "
    "repeated. Without hosts those of its last certificate.",
)
_clients = click.option(
    "--client",
    "clients",
    multiple=True,
    metavar="NAME",
    help="A client with a certificate of its own; may be repeated.",
)
_days = click.option(
    "--days",
    type=click.IntRange(1, _AUTHORITY_DAYS),
    default=_DAYS,
    show_default=True,
    help="How long these certificates count.",
)


@click.group()
def security() -> None:
    """Certificates for people without a PKI of their own, and a check of administrators.

    FOLDER is kept away from brokers: each gets its own certificate and key, and clients get
    brokers-ca.pem and a security file. docs/security.md has the steps, and how to renew.
    """


@security.command()
@_folder
@click.option("--cluster-id", required=True, help="Of the cluster; brokers' certificates name it.")
@_brokers
@_clients
@_days
@debug_option
def init(
    folder: Path, cluster_id: str, brokers: tuple[str, ...], clients: tuple[str, ...], days: int
) -> None:
    """Make the two authorities of a cluster in FOLDER, and first certificates."""
    # All that is given, before anything is made.
    if not 0 < len(cluster_id) <= CLUSTER_ID_CHARS_MAX or not cluster_id.isprintable():
        raise click.BadParameter(
            f"1 to {CLUSTER_ID_CHARS_MAX} characters.", param_hint="--cluster-id"
        )
    wanted = _parsed(brokers, clients)
    for node_id, hosts in wanted.items():
        if not hosts:
            raise click.BadParameter(
                f"broker {node_id} has no certificate yet: name its hosts.", param_hint="--broker"
            )
    try:
        with new_folder(folder, mode=FOLDER_MODE):
            made = TlsFolder.make(folder, cluster_id, days=_AUTHORITY_DAYS)
            issued = list(_issue(made, wanted, clients, days))
    except (LocalClusterFailed, OSError, ValueError) as error:
        raise CommandFailed(str(error)) from error
    issued.append(
        f"made the authorities of {cluster_id} in {folder}: keep it away from the brokers"
    )
    print("\n".join(issued))


@security.command()
@_folder
@_brokers
@_clients
@_days
@debug_option
def issue(folder: Path, brokers: tuple[str, ...], clients: tuple[str, ...], days: int) -> None:
    """Make certificates, or renew them: each gets a new key."""
    wanted = _parsed(brokers, clients)
    if not wanted and not clients:
        raise click.UsageError("Name a --broker or a --client.")
    try:
        for line in _issue(TlsFolder(folder), wanted, clients, days):
            print(line)
    except (LocalClusterFailed, OSError, ValueError) as error:
        raise CommandFailed(str(error)) from error


@security.command()
@_folder
@format_option()
@debug_option
def show(folder: Path, output_format: str) -> None:
    """List the certificates in FOLDER, and when they end."""
    try:
        found = TlsFolder(folder).certificates()
    except LocalClusterFailed as error:
        raise CommandFailed(str(error)) from error
    rows = [
        {
            "file": name,
            "serial": f"{one.serial:x}",
            "ends": datetime.fromtimestamp(one.not_after_s, UTC).strftime("%Y-%m-%d"),
            "days_left": int((one.not_after_s - time.time()) // _DAY_S),
        }
        for name, one in found
    ]
    if output_format == "json":
        print_json({"certificates": rows})
        return
    heads = ("FILE", "SERIAL", "ENDS", "DAYS LEFT")
    print_table(heads, [tuple(row.values()) for row in rows], right=("DAYS LEFT",))


def _parsed(brokers: tuple[str, ...], clients: tuple[str, ...]) -> dict[int, list[str]]:
    """Return the hosts of each broker; none: as before."""
    wanted: dict[int, list[str]] = {}
    for text in brokers:
        found = _BROKER.fullmatch(text)
        hosts = [] if found is None else [h.strip() for h in (found["hosts"] or "").split(",")]
        if found is None or (found["hosts"] and not all(hosts)):
            raise click.BadParameter(
                f"{text!r} is not NODE_ID=HOST,...", param_hint="--broker"
            ) from None
        wanted[int(found["node_id"])] = [host for host in hosts if host]
        for host in filter(None, hosts):
            if not is_host(host):
                raise click.BadParameter(
                    f"{host!r} is no host name and no address, which have no port, no brackets and"
                    " ASCII letters alone.",
                    param_hint="--broker",
                )
    for name in clients:
        is_taken = name.startswith(("broker-", "brokers-ca", "clients-ca")) or name == CLIENT_FILE
        if is_taken or not _CLIENT.fullmatch(name):
            raise click.BadParameter(
                f"{name!r}: 1 to 64 letters, digits, dots, - and _, not {CLIENT_FILE!r} and no name"
                " of a broker.",
                param_hint="--client",
            )
    return wanted


def _issue(
    folder: TlsFolder, brokers: dict[int, list[str]], clients: tuple[str, ...], days: int
) -> Iterator[str]:
    """Yield the files of each as soon as they are there."""
    for node_id, hosts in brokers.items():
        name = folder.issue_broker(node_id, hosts, days=days)
        yield f"{folder.certificate(name)}, {folder.key(name)}"
    for name in clients:
        file = folder.issue_client(name, days=days)
        yield f"{folder.certificate(name)}, {folder.key(name)}, {file}"


@security.command()
@click.argument(
    "principal", metavar="[PRINCIPAL]", required=False, callback=as_principal,
    shell_complete=complete_principals,
)  # fmt: skip
@bootstrap_option
@format_option()
@debug_option
def check(principal: str | None, bootstrap: str, timeout_s: float, output_format: str) -> int:
    """Check that a principal may administer every broker: before logins are asked for.

    Without PRINCIPAL: the user of this command. Exit code 1: some broker would not let it add a
    rule, so a mistake there could be mended by that broker's `super.users` alone.
    """
    with open_client(bootstrap, timeout_s=timeout_s, request_timeout_s=timeout_s) as client:
        if principal is None:
            principal = client.who_am_i().principal
            if principal == "anonymous":
                raise click.UsageError("This command is not logged in: give the PRINCIPAL.")
        # Each by itself: `super.users` is a broker's own.
        brokers = [one.node_id for one in client.describe_cluster().brokers if not one.fenced]
        found = {
            node_id: client.check_access(principal, "alter", "cluster", broker=node_id)
            for node_id in brokers
        }
        rule_count = len(client.list_rules())
    if output_format == "json":
        shown = {str(node_id): asdict(one) for node_id, one in found.items()}
        print_json({"principal": principal, "rules": rule_count, "brokers": shown})
    else:
        click.echo(f"{principal}, {rule_count} rules:")
        rows = [(str(n), "yes" if one.is_on else "no", _why(one)) for n, one in found.items()]
        print_table(("BROKER", "RULES COUNT", "MAY ADMINISTER"), rows)
    return ExitCode.OK if all(one.is_allowed for one in found.values()) else ExitCode.FAILED


def _why(found: AccessDecision) -> str:
    if found.is_super_user:
        return "yes, an administrator"
    if found.is_allowed:
        return f"yes, by rule {found.rule}"
    why = f"rule {found.rule} denies it" if found.rule else "no rule allows it"
    return f"no, {why}" if found.is_on else f"not once a listener asks for logins: {why}"
