"""`quiverlog cluster ...`: the cluster as a whole, and the voters of the metadata quorum.

Owns how they are asked for and shown; every rule about them is the brokers'.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from quiverlog.cli.failures import ExitCode
from quiverlog.cli.options import bootstrap_option, debug_option, format_option, open_client
from quiverlog.cli.output import print_json, print_table
from quiverlog.cli.restart_check import restart_check

if TYPE_CHECKING:
    from quiverlog.wire.voters_messages import ChangeVotersResponse

__all__ = ["cluster"]

_NODE_ID = click.IntRange(0, 2**31 - 1)
_NOTHING, _ADD, _REMOVE = range(3)


@click.group()
def cluster() -> None:
    """Look at the cluster and change who decides in it."""


@cluster.command()
@bootstrap_option
@format_option()
@debug_option
def describe(bootstrap: str, timeout_s: float, output_format: str) -> None:
    """Show brokers, quorum, and how many partitions are not as they should be.

    Any broker answers; how far the voters' logs have come is known to the controller alone.
    """
    from quiverlog.cli.cluster_detail import cluster_json, print_cluster

    with open_client(bootstrap, timeout_s=timeout_s, request_timeout_s=timeout_s) as client:
        found = client.describe_cluster()
    if output_format == "json":
        print_json(cluster_json(found))
    else:
        print_cluster(found)


@cluster.command()
@bootstrap_option
@format_option()
@debug_option
def status(bootstrap: str, timeout_s: float, output_format: str) -> None:
    """Show whether the cluster is healthy and what to do next; exit code 1 if it is not."""
    from quiverlog.cli.cluster_detail import print_status, status_json
    from quiverlog.cli.cluster_health import is_healthy

    with open_client(bootstrap, timeout_s=timeout_s, request_timeout_s=timeout_s) as client:
        found = client.describe_cluster()
    if output_format == "json":
        print_json(status_json(found))
    else:
        print_status(found)
    if not is_healthy(found):
        raise click.exceptions.Exit(ExitCode.FAILED)


@cluster.command()
@bootstrap_option
@format_option()
@debug_option
def brokers(bootstrap: str, timeout_s: float, output_format: str) -> None:
    """List the brokers: where, in which state, and how many partitions each leads and holds."""
    from quiverlog.cli.cluster_detail import brokers_json, print_brokers

    with open_client(bootstrap, timeout_s=timeout_s, request_timeout_s=timeout_s) as client:
        found = client.describe_cluster()
    if output_format == "json":
        print_json({"brokers": brokers_json(found)})
    else:
        print_brokers(found)


@cluster.group()
def voters() -> None:
    """The voters of the metadata quorum: show, add, remove (docs/cluster.md)."""


def _ask(
    bootstrap: str, timeout_s: float, change: int, node_id: int, directory: str
) -> ChangeVotersResponse:
    from quiverlog.client.voters import change_voters
    from quiverlog.wire.voters_messages import ChangeVotersRequest

    request = ChangeVotersRequest(change=change, node_id=node_id, directory_id=directory)
    # A broker that has just been started follows within seconds, or not at all.
    with open_client(bootstrap, timeout_s=timeout_s, request_timeout_s=timeout_s) as client:
        return client.run(change_voters(client.cluster, request))


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
        }
        for one in found.replicas
    ]  # fmt: skip
    if output_format == "json":
        print_json(
            {
                "leader_id": found.leader_id,
                "term": found.term,
                "committed_index": found.committed_index,
                "replicas": rows,
            }
        )
        return
    print_table(
        ("node", "role", "directory", "endpoint", "last index", "lag"),
        [["" if cell == -1 else cell for cell in row.values()] for row in rows],
        right=("node", "last index", "lag"),
    )


@voters.command(name="list")
@bootstrap_option
@format_option()
@debug_option
def list_voters(bootstrap: str, timeout_s: float, output_format: str) -> None:
    """List the voters, and who follows them without a vote.

    How far each log has come is known at the leader alone.
    """
    _show(_ask(bootstrap, timeout_s, _NOTHING, 0, ""), output_format)


_directory = click.option(
    "--directory-id", "directory", default="", help="Which disk of the node, if not its only one."
)


@voters.command()
@click.argument("node_id", type=_NODE_ID)
@_directory
@bootstrap_option
@format_option()
@debug_option
def add(node_id: int, directory: str, bootstrap: str, timeout_s: float, output_format: str) -> None:
    """Make a broker that follows the quorum a voter."""
    _show(_ask(bootstrap, timeout_s, _ADD, node_id, directory), output_format)


@voters.command()
@click.argument("node_id", type=_NODE_ID)
@_directory
@bootstrap_option
@format_option()
@debug_option
def remove(
    node_id: int, directory: str, bootstrap: str, timeout_s: float, output_format: str
) -> None:
    """Take the vote from a voter; it may be gone already."""
    _show(_ask(bootstrap, timeout_s, _REMOVE, node_id, directory), output_format)


cluster.add_command(restart_check)
