"""`quiverlog quorum ...`: the controller, the voters and observers, and each one's log end."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import click

from quiverlog.cli.cluster.quorum_recover import recover
from quiverlog.cli.console.options import (
    INT32_MAX,
    bootstrap_option,
    debug_option,
    format_option,
    open_client,
)
from quiverlog.cli.console.output import print_fields, print_json, print_table
from quiverlog.cli.console.waiting import Patience, polls

if TYPE_CHECKING:
    from quiverlog.wire.voters_messages import ChangeVotersResponse

__all__ = ["quorum"]

_NODE_ID = click.IntRange(0, INT32_MAX)
_NOTHING, _ADD, _REMOVE = range(3)
_LEADER_WAIT_S = 5.0


@click.group()
def quorum() -> None:
    """The quorum of the cluster's metadata: show it, grow it, shrink it."""


@quorum.command()
@bootstrap_option
@format_option()
@debug_option
def status(bootstrap: str, timeout_s: float, output_format: str) -> None:
    """Show the leader, the voters, and the brokers that follow without a vote.

    Only the leader has the end of each log and the time of the last contact: give an address of a
    broker that reaches it.
    """
    _show(_ask(bootstrap, timeout_s, _NOTHING, 0, ""), output_format)


_directory = click.option(
    "--directory-id", "directory", default="", help="Which disk of the node, if not its only one."
)


@quorum.command()
@click.argument("node_id", type=_NODE_ID)
@_directory
@bootstrap_option
@format_option()
@debug_option
def add(node_id: int, directory: str, bootstrap: str, timeout_s: float, output_format: str) -> None:
    """Make a broker that follows the quorum a voter.

    Waits until it has caught up, for as long as --timeout.
    """
    found = _ask(bootstrap, timeout_s, _ADD, node_id, directory)
    _show_changed(found, f"broker {node_id} is a voter", output_format)


@quorum.command()
@click.argument("node_id", type=_NODE_ID)
@_directory
@bootstrap_option
@format_option()
@debug_option
def remove(
    node_id: int, directory: str, bootstrap: str, timeout_s: float, output_format: str
) -> None:
    """Take the vote from a voter, which may be gone already, or lead.

    The broker stays in the cluster and follows without a vote. It wants one again at its next
    start, unless `controller.quorum.auto.join` is false there.
    """
    found = _ask(bootstrap, timeout_s, _REMOVE, node_id, directory)
    _show_changed(found, f"broker {node_id} has no vote", output_format)


quorum.add_command(recover)


def _ask(
    bootstrap: str, timeout_s: float, change: int, node_id: int, directory: str
) -> ChangeVotersResponse:
    from quiverlog.client.admin.cluster import change_voters
    from quiverlog.wire.voters_messages import ChangeVotersRequest

    request = ChangeVotersRequest(change=change, node_id=node_id, directory_id=directory)
    # A broker that has just been started follows within seconds, or not at all.
    with open_client(bootstrap, timeout_s=timeout_s, request_timeout_s=timeout_s) as client:
        found = client.run(change_voters(client.cluster, request))
        if not change:
            return found
        # A leader that lost its vote resigns: its successor has the newer state.
        patience = Patience()
        for is_last in polls(min(timeout_s, _LEADER_WAIT_S)):
            if _is_led(found) or is_last:
                break
            asked = change_voters(client.cluster, ChangeVotersRequest())
            found = patience.ask(partial(client.run, asked)) or found
        return found


def _is_led(found: ChangeVotersResponse) -> bool:
    return any(one.node_id == found.leader_id and one.lag == 0 for one in found.replicas)


def _show_changed(found: ChangeVotersResponse, what: str, output_format: str) -> None:
    if output_format == "json":
        _show(found, output_format)
        return
    count = sum(one.is_voter for one in found.replicas)
    controller = (
        f"broker {found.leader_id} is the controller"
        if _is_led(found)
        else "no controller is known yet"
    )
    plural = "" if count == 1 else "s"
    click.echo(
        f"{what}: {count} voter{plural}, {max(0, (count - 1) // 2)} may be lost, {controller}"
    )
    if count % 2 == 0:
        click.echo("An even number of voters survives no more losses than one less.", err=True)


def _show(found: ChangeVotersResponse, output_format: str) -> None:
    rows = [
        {
            "node_id": one.node_id,
            "role": "observer" if not one.is_voter else
            "leader" if one.node_id == found.leader_id else "voter",
            "directory_id": one.directory_id,
            "endpoint": one.endpoint,
            "last_index": one.last_index,
            "lag": one.lag,
            "silent_ms": one.silent_ms,
        }
        for one in found.replicas
    ]  # fmt: skip
    count = sum(one.is_voter for one in found.replicas)
    if output_format == "json":
        print_json(
            {
                "leader_id": found.leader_id,
                "term": found.term,
                "committed_index": found.committed_index,
                "voters": count,
                "may_be_lost": max(0, (count - 1) // 2),
                "replicas": rows,
            }
        )
        return
    print_fields(
        {
            "leader": f"broker {found.leader_id}" if found.leader_id >= 0 else "none is known",
            "term": found.term,
            "committed": found.committed_index,
            "voters": f"{count}, {max(0, (count - 1) // 2)} may be lost",
        }
    )
    click.echo()
    print_table(
        ["NODE", "ROLE", "ENDPOINT", "LAST", "LAG", "LAST CONTACT", "DIRECTORY"],
        [
            [
                one["node_id"],
                one["role"],
                one["endpoint"],
                _known(one["last_index"]),
                _known(one["lag"]),
                "-" if one["silent_ms"] == -1 else f"{int(str(one['silent_ms'])) / 1000:.1f} s ago",
                one["directory_id"],
            ]
            for one in rows
        ],
        right=("NODE", "LAST", "LAG", "LAST CONTACT"),
    )


def _known(number: object) -> object:
    return "-" if number == -1 else number
