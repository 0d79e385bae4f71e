"""`quiverlog partition ...`: which brokers hold the partitions of a topic.

Owns how moves are asked for, shown and waited for; every rule about them is the brokers'.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

import click

from quiverlog.cli.failures import CommandFailed
from quiverlog.cli.options import (
    bootstrap_option,
    complete_topics,
    debug_option,
    format_option,
    open_client,
)
from quiverlog.cli.output import print_json, print_table
from quiverlog.client.results import PartitionMove
from quiverlog.limits import PARTITIONS_PER_TOPIC_MAX

if TYPE_CHECKING:
    from quiverlog.client.client import Client

__all__ = ["partition"]

_PARTITION = click.IntRange(0, PARTITIONS_PER_TOPIC_MAX - 1)
_POLL_S = 0.5


class _Target(click.ParamType[tuple[int, list[int]]]):
    name = "PARTITION=BROKER,..."

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, list[int]]:
        try:
            number, brokers = str(value).split("=")
            return int(number), [int(one) for one in brokers.split(",")]
        except ValueError:
            self.fail(f"{value!r} is not of the form 0=2,3,1.", param, ctx)


@click.group()
def partition() -> None:
    """See and change which brokers hold the partitions of a topic."""


@partition.command()
@click.argument("name", shell_complete=complete_topics)
@click.option(
    "--to",
    "targets",
    type=_Target(),
    multiple=True,
    help="Who is to hold a partition, preferred leader first. May be given several times.",
)
@click.option(
    "--cancel",
    "cancelled",
    type=_PARTITION,
    multiple=True,
    help="This partition stays with those that held it before. May be given several times.",
)
@click.option(
    "--wait",
    "wait_s",
    type=click.FloatRange(0, 86_400),
    default=0.0,
    metavar="SECONDS",
    help="Wait so long until nothing moves any more; exit code 1 if something still does.",
)
@bootstrap_option
@format_option()
@debug_option
def reassign(
    name: str,
    targets: tuple[tuple[int, list[int]], ...],
    cancelled: tuple[int, ...],
    wait_s: float,
    bootstrap: str,
    timeout_s: float,
    output_format: str,
) -> None:
    """Move partitions to other brokers; without --to and --cancel: show which move.

    Rows can be written and read meanwhile. Brokers that are to hold a partition copy it first;
    those that are not any more let go of it when enough of the others are in sync.
    """
    wanted: dict[int, list[int] | None] = dict(targets)
    for number in cancelled:
        if number in wanted:
            raise click.UsageError(f"Partition {number} is to move, and not to move.")
        wanted[number] = None
    if len(wanted) != len(targets) + len(set(cancelled)):
        raise click.UsageError("A partition is named twice.")
    with open_client(bootstrap, timeout_s=timeout_s) as client:
        moves = client.reassign_partitions(name, wanted)
        if wait_s:
            moves |= _wait(client, name, moves, wait_s)
    _show(name, moves, output_format)
    if wait_s and any(_is_moving(one) for one in moves.values()):
        raise CommandFailed("Not all partitions have moved; `--cancel` gives a move up.")


def _is_moving(move: PartitionMove) -> bool:
    return bool(move.adding or move.removing)


def _wait(
    client: Client, name: str, moves: Mapping[int, PartitionMove], wait_s: float
) -> dict[int, PartitionMove]:
    """How those that move look when they do not any more, or the time is over."""
    until = time.monotonic() + wait_s
    found = {number: one for number, one in moves.items() if _is_moving(one)}
    while any(map(_is_moving, found.values())) and time.monotonic() < until:
        time.sleep(_POLL_S)
        moving = client.reassign_partitions(name, {})
        infos = {one.partition: one for one in client.describe_topic(name).partitions}
        for number in found:
            info = infos[number]
            found[number] = moving.get(number) or PartitionMove(
                info.replicas, info.in_sync_replicas
            )
    return found


def _show(name: str, moves: Mapping[int, PartitionMove], output_format: str) -> None:
    rows = sorted(moves.items())
    if output_format == "json":
        shown = [
            {
                "partition": number,
                "replicas": list(one.replicas),
                "in_sync_replicas": list(one.in_sync_replicas),
                "adding_replicas": list(one.adding),
                "removing_replicas": list(one.removing),
            }
            for number, one in rows
        ]
        print_json({"name": name, "partitions": shown})
        return
    if not rows:
        click.echo(f"No partition of {name} moves.", err=True)
        return
    table = [
        (number, *(",".join(map(str, ids)) or "-" for ids in
                   (one.replicas, one.in_sync_replicas, one.adding, one.removing)))
        for number, one in rows
    ]  # fmt: skip
    heads = ["PARTITION", "REPLICAS", "IN SYNC", "ADDING", "REMOVING"]
    print_table(heads, table, right=["PARTITION"])
