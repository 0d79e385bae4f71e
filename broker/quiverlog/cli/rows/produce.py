"""`quiverlog produce`: append the rows of a file, or of stdin, to a topic."""

from __future__ import annotations

import contextlib
import sys
import time
from collections import deque
from typing import TYPE_CHECKING, Any

import click

from quiverlog.cli.console.failures import CommandFailed, ExitCode, explain, one_line
from quiverlog.cli.console.lean_imports import lean_imports
from quiverlog.cli.console.options import (
    INT64_MAX,
    bootstrap_option,
    columns_callback,
    config_option,
    debug_option,
    format_option,
    given_timeout_s,
    open_client,
    topic_option,
    without_end,
)
from quiverlog.cli.console.output import counted, human_bytes, human_count, print_json, print_table
from quiverlog.cli.formats.new_topic import new_topic_options
from quiverlog.cli.rows.produce_progress import Progress, shown_progress
from quiverlog.cli.rows.produce_topic import TargetTopic
from quiverlog.errors import QuiverlogError, SchemaMismatch
from quiverlog.limits import MIB

if TYPE_CHECKING:
    from quiverlog.cli.formats.read_files import Source
    from quiverlog.client.client import Client

__all__ = ["produce"]

_FORMATS = ("auto", "csv", "tsv", "json", "parquet", "arrow", "lines")
_FUTURES_KEPT_MAX = 64
"""Unread outcomes; the producer's own buffer bounds the bytes."""
_BATCH_BYTES = 4 * MIB
_BATCH_ROWS = 262_144
"""For a file. A pipe's batches end by the producer's linger."""
_FAILED_WAIT_S = 10.0
"""The wait for sends in flight after a failure."""
_INTERRUPTED_WAIT_S = 5.0
"""The wait after Ctrl-C."""


@click.command()
@click.argument("file", metavar="FILE|-", type=click.Path(allow_dash=True))
@topic_option
@click.option(
    "--input-format",
    type=click.Choice(_FORMATS),
    default="auto",
    show_default=True,
    help="`auto` goes by the file's suffix (.csv .tsv .json .jsonl .ndjson .parquet .arrow "
    ".feather .ipc .arrows, and .gz .bz2 .zst .lz4 behind it), of stdin and of a name without one "
    "by the first bytes; `json` is one object per line; `lines` puts each line into the column "
    "`value`, or into the only one.",
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
@click.option(
    "--delimiter",
    default=",",
    show_default=True,
    metavar="CHAR",
    help="Of a CSV file; \\t is a tab.",
)
@click.option(
    "--encoding",
    default="utf-8",
    show_default=True,
    metavar="NAME",
    help="Of text, e.g. latin1, cp1252 or utf-16.",
)
@click.option(
    "--create",
    is_flag=True,
    help="Create the topic if it is not there, as soon as the first rows can be sent.",
)
@new_topic_options("With --create. ", " Inferred when not given.")
@config_option
@click.option(
    "--partition", type=click.IntRange(0, INT64_MAX), help="Send all rows to this partition."
)
@click.option("--compression", type=click.Choice(["none", "lz4", "zstd"]), help="Of the batches.")
@click.option(
    "--durability",
    type=click.Choice(["memory", "flushed", "replicated", "replicated_flushed"]),
    help="Wait for more than the topic asks for.",
)
@click.option("--quiet", "-q", is_flag=True, help="No progress.")
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
    encoding: str,
    quiet: bool,
    bootstrap: str,
    timeout_s: float,
    output_format: str,
    partition: int | None,
    compression: str | None,
    durability: str | None,
    **create: Any,
) -> None:
    """Append the rows of FILE (CSV, JSON lines, Parquet, Arrow; `-` is stdin) to a topic.

    Rows that come through a pipe are sent as they come. Ctrl-C prints how many are stored. Options
    that describe a new topic may be given for one that exists, if they are true of it. Compressed
    text is unpacked by the name's suffix; stdin, and a name without a suffix, by the first bytes. A
    CSV column without a name is called `index` or `column_N`, of two of one name the second
    `name_1`; numbers with zeros in front are text, unless --schema or the topic has another type.
    """
    _import_reader_and_client()
    from quiverlog.cli.formats.read_files import format_by_name, open_source

    delimiter = "\t" if delimiter == "\\t" else delimiter
    if len(delimiter) != 1 or not delimiter.isascii() or delimiter in '"\r\n':
        raise click.UsageError(
            "--delimiter is one character of ASCII, \\t for a tab, and no quote or line's end."
        )
    if input_format == "auto":
        format_by_name(file)  # refuses a suffix before anything is opened
    options = {
        "partition": partition,
        "compression": compression,
        "durability": durability,
        "delivery_timeout": given_timeout_s(),
    }
    given = {name: value for name, value in options.items() if value is not None}
    outcome = _Outcome()
    with (
        open_client(bootstrap, timeout_s=timeout_s) as client,
        TargetTopic(client, topic, create, is_quiet=quiet) as target,
        open_source(
            file,
            input_format,
            schema=target.schema,
            columns=columns,
            null_values=null_values,
            delimiter=delimiter,
            encoding=encoding,
            warn=_warn,
        ) as source,
    ):
        if target.make_for(source, given):
            outcome.started_s = time.monotonic()
            shown = shown_progress(file, source, outcome.rows_so_far, is_quiet=quiet)
            with shown as progress:
                _send(client, target, source, given, progress, outcome)
    _report(topic, outcome, output_format)


def _warn(note: str) -> None:
    print(f"quiverlog: {one_line(note)}.", file=sys.stderr)


def _import_reader_and_client() -> None:
    # Imports are most of a small file's time.
    with lean_imports("numpy"):
        import quiverlog.cli.formats.read_csv
        import quiverlog.cli.formats.read_files
        import quiverlog.client.client  # noqa: F401


class _Outcome:
    def __init__(self) -> None:
        self.started_s = time.monotonic()
        self.seconds = 0.0
        self.rows = 0
        self.byte_count = 0
        self.partitions: dict[int, dict[str, Any]] = {}
        self.futures: deque[Any] = deque()

    def rows_so_far(self) -> int:
        """Return the acknowledged rows, with those of unread futures. Safe from any thread."""
        done = [future for future in tuple(self.futures) if future.done()]
        uncollected: int = sum(entry.rows for future in done for entry in future.produced)
        return self.rows + uncollected

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
    client: Client,
    target: TargetTopic,
    source: Source,
    options: dict[str, Any],
    progress: Progress,
    outcome: _Outcome,
) -> None:
    futures = outcome.futures
    rows_before = 0
    with lean_imports():  # Not earlier: the first blocks of a file are parsed meanwhile.
        import quiverlog.client.producer.producer  # noqa: F401
    with client.producer(
        target.name, batch_bytes=_BATCH_BYTES, batch_rows=_BATCH_ROWS, **options
    ) as producer:
        failed_wait_s = min(_FAILED_WAIT_S, client.cluster.patience_s / 5)
        without_end(client)  # Each batch has its own timeout.
        try:
            for batch in source.batches:
                outcome.byte_count += batch.nbytes
                futures.append(producer.send(batch))
                rows_before += batch.num_rows
                while futures and (len(futures) > _FUTURES_KEPT_MAX or futures[0].done()):
                    outcome.add(futures.popleft().result())
                progress.show(source.progress.done)
            producer.flush()
            while futures:
                outcome.add(futures.popleft().result())
        except (CommandFailed, QuiverlogError) as error:
            located = _in_the_file(error, rows_before)
            failure = _with_stored_rows(located, outcome, futures, target, failed_wait_s)
            producer.abort()  # `close` would wait again for the failed batches.
            raise failure from error
        except KeyboardInterrupt as error:
            with contextlib.suppress(QuiverlogError):
                producer.flush(_INTERRUPTED_WAIT_S)
            failure = _interrupted(outcome, futures, target)
            producer.abort()  # `close` would flush again, and wait.
            raise failure from error
        progress.show(source.progress.done)
    outcome.seconds = time.monotonic() - outcome.started_s


def _in_the_file(error: Exception, rows_before: int) -> Exception:
    if isinstance(error, SchemaMismatch) and isinstance(row := error.details.get("row"), int):
        place = f"row {rows_before + row} of the file (the first is 0)"
        error.message = error.message.replace(f"row {row}", place, 1)
    return error


def _interrupted(outcome: _Outcome, futures: deque[Any], target: TargetTopic) -> CommandFailed:
    missing = _collect(outcome, futures, 0.0)  # The flush has waited already.
    stored = f"{_rows(outcome.rows, 'is', 'are')} stored in {target.name} and acknowledged"
    unsure = "; what was sent after them was not acknowledged in time" if missing else ""
    return CommandFailed(f"interrupted: {stored}{unsure}.", ExitCode.INTERRUPTED)


def _rows(count: int, one: str, more: str) -> str:
    return f"{counted(count, 'row', 'rows')} {one if count == 1 else more}"


def _collect(outcome: _Outcome, futures: deque[Any], seconds: float) -> int:
    """Record acknowledgements for up to `seconds`; return how many sends have none."""
    missing = 0
    deadline_s = time.monotonic() + seconds
    for future in futures:
        try:
            outcome.add(future.result(timeout=max(0.0, deadline_s - time.monotonic())))
        except QuiverlogError:
            missing += 1
    return missing


def _with_stored_rows(
    error: Exception,
    outcome: _Outcome,
    futures: deque[Any],
    target: TargetTopic,
    wait_s: float,
) -> Exception:
    missing = _collect(outcome, futures, wait_s)
    if outcome.rows:
        left = f"{_rows(outcome.rows, 'was', 'were')} stored in {target.name} before that."
    elif target.is_made:
        left = target.note_when_empty(is_sure=not missing)
    else:
        return error
    text, code = explain(error)
    return CommandFailed(f"{text.rstrip('.')}. {left}", code)


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
        f"{counted(outcome.rows, 'row', 'rows')} to {topic}, {human_bytes(outcome.byte_count)} in "
        f"{outcome.seconds:.2f} s ({human_count(rate)} rows/s)"
    )
