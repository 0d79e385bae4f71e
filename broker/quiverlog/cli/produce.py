"""`quiverlog produce`: append the rows of a file, or of stdin, to a topic."""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from quiverlog.cli.failures import CommandFailed, explain
from quiverlog.cli.new_topic import new_topic_options, schema_from_options
from quiverlog.cli.options import (
    INT32_MAX,
    bootstrap_option,
    columns_callback,
    config_option,
    debug_option,
    format_option,
    open_client,
    topic_option,
)
from quiverlog.cli.output import console, human_bytes, human_count, print_json, print_table
from quiverlog.cli.terminal import printable
from quiverlog.errors import QuiverlogError, UnknownTopic

if TYPE_CHECKING:
    import pyarrow as pa

    from quiverlog.cli.read_files import Source
    from quiverlog.client.client import Client

__all__ = ["produce"]

_FORMATS = ("auto", "csv", "json", "parquet", "arrow", "lines")
_FUTURES_KEPT_MAX = 64
"""Sends whose outcome is not looked at yet; the producer's own buffer bounds the bytes."""
_FAILED_WAIT_S = 10.0
"""After a failure, so long for each send that is still on its way."""


@click.command()
@click.argument("file", metavar="FILE|-")
@topic_option
@click.option(
    "--input-format",
    type=click.Choice(_FORMATS),
    default="auto",
    show_default=True,
    help="`auto` goes by the file's name, then by its first bytes; `json` is one object per line; "
    "`lines` puts each line into the column `value`.",
)
@click.option("--columns", callback=columns_callback, metavar="COLUMN,...", help="Take only these.")
@click.option(
    "--null",
    "null_values",
    multiple=True,
    default=("",),
    metavar="TEXT",
    help="A CSV field that stands for no value; may be repeated. [default: empty]",
)
@click.option("--delimiter", default=",", show_default=True, metavar="CHAR", help="Of a CSV file.")
@click.option("--create", is_flag=True, help="Create the topic if it is not there.")
@new_topic_options("With --create. ", " Inferred when not given.")
@config_option
@click.option(
    "--partition", type=click.IntRange(0, INT32_MAX), help="Send all rows to this partition."
)
@click.option("--compression", type=click.Choice(["none", "lz4", "zstd"]), help="Of the batches.")
@click.option("--durability", type=click.Choice(["memory", "flushed", "replicated"]))
@click.option("--quiet", "-q", is_flag=True, help="No progress bar.")
@bootstrap_option
@format_option()
@debug_option
def produce(
    file: str,
    topic: str,
    input_format: str,
    columns: list[str] | None,
    null_values: tuple[str, ...],
    delimiter: str,
    quiet: bool,
    bootstrap: str,
    timeout_s: float,
    output_format: str,
    partition: int | None,
    compression: str | None,
    durability: str | None,
    **create: Any,
) -> None:
    """Append the rows of FILE (CSV, JSON lines, Parquet, Arrow; `-` is stdin) to a topic."""
    from quiverlog.cli.read_files import open_source

    if len(delimiter) != 1:
        raise click.UsageError("--delimiter is one character.")
    with open_client(bootstrap, timeout_s=timeout_s) as client:
        schema = _schema_to_read_with(client, topic, create)
        with open_source(
            file,
            input_format,
            schema=schema,
            columns=columns,
            null_values=null_values,
            delimiter=delimiter,
        ) as source:
            if create["create"]:
                _create_topic(client, topic, schema or source.schema, create)
            options = {"partition": partition, "compression": compression, "durability": durability}
            given = {name: value for name, value in options.items() if value is not None}
            with _progress(file, source, quiet=quiet) as tick:
                outcome = _send(client, topic, source, given, tick)
    _report(topic, outcome, output_format)


def _schema_to_read_with(client: Client, topic: str, create: dict[str, Any]) -> pa.Schema | None:
    """The columns to read the file with: the topic's, or those of the new topic; None: infer."""
    asked = schema_from_options(create["schema"], create["schema_file"])
    if asked is not None and not create["create"]:
        raise click.UsageError(
            "--schema needs --create; a topic's columns change by `topic alter`."
        )
    if topic in client.metadata([topic]).topics:
        current: pa.Schema = client.schemas(topic).current
        return current
    if not create["create"]:
        raise UnknownTopic(f"There is no topic {topic!r}; --create makes it.", topic=topic)
    return asked


def _create_topic(client: Client, topic: str, schema: pa.Schema, create: dict[str, Any]) -> None:
    client.create_topic(
        topic,
        schema,
        partitions=create["partitions"],
        replication_factor=create["replication_factor"],
        key=create["key"],
        config=create["config"],
        if_not_exists=True,
    )


class _Outcome:
    """The acknowledged rows and their offsets, per partition."""

    def __init__(self) -> None:
        self.started_s = time.monotonic()
        self.seconds = 0.0
        self.rows = 0
        self.byte_count = 0
        self.partitions: dict[int, dict[str, Any]] = {}

    def add(self, acknowledged: list[Any]) -> None:
        for produced in acknowledged:
            entry = self.partitions.setdefault(
                produced.partition,
                {
                    "partition": produced.partition,
                    "rows": 0,
                    "first_offset": produced.base_offset,
                    "last_offset": -1,
                    "durability": produced.durability.label,
                },
            )
            entry["rows"] += produced.rows
            entry["first_offset"] = min(entry["first_offset"], produced.base_offset)
            entry["last_offset"] = max(entry["last_offset"], produced.next_offset - 1)
            self.rows += produced.rows


def _send(
    client: Client, topic: str, source: Source, options: dict[str, Any], tick: Any
) -> _Outcome:
    outcome = _Outcome()
    futures: deque[Any] = deque()
    with client.producer(topic, **options) as producer:
        try:
            for batch in source.batches:
                outcome.byte_count += batch.nbytes
                futures.append(producer.send(batch))
                while len(futures) > _FUTURES_KEPT_MAX:
                    outcome.add(futures.popleft().result())
                tick(source.progress.done)
            producer.flush()
            while futures:
                outcome.add(futures.popleft().result())
        except (CommandFailed, QuiverlogError) as error:
            raise _with_rows_stored(error, outcome, futures, topic) from error
        tick(source.progress.done)
    outcome.seconds = time.monotonic() - outcome.started_s
    return outcome


def _with_rows_stored(
    error: Exception, outcome: _Outcome, futures: deque[Any], topic: str
) -> Exception:
    """A file that breaks off half way leaves rows behind: the person must know how many."""
    for future in futures:
        with contextlib.suppress(QuiverlogError):
            outcome.add(future.result(timeout=_FAILED_WAIT_S))
    if not outcome.rows:
        return error
    text, code = explain(error)
    stored = f"{human_count(outcome.rows)} rows were stored in {topic} before that."
    return CommandFailed(f"{text.rstrip('.')}. {stored}", code)


@contextlib.contextmanager
def _progress(file: str, source: Source, *, quiet: bool) -> Iterator[Any]:
    """A bar on stderr; a callable that takes how far the file was read."""
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    amount = MofNCompleteColumn() if source.total_is_rows else DownloadColumn()
    shown = console(stderr=True)
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        amount,
        TimeRemainingColumn(),
        console=shown,
        disable=quiet or not shown.is_terminal,
        transient=True,
    ) as bar:
        name = "stdin" if file == "-" else printable(Path(file).name).replace("[", "\\[")
        task = bar.add_task(name, total=source.total)
        yield lambda done: bar.update(task, completed=done)


def _report(topic: str, outcome: _Outcome, output_format: str) -> None:
    partitions = [outcome.partitions[number] for number in sorted(outcome.partitions)]
    if output_format == "json":
        print_json(
            {
                "topic": topic,
                "rows": outcome.rows,
                "bytes": outcome.byte_count,
                "seconds": outcome.seconds,
                "partitions": partitions,
            }
        )
        return
    if partitions:
        print_table(
            ["PARTITION", "ROWS", "FIRST OFFSET", "LAST OFFSET", "DURABILITY"],
            [tuple(entry.values()) for entry in partitions],
            right=["PARTITION", "ROWS", "FIRST OFFSET", "LAST OFFSET"],
        )
    rate = outcome.rows / outcome.seconds if outcome.seconds else 0.0
    print(
        f"{human_count(outcome.rows)} rows to {topic}, {human_bytes(outcome.byte_count)} in "
        f"{outcome.seconds:.2f} s ({human_count(rate)} rows/s)"
    )
