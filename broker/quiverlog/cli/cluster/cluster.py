"""`quiverlog cluster ...`: the cluster as a whole, and `cluster rebalance`."""

from __future__ import annotations

import click

from quiverlog.cli.cluster.decommission import decommission, unregister
from quiverlog.cli.cluster.features import features, upgrade
from quiverlog.cli.cluster.producer import producer
from quiverlog.cli.cluster.restart_check import restart_check
from quiverlog.cli.cluster.status import status
from quiverlog.cli.console.options import (
    bootstrap_option,
    confirmed,
    debug_option,
    format_option,
    open_client,
)
from quiverlog.cli.console.output import print_json
from quiverlog.cli.moves.options import moving_options

__all__ = ["cluster", "rebalance_cluster"]


@click.command(name="rebalance")
@click.option(
    "--max-moves",
    type=click.IntRange(0, 1_000_000),
    metavar="N",
    help="Copy no more replicas than this, the most useful ones first.",
)
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@moving_options
@bootstrap_option
@format_option("table", "json", "plan")
@debug_option
def rebalance_cluster(
    max_moves: int | None,
    yes: bool,
    dry_run: bool,
    throttle: int,
    wait_s: float,
    ignore_room: bool,
    bootstrap: str,
    timeout_s: float,
    output_format: str,
) -> None:
    """Even out replicas, leaders and bytes over the brokers; moves no more than it has to.

    What moves, and what each broker has before and after, is shown first. Racks and hosts come
    before all else: replicas of a partition never lie closer together than they did.
    """
    from quiverlog.cli.moves.reassign import How, carry_out
    from quiverlog.core.placement.moves import rebalance

    how = How(dry_run, throttle, wait_s, ignore_room, output_format)
    with open_client(bootstrap, timeout_s=timeout_s) as client:
        carry_out(
            client,
            lambda placement: rebalance(
                placement.brokers, placement.partitions, copies_max=max_moves
            ),
            how,
            confirm=None if yes else lambda: confirmed("Move them?"),
        )


@click.group()
def cluster() -> None:
    """Look at the cluster as a whole."""


@cluster.command()
@bootstrap_option
@format_option()
@debug_option
def describe(bootstrap: str, timeout_s: float, output_format: str) -> None:
    """Show brokers, quorum, and how many partitions are not as they should be.

    Any broker answers; only the controller has the lag of the voters' logs.
    """
    from quiverlog.cli.cluster.detail import cluster_json, print_cluster
    from quiverlog.cli.console.probes import seen_or_failure

    seen = seen_or_failure(bootstrap, timeout_s)
    if output_format == "json":
        print_json(cluster_json(seen))
    else:
        print_cluster(seen)


@cluster.command()
@bootstrap_option
@format_option()
@debug_option
def brokers(bootstrap: str, timeout_s: float, output_format: str) -> None:
    """List the brokers: where, in which state, partitions that each leads and holds, room and load.

    FREE: room for rows; LOAD: processor (100% is a core); IN/S, OUT/S: bytes of its connections
    in a second. Empty where the broker does not answer.
    """
    from quiverlog.cli.cluster.detail import brokers_json, knowledge_json, print_brokers
    from quiverlog.cli.console.cluster_health import as_known
    from quiverlog.cli.console.probes import seen_or_failure

    seen = seen_or_failure(bootstrap, timeout_s)
    if output_format == "json":
        print_json({**knowledge_json(seen), "brokers": brokers_json(seen)})
        return
    if not seen.found.is_current:
        print(f"As known to {as_known(seen.found)}.")
    print_brokers(seen)


cluster.add_command(status)
cluster.add_command(restart_check)
cluster.add_command(features)
cluster.add_command(upgrade)
cluster.add_command(producer)


cluster.add_command(rebalance_cluster)
cluster.add_command(decommission)
cluster.add_command(unregister)
