"""The options that describe a new topic, shared by the commands that can create one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from quiverlog.cli.console.options import columns_callback, was_given
from quiverlog.limits import (
    PARTITIONS_PER_TOPIC_MAX,
    REPLICATION_FACTOR_DEFAULT,
    REPLICATION_FACTOR_MAX,
)

if TYPE_CHECKING:
    import pyarrow as pa

    from quiverlog.client.base.results import TopicInfo
    from quiverlog.client.client import Client

__all__ = [
    "REPLICATION_FACTOR_SHOWN",
    "check_as_it_is",
    "new_topic_options",
    "schema_from_options",
    "summary_of",
]

REPLICATION_FACTOR_SHOWN = f"{REPLICATION_FACTOR_DEFAULT}, or one on each broker where fewer live"

_CREATING = ("partitions", "replication_factor", "key", "config")

_Command = TypeVar("_Command", bound=Callable[..., Any])


def new_topic_options(note: str = "", schema_note: str = "") -> Callable[[_Command], _Command]:
    """Add options; `note` begins each help text, `schema_note` ends that of `--schema`."""
    options = (
        click.option(
            "--schema",
            metavar="DDL|raw",
            help=f"{note}The columns, e.g. 'id long, name string not null, price decimal(10,2), "
            "at timestamp'; `raw` is the prepared schema for opaque payloads (key, value, headers, "
            f"timestamp).{schema_note}",
        ),
        click.option(
            "--schema-file",
            type=click.Path(exists=True, dir_okay=False, path_type=Path),
            help=f"{note}Take the columns from a .json, .sql, .parquet or .arrow file.",
        ),
        click.option(
            "--partitions",
            "-p",
            type=click.IntRange(1, PARTITIONS_PER_TOPIC_MAX),
            default=1,
            show_default=True,
            help=f"{note}How many.",
        ),
        click.option(
            "--replication-factor",
            "-r",
            type=click.IntRange(1, REPLICATION_FACTOR_MAX),
            show_default=REPLICATION_FACTOR_SHOWN,
            help=f"{note}Copies of each row.",
        ),
        click.option(
            "--key",
            metavar="COLUMN,...",
            callback=columns_callback,
            help=f"{note}Equal keys share a partition.",
        ),
    )

    def decorate(command: _Command) -> _Command:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


def summary_of(info: TopicInfo) -> str:
    partitions = f"{len(info.partitions)} partition{'s' * (len(info.partitions) != 1)}"
    copies = f"{info.replicas} replica{'s' * (info.replicas != 1)}"
    return f"{partitions}, {copies}, durability {info.durability.label}"


def check_as_it_is(
    client: Client, name: str, create: dict[str, Any], *, is_other: bool = False
) -> None:
    """Raise click.UsageError for the first option in which the existing topic differs.

    Args:
        create: the options for a new topic, by name.
        is_other: its columns differ from those given.
    """
    # Defaults are not checked: they describe a new topic only.
    given = {option for option in _CREATING if was_given(option)}
    if not given and not is_other:
        return
    for is_wrong, option, truth in _truths(client, name, create, given, is_other):
        if is_wrong:
            raise click.UsageError(
                f"{option}: topic {name!r} exists and has {truth}. Leave the option out; "
                "`quiverlog topic alter` changes a topic."
            )


def _truths(
    client: Client, name: str, create: dict[str, Any], given: set[str], is_other: bool
) -> list[tuple[bool, str, str]]:
    """Return (whether the topic differs, option, what the topic has) for each given option."""
    detail = client.describe_topic(name)
    configs = {key: config.value for key, config in detail.configs.items()}
    truths: list[tuple[bool, str, str]] = []
    if "partitions" in given:
        count = len(detail.partitions)
        truths.append((create["partitions"] != count, "--partitions", str(count)))
    if "replication_factor" in given:
        factor = detail.replication_factor
        truths.append((create["replication_factor"] != factor, "--replication-factor", str(factor)))
    if "key" in given:
        key = list(detail.key_columns)
        truths.append((list(create["key"]) != key, "--key", ",".join(key) or "no key"))
    truths.append((is_other, "--schema", "other columns"))
    for option, value in create["config"].items():
        if option not in configs:
            raise click.UsageError(f"--config {option}: topics have no such configuration.")
        truths.append((configs[option] != value, f"--config {option}", str(configs[option])))
    return truths


def schema_from_options(schema: str | None, schema_file: Path | None) -> pa.Schema | None:
    from quiverlog.batch.schema_text import SchemaSyntaxError, parse_schema
    from quiverlog.cli.formats.schema_file import load_schema

    if schema is not None and schema_file is not None:
        raise click.UsageError("Give --schema or --schema-file, not both.")
    try:
        if schema_file is not None:
            return load_schema(schema_file)
        if schema is None:
            return None
        if schema.strip().lower() == "raw":
            from quiverlog.batch.schema import RAW_SCHEMA

            return RAW_SCHEMA
        return parse_schema(schema)
    except SchemaSyntaxError as error:
        hint = "--schema" if schema_file is None else "--schema-file"
        raise click.BadParameter(f"{error}.", param_hint=hint) from error
