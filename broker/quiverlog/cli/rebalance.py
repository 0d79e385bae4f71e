"""`quiverlog cluster rebalance`: evening out what brokers hold, lead and store."""

from __future__ import annotations

import click

from quiverlog.cli.move_options import moving_options
from quiverlog.cli.options import (
    bootstrap_option,
    confirmed,
    debug_option,
    format_option,
    open_client,
)

__all__ = ["rebalance_cluster"]


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
    from quiverlog.cli.reassign import How, carry_out
    from quiverlog.client.admin.moves import rebalance

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
