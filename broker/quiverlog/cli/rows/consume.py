"""`quiverlog consume`: print a topic's rows, or save them to a file."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from quiverlog.cli.console.options import (
    INT64_MAX,
    bootstrap_option,
    columns_callback,
    complete_topics,
    debug_option,
    open_client,
    without_end,
)
from quiverlog.cli.formats.formats import FileKind, kind_of
from quiverlog.cli.formats.output_file import check_free, force_option, output_kind
from quiverlog.cli.rows.read_range import Point, ends, parse_point, starts

if TYPE_CHECKING:
    import pyarrow as pa

    from quiverlog.cli.formats.write_files import Sink
    from quiverlog.cli.rows.row_selection import RowFilter, RowSelection
    from quiverlog.client.client import Client
    from quiverlog.client.rows.decoding import ConsumerBatch

__all__ = ["consume"]

_FORMATS = ("table", "json", "csv", "tsv", "lines", "arrow", "parquet")
_TAIL_ROWS_MAX = 1_000_000
"""Bound on the rows of each partition that lie in memory."""
_FOLLOW_REQUEST_TIMEOUT_S = 5.0
"""A silent broker is asked again after this time; --follow waits out any outage."""


@dataclass(frozen=True, slots=True)
class _Request:
    topics: list[str]
    start: Point
    end: Point | None
    tail: int | None
    follow: bool
    max_rows: int | None
    columns: list[str] | None
    partitions: list[int]
    metadata: bool
    where: str | None
    template: list[Any] | None
    wide: bool
    skip_corrupt: bool
    output: str
    force: bool
    kind: FileKind
    group: str | None

    @property
    def topic(self) -> str:
        return self.topics[0]


_Places = dict[tuple[str, int], int]
"""Topic and partition -> offset."""


@click.command()
@click.argument("names", metavar="[TOPIC]...", nargs=-1, shell_complete=complete_topics)
@click.option(
    "--topic",
    "-t",
    "others",
    multiple=True,
    metavar="NAME",
    shell_complete=complete_topics,
    help="The same as TOPIC.",
)
@click.option(
    "--from",
    "start",
    metavar="earliest|latest|TIME|AGO|OFFSET|PARTITION=OFFSET,...",
    help="Where to begin. TIME is ISO 8601, UTC if it names no zone; AGO is like -1h or '2d ago' "
    "(ms, s, m, h, d, w); OFFSET is that of each partition; partitions that are not named by "
    "PARTITION=OFFSET are not read. [default: earliest]",
)
@click.option(
    "--to",
    "end",
    metavar="latest|TIME|AGO|OFFSET|PARTITION=OFFSET,...",
    help="Where to end, in the forms of --from; the row there is not read. [default: latest, as it "
    "is now]",
)
@click.option(
    "--tail",
    type=click.IntRange(0, _TAIL_ROWS_MAX),
    metavar="ROWS",
    help="Only the topic's last ROWS, whose batches are in the order of time; with --follow, go on "
    "from there.",
)
@click.option(
    "--follow",
    "-f",
    is_flag=True,
    help="Wait for new rows instead of ending; a broker that goes away is waited for.",
)
@click.option(
    "--max-rows", "-n", type=click.IntRange(0, INT64_MAX), help="Stop after this many rows."
)
@click.option("--columns", callback=columns_callback, metavar="COLUMN,...", help="Show only these.")
@click.option(
    "--where",
    metavar="SQL",
    help='Only rows for which this expression of DuckDB is true, e.g. "price > 10 and city like '
    "'O%'\"; it may also use _topic, _partition, _offset and _timestamp. Needs the package duckdb.",
)
@click.option(
    "--partition",
    "partitions",
    multiple=True,
    type=click.IntRange(0, INT64_MAX),
    help="May be repeated.",
)
@click.option(
    "--group",
    "-g",
    metavar="NAME",
    help="Share the topics with the other members of this group, go on where it is, and commit "
    "what was written. --from is for partitions without a committed offset.",
)
@click.option(
    "--metadata", is_flag=True, help="Add _topic, _partition, _offset and _timestamp to each row."
)
@click.option(
    "--output",
    "-o",
    type=click.Path(dir_okay=False, allow_dash=True),
    default="-",
    help="Write to this file instead of stdout. Its suffix names the format (.csv .tsv .json "
    ".jsonl .ndjson .parquet .arrow .feather .ipc .arrows) and the compression (.gz .bz2 .zst .lz4 "
    "behind it).",
)
@force_option
@click.option(
    "--format",
    "output_format",
    type=click.Choice(_FORMATS),
    help="[default: by the output's name, else table] `json` is one object per line, `lines` the "
    "column `value` alone (or the only column), `arrow` the IPC stream format.",
)
@click.option(
    "--template",
    metavar="TEXT",
    help="Write each row like this: %t topic, %p partition, %o offset, %T time in ms, %k key, %s "
    "the column `value` or the row as JSON, %{name} a column, %% a percent, \\n \\t.",
)
@click.option("--wide", is_flag=True, help="Cut nothing in a terminal's table.")
@click.option(
    "--skip-corrupt",
    is_flag=True,
    help="Step over rows that cannot be decoded, a stored batch at a time, and warn of each.",
)
@bootstrap_option
@debug_option
def consume(
    names: tuple[str, ...],
    others: tuple[str, ...],
    start: str | None,
    end: str | None,
    tail: int | None,
    follow: bool,
    max_rows: int | None,
    columns: list[str] | None,
    where: str | None,
    partitions: tuple[int, ...],
    group: str | None,
    metadata: bool,
    output: str,
    force: bool,
    output_format: str | None,
    template: str | None,
    wide: bool,
    skip_corrupt: bool,
    bootstrap: str,
    timeout_s: float,
) -> None:
    """Print the rows of a topic, in the order of each partition; of several, as they come.

    Several topics need the same columns: choose those with --columns.

    A terminal's table cuts long values (--wide does not); a pipe and a file get them whole. What
    the formats csv, tsv, json and lines write, `produce` reads back exactly; a column that a format
    cannot hold is refused by its name.
    """
    _check_contradictions(start, end, tail, where, follow=follow)
    request = _Request(
        topics=_topics(names, others),
        start=parse_point(start or "earliest", "--from"),
        end=None if end is None else parse_point(end, "--to"),
        tail=tail,
        follow=follow,
        max_rows=max_rows,
        columns=columns,
        partitions=sorted(set(partitions)),
        metadata=metadata,
        where=where,
        template=_template(template, output_format),
        wide=wide,
        skip_corrupt=skip_corrupt,
        output=output,
        force=force,
        kind=_kind(output, output_format, is_template=template is not None),
        group=group,
    )
    _check_kind(request)
    _check_several(request)
    _check_group(request)
    check_free(output, force=force)
    request_timeout_s = _FOLLOW_REQUEST_TIMEOUT_S if follow else None
    with open_client(bootstrap, timeout_s=timeout_s, request_timeout_s=request_timeout_s) as client:
        _consume(client, request)


def _topics(names: tuple[str, ...], others: tuple[str, ...]) -> list[str]:
    found = list(dict.fromkeys((*names, *others)))
    if not found:
        raise click.UsageError("Name the topic: quiverlog consume TOPIC.")
    return found


def _check_several(request: _Request) -> None:
    if len(request.topics) == 1:
        return
    for option, is_given in (
        ("--tail", request.tail is not None),
        ("--partition", bool(request.partitions)),
        ("--from PARTITION=OFFSET", isinstance(request.start, dict)),
        ("--to PARTITION=OFFSET", isinstance(request.end, dict)),
    ):
        if is_given:
            raise click.UsageError(f"{option} is for one topic: name one, or leave it out.")


def _check_group(request: _Request) -> None:
    if request.group is None:
        return
    for option, is_given in (
        ("--to", request.end is not None),
        ("--tail", request.tail is not None),
        ("--partition", bool(request.partitions)),
        ("--from with an offset", isinstance(request.start, int | dict)),
    ):
        if is_given:
            raise click.UsageError(
                f"{option} with --group: the group decides what is read. Leave one of them out."
            )


def _check_contradictions(
    start: str | None, end: str | None, tail: int | None, where: str | None, *, follow: bool
) -> None:
    if tail is not None and (start is not None or end is not None):
        raise click.UsageError("--tail sets both ends: leave --from and --to out.")
    if where is not None and not where.strip():
        raise click.UsageError("--where is empty: give a condition, or leave it out.")
    if follow and end is not None:
        raise click.UsageError("--follow has no end: leave --to out.")


def _template(template: str | None, output_format: str | None) -> list[Any] | None:
    if template is None:
        return None
    if output_format is not None:
        raise click.UsageError("--template is a format of its own: leave --format out.")
    from quiverlog.cli.formats.template import parse_template

    return parse_template(template)


def _kind(output: str, output_format: str | None, *, is_template: bool) -> FileKind:
    if is_template:
        return output_kind(output, "template", reads_offsets=True)
    if output_format == "arrow" and output != "-":
        with contextlib.suppress(click.UsageError):
            named = kind_of(output, option="--format")
            if named.format == "arrow-file":
                return named
    return output_kind(output, output_format, reads_offsets=True)


def _check_kind(request: _Request) -> None:
    name = request.kind.format
    if name == "parquet":
        if request.follow and request.max_rows is None:
            raise click.UsageError(
                "A Parquet file has an end: give --max-rows, or leave out --follow."
            )
        if request.kind.compression is not None:
            raise click.UsageError("Parquet is compressed inside: leave the codec's suffix out.")
    if request.output == "-" and name in ("arrow", "parquet") and sys.stdout.isatty():
        raise click.UsageError(f"{name} is not for terminals: give --output, or a pipe.")


def _consume(client: Client, request: _Request) -> None:
    from quiverlog.cli.rows.row_selection import RowSelection

    current = _common(client, request)
    shown = _shown(request, current)
    full, row_filter = _filter(request, current)
    begin: _Places = {}
    for topic in request.topics if request.group is None else ():
        found = starts(client, topic, request.start, request.partitions, tail=request.tail)
        begin.update(((topic, p), offset) for p, offset in found.items())
    with _open_sink(client, request, shown, current) as sink:
        rows = RowSelection(
            sink,
            max_rows=request.max_rows,
            columns=_columns_written(request),
            places=_places(request, current),
            row_filter=row_filter,
            has_metadata=full,
        )
        if request.max_rows == 0:
            return
        if request.group is not None:
            _share(client, request, request.group, rows)
            return
        if request.tail is not None:
            end = _ends(client, begin, "latest")
            rows.take_last(_bounded(client, request, begin, end), request.tail)
            begin = end
            if not request.follow or rows.is_full:
                return
        if request.follow:
            _follow(client, request, begin, rows)
            return
        end = _ends(client, begin, request.end or "latest")
        for batch in _bounded(client, request, begin, end):
            rows.take(batch)
            if rows.is_full:
                return


def _common(client: Client, request: _Request) -> pa.Schema:
    """Return the columns of all topics: of several, those that are shown must be the same."""
    import pyarrow as pa

    from quiverlog.errors import InvalidArgument

    first = client.schemas(request.topic).current
    for topic in request.topics[1:]:
        other = client.schemas(topic).current
        chosen = [name for name in _fetched(request) or () if name in first.names]
        if chosen and set(chosen) <= set(other.names):
            first = pa.schema([first.field(name) for name in chosen])
            other = pa.schema([other.field(name) for name in chosen])
        if not first.equals(other):
            raise InvalidArgument(
                f"Topics {request.topic!r} and {topic!r} have different columns: "
                f"{_text(first)}; {_text(other)}. Choose columns that are the same with --columns, "
                "or consume one after the other."
            )
    return first


def _text(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema)


def _columns_written(request: _Request) -> list[str] | None:
    return request.columns if request.template is None else None


def _ends(client: Client, begin: _Places, point: Point) -> _Places:
    found: _Places = {}
    for topic in dict.fromkeys(topic for topic, _ in begin):
        partitions = sorted(p for t, p in begin if t == topic)
        at = ends(client, topic, point, partitions)
        found.update(((topic, p), offset) for p, offset in at.items())
    return found


def _bounded(
    client: Client, request: _Request, begin: _Places, end: _Places
) -> Iterator[ConsumerBatch]:
    # --to may lie before --from: then the partition has no rows.
    end = {p: max(begin[p], end[p]) for p in begin}
    options: dict[str, Any] = {"start": begin, "end": end, "partitions": sorted(begin)}
    options |= {"columns": _fetched(request), "skip_corrupt": request.skip_corrupt}
    with client.consumer(_read(begin), **options) as consumer:
        without_end(client)  # each wait for rows has a timeout of its own
        yield from consumer


def _read(begin: _Places) -> list[str]:
    return list(dict.fromkeys(topic for topic, _ in begin))


def _follow(client: Client, request: _Request, begin: _Places, rows: RowSelection) -> None:
    is_chosen = bool(request.partitions) or isinstance(request.start, dict)
    options: dict[str, Any] = {
        "start": begin,
        "follow": True,
        "columns": _fetched(request),
        "skip_corrupt": request.skip_corrupt,
        "partitions": sorted(begin) if is_chosen else None,  # new ones are read as they come
    }
    with client.consumer(_read(begin), **options) as consumer:
        without_end(client)
        client.cluster.waits.are_endless = True
        for batch in consumer:
            rows.take(batch)
            rows.flush()
            if rows.is_full:
                return


def _share(client: Client, request: _Request, group: str, rows: RowSelection) -> None:
    start: Any = request.start
    consumer = client.consumer(
        request.topics,
        group=group,
        start=start,
        columns=_fetched(request),
        skip_corrupt=request.skip_corrupt,
        commit="manual",
    )
    with consumer:
        without_end(client)
        client.cluster.waits.are_endless = request.follow
        while not rows.is_full:
            batch = consumer.poll(1.0)
            if batch is None:
                # It ends where the partitions end that the group has given to it.
                if not request.follow and consumer.assignment and not any(consumer.lag().values()):
                    return
                continue
            left = rows.left
            rows.take(batch)
            rows.flush()
            is_whole = left is None or left >= len(batch)
            if is_whole or request.where is None:
                written = len(batch) if is_whole else left or 0
                where = batch.topic, batch.partition
                consumer.commit({where: batch.base_offset + written}, sync=rows.is_full)


def _needs_place(request: _Request) -> bool:
    return request.metadata or request.where is not None or request.template is not None


def _fetched(request: _Request) -> list[str] | None:
    """Return the columns to fetch; None, all, for a condition or a template, which may use any."""
    return None if request.where is not None or request.template is not None else request.columns


def _shown(request: _Request, current: pa.Schema) -> pa.Schema:
    import pyarrow as pa

    from quiverlog.client.rows.metadata_columns import METADATA_SCHEMA
    from quiverlog.errors import InvalidArgument

    schema = current
    if request.columns is not None:
        unknown = [name for name in request.columns if name not in schema.names]
        if unknown and unknown[0] in METADATA_SCHEMA.names:
            hint = (
                "adds it: leave it out of --columns" if request.metadata else "adds it to each row"
            )
            raise InvalidArgument(
                f"{unknown[0]} is no column of topic {request.topic!r}: --metadata {hint}."
            )
        if unknown:
            raise InvalidArgument(
                f"Topic {request.topic!r} has no column {unknown[0]!r}; it has "
                f"{', '.join(schema.names)}."
            )
        schema = pa.schema([schema.field(name) for name in request.columns])
    places = _places(request, current) if request.metadata else ()
    return pa.schema([*schema, *(METADATA_SCHEMA.field(name) for name in places)])


def _places(request: _Request, current: pa.Schema) -> list[str]:
    """Return the sink's metadata columns; a topic's own columns hide those of their name."""
    from quiverlog.client.rows.metadata_columns import metadata_beside

    has_metadata = request.metadata or request.template is not None
    return metadata_beside(current).names if has_metadata else []


def _filter(request: _Request, current: pa.Schema) -> tuple[bool, RowFilter | None]:
    if request.where is None:
        return _needs_place(request), None
    from quiverlog.cli.rows.row_selection import RowFilter
    from quiverlog.client.rows.metadata_columns import with_metadata

    return True, RowFilter(request.where, with_metadata(current))


def _open_sink(
    client: Client, request: _Request, shown: pa.Schema, current: pa.Schema
) -> contextlib.AbstractContextManager[Sink]:
    from quiverlog.cli.formats.write_files import open_sink, open_template

    compression = request.kind.compression
    if request.template is not None:
        key = client.metadata([request.topic]).topics[request.topic].key_columns
        own = request.columns or current.names
        return open_template(
            request.output, current, request.template, key=key, own=own,
            compression=compression, force=request.force,
        )  # fmt: skip
    assert request.kind.format is not None
    is_cut = request.output == "-" and sys.stdout.isatty() and not request.wide
    return open_sink(
        request.output, request.kind.format, shown, compression=compression, is_cut=is_cut,
        force=request.force,
    )  # fmt: skip
