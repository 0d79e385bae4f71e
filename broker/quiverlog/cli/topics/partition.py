"""`quiverlog partition ...`: which brokers hold and lead the partitions of topics."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import click

from quiverlog.cli.console.options import (
    bootstrap_option,
    complete_topics,
    confirmed,
    debug_option,
    format_option,
    open_client,
)
from quiverlog.cli.console.output import human_bytes, join, print_json, print_table
from quiverlog.cli.console.probes import seen_or_failure
from quiverlog.cli.moves.options import node_id_type
from quiverlog.cli.moves.reassign import reassign
from quiverlog.limits import PARTITIONS_PER_TOPIC_MAX

if TYPE_CHECKING:
    from quiverlog.cli.console.probes import Seen
    from quiverlog.client.client import Client

__all__ = ["elect_leaders", "election_options", "partition"]


@click.group()
def partition() -> None:
    """See and change which brokers hold and lead the partitions of topics."""


partition.add_command(reassign)


@partition.command(name="list")
@click.option(
    "--topic", "-t", "topics", multiple=True, metavar="NAME", shell_complete=complete_topics,
    help="Only of this topic; may be given several times.",
)  # fmt: skip
@click.option("--broker", type=node_id_type, metavar="N", help="Only what this broker holds.")
@click.option("--under-replicated", is_flag=True, help="Only where a replica is out of sync.")
@click.option("--offline", is_flag=True, help="Only those without a leader.")
@click.option("--moving", is_flag=True, help="Only those on their way to other brokers.")
@bootstrap_option
@format_option()
@debug_option
def list_partitions(
    topics: tuple[str, ...],
    broker: int | None,
    under_replicated: bool,
    offline: bool,
    moving: bool,
    bootstrap: str,
    timeout_s: float,
    output_format: str,
) -> None:
    """List partitions: leader, replicas, in-sync replicas, size.

    Several conditions together show what meets all of them.
    """
    seen = seen_or_failure(bootstrap, timeout_s)
    answer = None if seen.found.is_current else _warn_of_old_figures(seen)
    with open_client(bootstrap, timeout_s=timeout_s, skipped=seen.silent) as client:
        for name in topics:
            client.describe_topic(name)  # Raises for a wrong or unknown name; METADATA does not.
        rows = [
            row
            for row in _rows(client, topics, answer)
            if (broker is None or broker in row["replicas"])
            and (not under_replicated or row["is_under_replicated"])
            and (not offline or row["leader"] is None or row["leader_answers"] is False)
            and (not moving or row["adding_replicas"] or row["removing_replicas"])
        ]
    if output_format == "json":
        print_json(rows)
        return
    print_table(
        ["TOPIC", "PARTITION", "LEADER", "REPLICAS", "IN SYNC", "SIZE", "MOVES"],
        [
            (
                row["topic"],
                row["partition"],
                _leader(row),
                join(row["replicas"]),
                join(row["in_sync_replicas"]) or "none",
                "?" if row["size_bytes"] is None else human_bytes(row["size_bytes"]),
                _arrows(row),
            )
            for row in rows
        ],
        right=["PARTITION", "SIZE"],
    )


def _leader(row: dict[str, Any]) -> str:
    if row["leader"] is None:
        return "none"
    return f"{row['leader']}" + (" (silent)" if row["leader_answers"] is False else "")


def _warn_of_old_figures(seen: Seen) -> set[int]:
    from quiverlog.cli.console.cluster_health import as_known

    found, answer = seen.found, seen.answering
    click.echo(
        f"quiverlog: as known to {as_known(found)}; {len(answer)} of {len(found.brokers)} brokers "
        "answer. What moves is not known. A leader that does not answer counts as none.",
        err=True,
    )
    return answer


def _arrows(row: dict[str, Any]) -> str:
    signed = [f"+{one}" for one in row["adding_replicas"]]
    return " ".join([*signed, *(f"-{one}" for one in row["removing_replicas"])]) or "-"


def _rows(
    client: Client, topics: Sequence[str], answer: set[int] | None
) -> Iterator[dict[str, Any]]:
    """`answer`: the brokers that answer, where no controller does."""
    from quiverlog.client.admin.cluster import list_moves
    from quiverlog.client.admin.replica_sizes import replica_sizes

    found = client.metadata(topics or None)
    moves = client.run(list_moves(client.cluster)) if answer is None else {}
    sizes = client.run(replica_sizes(client.cluster, topics or None, answer))
    for name, topic in sorted(found.topics.items()):
        for one in topic.partitions:
            move = moves.get(name, {}).get(one.partition)
            adding = move.adding if move is not None else ()
            size = sizes.at(name, one.partition, one.leader)
            yield {
                "topic": name,
                "partition": one.partition,
                "leader": one.leader if one.leader >= 0 else None,
                "leader_answers": None if answer is None else one.leader in answer,
                "leader_epoch": one.leader_epoch,
                "replicas": list(one.replicas),
                "in_sync_replicas": list(one.in_sync_replicas),
                "is_under_replicated": not set(one.replicas) - set(adding)
                <= set(one.in_sync_replicas),
                "adding_replicas": list(adding),
                "removing_replicas": list(move.removing) if move is not None else [],
                "size_bytes": size,
                "replica_bytes": {
                    str(node_id): size_bytes
                    for node_id, size_bytes in sorted(
                        sizes.by_partition.get((name, one.partition), {}).items()
                    )
                    if size_bytes >= 0
                },
            }


def election_options(command: Callable[..., None]) -> Callable[..., None]:
    options = (
        click.option(
            "--partition",
            "partitions",
            type=click.IntRange(0, PARTITIONS_PER_TOPIC_MAX - 1),
            multiple=True,
            help="Only this one of the topic; may be given several times.",
        ),
        click.option(
            "--unclean",
            is_flag=True,
            help="Without a leader, let the longest log that is known lead: rows may be lost.",
        ),
        click.option("--yes", "-y", is_flag=True, help="Do not ask."),
    )
    for option in reversed(options):
        command = option(command)
    return command


@partition.command()
@click.argument("name", metavar="[TOPIC]", required=False, shell_complete=complete_topics)
@election_options
@bootstrap_option
@format_option()
@debug_option
def elect(
    name: str | None,
    partitions: tuple[int, ...],
    unclean: bool,
    yes: bool,
    bootstrap: str,
    timeout_s: float,
    output_format: str,
) -> None:
    """Let the first replica of each partition lead it again, where it is in sync.

    Of all topics, or of the one named. The brokers do so by themselves as well, a few at a time
    (leader.balance.period.ms).
    """
    if partitions and name is None:
        raise click.UsageError("Name the topic.")
    if unclean and not yes:
        confirmed(f"Give up rows of {name or 'all topics'} that no living replica has?")
    with open_client(bootstrap, timeout_s=timeout_s) as client:
        # No wish about all topics gives up decisions about transactions.
        names = client.list_topics(internal=not unclean) if name is None else [name]
        found = {
            one: elect_leaders(client, one, partitions, unclean=unclean, is_asked_for=name == one)
            for one in names
        }
    if output_format == "json":
        print_json(
            [
                {"name": one, "leaders": {str(p): node for p, node in leaders.items()}}
                for one, leaders in found.items()
            ]
        )
        return
    print_table(["TOPIC", "PARTITION", "LEADER"], _led(found.items()), right=["PARTITION"])


def _led(
    found: Iterable[tuple[str, dict[int, int | None]]],
) -> Iterator[tuple[str, int, int | str]]:
    for topic, leaders in found:
        for number, node_id in sorted(leaders.items()):
            yield topic, number, "none" if node_id is None else node_id


def elect_leaders(
    client: Client,
    topic: str,
    partitions: Sequence[int],
    *,
    unclean: bool,
    is_asked_for: bool = True,
) -> dict[int, int | None]:
    """Return the leaders; none for a topic that was deleted since it was listed."""
    from quiverlog.errors import UnknownTopic

    try:
        return client.elect_leaders(topic, partitions or None, unclean=unclean)
    except UnknownTopic:
        if is_asked_for:
            raise
        return {}
