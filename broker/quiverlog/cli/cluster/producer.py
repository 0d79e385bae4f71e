"""`quiverlog cluster producer`: the last writes of an idempotent producer, by partition."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from quiverlog.cli.console.options import bootstrap_option, debug_option, format_option, open_client
from quiverlog.cli.console.output import print_json, print_table
from quiverlog.types import PRODUCER_IDS_END

if TYPE_CHECKING:
    from quiverlog.client.admin.producers import ProducerDescription, ProducerWrites

__all__ = ["producer"]


@click.command()
@click.argument("producer_id", type=click.IntRange(0, PRODUCER_IDS_END - 1), metavar="ID")
@click.option(
    "--topic", "topics", multiple=True, metavar="NAME", help="Only this topic; may be repeated."
)
@bootstrap_option
@format_option()
@debug_option
def producer(
    producer_id: int,
    topics: tuple[str, ...],
    bootstrap: str,
    timeout_s: float,
    output_format: str,
) -> None:
    """Show where the producer with this ID wrote: errors and `dump-log` name producers by id.

    A leader drops the state of a producer that has been silent for long (`docs broker`).
    """
    with open_client(bootstrap, timeout_s=timeout_s) as client:
        found = client.describe_producer(producer_id, topics or None)
    if output_format == "json":
        print_json(_json(found))
    else:
        _print(found)
    if found.silent:
        missing = ", ".join(map(str, found.silent))
        click.echo(
            f"Brokers that did not answer: {missing}. Their partitions are missing.", err=True
        )


def _json(found: ProducerDescription) -> dict[str, object]:
    return {
        "producer_id": found.producer_id,
        "epoch": found.epoch,
        "partitions": [_row(one) for one in found.partitions],
        "silent_brokers": list(found.silent),
    }


def _row(one: ProducerWrites) -> dict[str, object]:
    return {
        "topic": one.topic,
        "partition": one.partition,
        "leader": one.leader,
        "epoch": one.epoch,
        "next_sequence": one.next_sequence,
        "last_offset": one.last_offset,
        "idle_s": one.idle_s,
    }


def _print(found: ProducerDescription) -> None:
    if found.epoch is None:
        click.echo(f"The cluster never assigned producer id {found.producer_id}.")
    else:
        click.echo(f"Producer {found.producer_id}, newest epoch {found.epoch}.")
    if not found.partitions:
        click.echo("No leader has state of this producer.")
        return
    rows = [list(_row(one).values()) for one in found.partitions]
    columns = list(_row(found.partitions[0]))
    print_table(columns, rows, right=columns[1:])
