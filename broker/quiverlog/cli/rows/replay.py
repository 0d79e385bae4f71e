"""`quiverlog replay`: the rows of a past micro-batch of a Spark query, from its checkpoint."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final

import click

from quiverlog.cli.console.failures import CommandFailed
from quiverlog.cli.console.options import bootstrap_option, debug_option, open_client
from quiverlog.cli.console.output import counted, print_json, print_table
from quiverlog.cli.formats.output_file import check_free, force_option, output_kind
from quiverlog.errors import InvalidArgument

if TYPE_CHECKING:
    from quiverlog.cli.formats.formats import FileKind
    from quiverlog.client.replay.checkpoint import Checkpoint
    from quiverlog.client.replay.planned import PlannedRange
    from quiverlog.client.replay.replay import Replay

__all__ = ["replay"]

_FORMATS: Final = ("table", "json", "csv", "tsv", "lines", "arrow", "parquet")
_FOR_PEOPLE: Final = ("table", "json", "csv", "tsv", "lines")
_SHOWN_RANGES: Final = 4


@click.command()
@click.argument("checkpoint", metavar="CHECKPOINT")
@click.option("--list", "lists", is_flag=True, help="List the micro-batches; asks no broker.")
@click.option("--batch", type=click.IntRange(0), help="Spark's batch id. [default: the last one]")
@click.option("--source", metavar="NAME", help="Which source, where a query has several (0, 1).")
@click.option("--columns", metavar="NAME,...", help="Only these columns, in this order.")
@click.option("--allow-gone", is_flag=True, help="Where rows are gone, write the others.")
@click.option(
    "--format",
    "output_format",
    type=click.Choice(_FORMATS),
    help="[default: by the output's name, else table] As those of `consume`.",
)
@click.option(
    "--output",
    "-o",
    type=click.Path(dir_okay=False, allow_dash=True),
    default="-",
    help="Write to this file instead of stdout; its suffix names format and compression.",
)
@force_option
@bootstrap_option
@debug_option
def replay(
    checkpoint: str,
    lists: bool,
    batch: int | None,
    source: str | None,
    columns: str | None,
    allow_gone: bool,
    output_format: str | None,
    output: str,
    force: bool,
    bootstrap: str,
    timeout_s: float,
) -> None:
    """Write the rows that a past micro-batch of a Spark query has read.

    CHECKPOINT is the query's checkpointLocation: a folder, or a URI (s3://, gs://, hdfs://). It is
    read and never changed. A query that failed has failed at the last micro-batch, the default.
    Rows may be gone by now (retention, a deleted topic): the error names them.

    \b
    quiverlog replay checkpoints/late --list
    quiverlog replay checkpoints/late --batch 17 -o batch-17.parquet
    """
    from quiverlog.client.replay.checkpoint import Checkpoint

    if lists:
        if output != "-" or output_format not in (None, "table", "json"):
            raise click.UsageError("--list is a table or --format json, on stdout.")
        _list(Checkpoint(checkpoint), source, is_json=output_format == "json")
        return
    kind = output_kind(output, output_format)
    if output == "-" and kind.format not in _FOR_PEOPLE and sys.stdout.isatty():
        raise CommandFailed(f"{kind.format} is not for terminals: give --output.")
    check_free(output, force=force)
    names = [name.strip() for name in columns.split(",")] if columns else None
    with open_client(bootstrap, timeout_s=timeout_s) as client:
        found = client.replay(
            checkpoint, batch=batch, source=source, columns=names, allow_gone=allow_gone
        )
        _write(found, output, kind, force=force)
    for gone in found.gone:
        click.echo(f"Gone: {gone}.", err=True)
    if output != "-":
        rows = counted(found.rows_total, "row", "rows")
        click.echo(f"Micro-batch {found.batch}: {rows} written to {output}.", err=True)


def _write(found: Replay, output: str, kind: FileKind, *, force: bool) -> None:
    from quiverlog.cli.formats.write_files import open_sink

    assert kind.format is not None
    is_cut = output == "-" and sys.stdout.isatty()
    sink_of = open_sink(
        output, kind.format, found.schema, compression=kind.compression, is_cut=is_cut, force=force
    )
    with sink_of as sink:
        for rows in found:
            sink.write(rows)


def _list(checkpoint: Checkpoint, source: str | None, *, is_json: bool) -> None:
    rows = [row for number in checkpoint.numbers for row in _listed(checkpoint, number, source)]
    if is_json:
        print_json(rows)
        return
    names = ("batch", "planned", "done", "source", "rows", "ranges")
    cells = [[_ranges(row) if name == "ranges" else row[name] for name in names] for row in rows]
    print_table(names, cells, right=("batch", "rows"))


def _listed(checkpoint: Checkpoint, number: int, source: str | None) -> list[dict[str, Any]]:
    from quiverlog.client.replay.planned import planned_ranges

    batch = checkpoint.batch(number)
    found = []
    for name in batch.sources if source is None else [source]:
        row: dict[str, Any] = {
            "batch": number,
            "planned": batch.planned_at and batch.planned_at.isoformat(timespec="milliseconds"),
            "done": batch.is_committed,
            "source": name,
            "rows": None,
            "ranges": [],
            "problem": None,
        }
        try:
            ranges = planned_ranges(checkpoint, number, name)[1]
        except InvalidArgument as error:
            row["problem"] = error.message
        else:
            row["ranges"] = [_range(one) for one in ranges]
            if all(one.start is not None for one in ranges):
                row["rows"] = sum(one["end"] - one["start"] for one in row["ranges"])
        found.append(row)
    return found


def _range(one: PlannedRange) -> dict[str, Any]:
    start = None if one.start is None else one.start.offset
    return {"topic": one.topic, "partition": one.partition, "start": start, "end": one.end.offset}


def _ranges(row: dict[str, Any]) -> str:
    if row["problem"]:
        return str(row["problem"])
    shown = [
        f"{one['topic']}-{one['partition']} [{'first' if one['start'] is None else one['start']},"
        f" {one['end']})"
        for one in row["ranges"][:_SHOWN_RANGES]
    ]
    more = len(row["ranges"]) - len(shown)
    return ", ".join(shown) + (f", and {more} more" if more else "")
