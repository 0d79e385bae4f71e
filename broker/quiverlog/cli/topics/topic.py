"""`quiverlog topic ...`: create, list, describe, alter, delete, trim."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from quiverlog.cli.console.failures import CommandFailed
from quiverlog.cli.console.options import (
    INT32_MAX,
    INT64_MAX,
    bootstrap_option,
    complete_topics,
    config_option,
    confirmed,
    debug_option,
    format_option,
    open_client,
    whole_number,
)
from quiverlog.cli.console.output import join, print_json, print_table
from quiverlog.cli.console.staged_rows import staging_rooms
from quiverlog.cli.formats.new_topic import new_topic_options, schema_from_options, summary_of
from quiverlog.cli.moves.reassign import change_factor
from quiverlog.cli.topics.partition import elect_leaders, election_options
from quiverlog.cli.topics.topic_detail import detail_json, print_detail
from quiverlog.limits import PARTITIONS_PER_TOPIC_MAX, REPLICATION_FACTOR_MAX

if TYPE_CHECKING:
    from quiverlog.client.base.results import TopicInfo

__all__ = ["topic"]


@click.group()
def topic() -> None:
    """Create, look at, change and delete topics."""


@topic.command()
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
@new_topic_options()
@config_option
@click.option("--if-not-exists", is_flag=True, help="Succeed when the topic is already there.")
@bootstrap_option
@format_option()
@debug_option
def create(
    names: tuple[str, ...],
    schema: str | None,
    schema_file: Path | None,
    partitions: int,
    replication_factor: int | None,
    key: list[str] | None,
    config: dict[str, str],
    if_not_exists: bool,
    bootstrap: str,
    timeout_s: float,
    output_format: str,
) -> None:
    """Create one or more topics with one schema."""
    columns = schema_from_options(schema, schema_file)
    if columns is None:
        raise click.UsageError("Give the topic's columns with --schema or --schema-file.")
    with open_client(bootstrap, timeout_s=timeout_s) as client:
        before = set(client.list_topics()) if if_not_exists else set()
        made: dict[str, TopicInfo] = {}
        for name in names:
            info = client.create_topic(
                name,
                columns,
                partitions=partitions,
                replication_factor=replication_factor,
                key=key,
                config=config,
                if_not_exists=if_not_exists,
            )
            if info is None:
                click.echo(f"{name}: no rule lets this user describe it.", err=True)
            else:
                made[name] = info
    if output_format == "json":
        print_json(
            [
                {"name": name, "created": name not in before, **_shape(made.get(name))}
                for name in names
            ]
        )
        return
    for name in names:
        # Of a hidden topic it is not known which.
        how = "exists" if name in before else "created" if name in made or not if_not_exists else ""
        summary = f": {summary_of(made[name])}" if name in made else ""
        print(f"{how or 'is there:'} {name}{summary}")


def _shape(info: TopicInfo | None) -> dict[str, object]:
    if info is None:
        return {}
    return {
        "partitions": len(info.partitions),
        "replication_factor": info.replicas,
        "durability": info.durability.label,
    }


def _given(**options: Any) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


@topic.command(name="list")
@click.option("--internal", is_flag=True, help="List the cluster's own topics, too.")
@bootstrap_option
@format_option()
@debug_option
def list_topics(internal: bool, bootstrap: str, timeout_s: float, output_format: str) -> None:
    """List the topics."""
    with open_client(bootstrap, timeout_s=timeout_s) as client:
        found = sorted(client.metadata().topics.items())
    topics = [info for _, info in found if internal or not info.is_internal]
    rows = [
        {
            "name": info.name,
            "partitions": len(info.partitions),
            "replication_factor": max((len(p.replicas) for p in info.partitions), default=0),
            "key": list(info.key_columns),
            "durability": info.durability.label,
            "topic_id": info.topic_id.hex(),
        }
        for info in topics
    ]
    if output_format == "json":
        print_json(rows)
        return
    print_table(
        ["TOPIC", "PARTITIONS", "REPLICAS", "KEY", "DURABILITY"],
        [
            (r["name"], r["partitions"], r["replication_factor"], join(r["key"]), r["durability"])
            for r in rows
        ],
        right=["PARTITIONS", "REPLICAS"],
    )


@topic.command()
@click.argument("names", metavar="NAME...", nargs=-1, required=True, shell_complete=complete_topics)
@click.option("--all-configs", is_flag=True, help="Show the defaults too.")
@bootstrap_option
@format_option()
@debug_option
def describe(
    names: tuple[str, ...], all_configs: bool, bootstrap: str, timeout_s: float, output_format: str
) -> None:
    """Show columns, configuration and partitions of topics."""
    with open_client(bootstrap, timeout_s=timeout_s) as client:
        details = [client.describe_topic(name) for name in names]
        rooms, silent = staging_rooms(client, client.list_topics(internal=True))
    waits = [one for room in rooms for one in room.waits]
    if silent:
        missing = ", ".join(map(str, silent))
        click.echo(f"Brokers that were not asked for rows that wait: {missing}.", err=True)
    if output_format == "json":
        print_json([detail_json(detail, waits) for detail in details])
        return
    for position, detail in enumerate(details):
        if position:
            print()
        print_detail(detail, waits, all_configs=all_configs)


@topic.command()
@click.argument("name", shell_complete=complete_topics)
@click.option(
    "--partitions",
    "-p",
    type=click.IntRange(1, PARTITIONS_PER_TOPIC_MAX),
    help="Raise the number to this.",
)
@click.option(
    "--replication-factor",
    type=click.IntRange(1, REPLICATION_FACTOR_MAX),
    help="Raise or lower the number of replicas, and wait for the copies.",
)
@click.option(
    "--schema", metavar="DDL", help="The new columns: the old ones and nullable ones at the end."
)
@click.option("--schema-file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@config_option
@click.option("--delete-config", "-d", multiple=True, metavar="KEY", help="Go back to the default.")
@bootstrap_option
@format_option()
@debug_option
def alter(
    name: str,
    partitions: int | None,
    replication_factor: int | None,
    schema: str | None,
    schema_file: Path | None,
    config: dict[str, str],
    delete_config: tuple[str, ...],
    bootstrap: str,
    timeout_s: float,
    output_format: str,
) -> None:
    """Change a topic's configuration, partitions or columns; what is not given stays."""
    columns = schema_from_options(schema, schema_file)
    changes = _given(
        partitions=partitions,
        schema=columns,
        config=config or None,
        reset_config=delete_config or None,
    )
    if not changes and replication_factor is None:
        raise click.UsageError("Nothing to change: see the options.")
    with open_client(bootstrap, timeout_s=timeout_s) as client:
        if changes:
            client.alter_topic(name, **changes)
        if replication_factor is not None:
            changes["replication_factor"] = replication_factor
            change_factor(client, name, replication_factor, is_quiet=output_format == "json")
    if output_format == "json":
        print_json({"name": name, "altered": sorted(changes)})
    else:
        print(f"altered {name}: {', '.join(word.replace('_', ' ') for word in changes)}")


@topic.command()
@click.argument("names", metavar="NAME...", nargs=-1, required=True, shell_complete=complete_topics)
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@click.option("--if-exists", is_flag=True, help="Succeed when there is no such topic.")
@bootstrap_option
@format_option()
@debug_option
def delete(
    names: tuple[str, ...],
    yes: bool,
    if_exists: bool,
    bootstrap: str,
    timeout_s: float,
    output_format: str,
) -> None:
    """Delete topics and all their rows, for good."""
    if not yes:
        confirmed(f"Delete {', '.join(names)} with all rows?")
    with open_client(bootstrap, timeout_s=timeout_s) as client:
        before = set(client.list_topics()) if if_exists else set(names)
        for name in names:
            client.delete_topic(name, if_exists=if_exists)
    if output_format == "json":
        print_json([{"name": name, "deleted": name in before} for name in names])
        return
    for name in names:
        print(f"{'deleted' if name in before else 'no topic'} {name}")


@topic.command()
@click.argument("name", shell_complete=complete_topics)
@election_options
@bootstrap_option
@format_option()
@debug_option
def elect(
    name: str,
    partitions: tuple[int, ...],
    unclean: bool,
    yes: bool,
    bootstrap: str,
    timeout_s: float,
    output_format: str,
) -> None:
    """The same as `partition elect`, for one topic."""
    if unclean and not yes:
        confirmed(f"Give up rows of {name} that no living replica has?")
    with open_client(bootstrap, timeout_s=timeout_s) as client:
        leaders = elect_leaders(client, name, partitions, unclean=unclean)
    if output_format == "json":
        print_json({"name": name, "leaders": {str(p): node for p, node in leaders.items()}})
        return
    rows = [(p, "none" if node is None else node) for p, node in sorted(leaders.items())]
    print_table(["PARTITION", "LEADER"], rows, right=["PARTITION", "LEADER"])


@topic.command()
@click.argument("name", shell_complete=complete_topics)
@click.option(
    "--before",
    "before",
    required=True,
    metavar="latest|OFFSET|PARTITION=OFFSET,...",
    help="Rows with smaller offsets go; `latest` empties the topic.",
)
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@bootstrap_option
@format_option()
@debug_option
def trim(
    name: str, before: str, yes: bool, bootstrap: str, timeout_s: float, output_format: str
) -> None:
    """Delete a topic's oldest rows, up to an offset."""
    wanted = parse_before(before)
    with open_client(bootstrap, timeout_s=timeout_s) as client:
        numbers = [p.partition for p in client.describe_topic(name).partitions]
        per_partition: dict[int, int | Literal["latest"]] = (
            dict(wanted) if isinstance(wanted, Mapping) else dict.fromkeys(numbers, wanted)
        )
        unknown = sorted(set(per_partition) - set(numbers))
        if unknown:
            raise CommandFailed(f"{name} has no partition {join(unknown)}.")
        if not yes:
            confirmed(f"Delete rows of {name} before {before}?")
            client.cluster.progressed()  # The user's time to answer does not count.
        starts = client.delete_records(name, per_partition)
    if output_format == "json":
        print_json({"name": name, "log_start_offsets": {str(p): o for p, o in starts.items()}})
        return
    print_table(["PARTITION", "START"], sorted(starts.items()), right=["PARTITION", "START"])


def parse_before(text: str) -> int | Literal["latest"] | dict[int, int | Literal["latest"]]:
    def offset(word: str) -> int | Literal["latest"]:
        if word == "latest":
            return "latest"
        number = whole_number(word, INT64_MAX)
        if number is not None:
            return number
        raise click.BadParameter(f"{word!r} is neither `latest` nor an offset.")

    if "=" not in text:
        return offset(text.strip())
    pairs: dict[int, int | Literal["latest"]] = {}
    for word in text.split(","):
        left, _, value = word.partition("=")
        partition = whole_number(left, INT32_MAX)
        if partition is None:
            raise click.BadParameter(f"{word!r} is not PARTITION=OFFSET.")
        pairs[partition] = offset(value.strip())
    return pairs
