"""`quiverlog consume`: print a topic's rows, or save them to a file."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from quiverlog.cli.options import (
    INT32_MAX,
    INT64_MAX,
    bootstrap_option,
    columns_callback,
    debug_option,
    open_client,
    topic_option,
    whole_number,
)

if TYPE_CHECKING:
    import pyarrow as pa

    from quiverlog.client.client import Client

__all__ = ["consume", "parse_start"]

_FORMATS = ("table", "json", "csv", "arrow", "parquet")


@click.command()
@topic_option
@click.option(
    "--from",
    "start",
    default="earliest",
    show_default=True,
    metavar="earliest|latest|TIME|PARTITION=OFFSET,...",
    help="Where to begin. TIME is ISO 8601, UTC if it names no zone; partitions that are not named "
    "are not read.",
)
@click.option("--follow", "-f", is_flag=True, help="Wait for new rows instead of ending.")
@click.option(
    "--max-rows", "-n", type=click.IntRange(0, INT64_MAX), help="Stop after so many rows."
)
@click.option("--columns", callback=columns_callback, metavar="COLUMN,...", help="Read only these.")
@click.option(
    "--partition",
    "partitions",
    multiple=True,
    type=click.IntRange(0, INT32_MAX),
    help="May be repeated.",
)
@click.option(
    "--metadata", is_flag=True, help="Add _topic, _partition, _offset and _timestamp to each row."
)
@click.option(
    "--output",
    "-o",
    type=click.Path(dir_okay=False, allow_dash=True),
    default="-",
    help="Write to this file instead of stdout.",
)
@click.option(
    "--format",
    "output_format",
    type=click.Choice(_FORMATS),
    help="[default: by the output's name, else table] `json` is one object per line, `arrow` the "
    "IPC stream format.",
)
@bootstrap_option
@debug_option
def consume(
    topic: str,
    start: str,
    follow: bool,
    max_rows: int | None,
    columns: list[str] | None,
    partitions: tuple[int, ...],
    metadata: bool,
    output: str,
    output_format: str | None,
    bootstrap: str,
    timeout_s: float,
) -> None:
    """Print the rows of a topic, in the order of each partition."""
    from quiverlog.cli.write_files import format_of, open_sink

    file_format = output_format or format_of(output)
    if file_format == "parquet" and follow and max_rows is None:
        raise click.UsageError("A Parquet file has an end: give --max-rows, or leave out --follow.")
    if output == "-" and file_format in ("arrow", "parquet") and sys.stdout.isatty():
        raise click.UsageError(f"{file_format} is not for terminals: give --output, or a pipe.")
    wanted, numbers = parse_start(start), sorted(set(partitions))
    with open_client(bootstrap, timeout_s=timeout_s) as client:
        schema = _schema(client, topic, columns, metadata=metadata)
        _check_offsets(client, topic, wanted)
        with open_sink(output, file_format, schema) as sink:
            batches = _batches(
                client,
                topic,
                {
                    "start": _start(wanted, numbers),
                    "follow": follow,
                    "columns": columns,
                    "partitions": numbers or (sorted(wanted) if isinstance(wanted, dict) else None),
                },
                metadata=metadata,
                flush=sink.flush if follow else None,
            )
            for batch in _limited(batches, max_rows):
                sink.write(batch)


def parse_start(text: str) -> str | datetime | dict[int, int]:
    """Parse the value of `--from`.

    Raises:
        click.BadParameter: none of the forms.
    """
    word = text.strip()
    if word in ("earliest", "latest"):
        return word
    if "=" in word:
        offsets: dict[int, int] = {}
        for pair in word.split(","):
            left, _, right = pair.partition("=")
            partition, offset = whole_number(left, INT32_MAX), whole_number(right, INT64_MAX)
            if partition is None or offset is None:
                raise click.BadParameter(f"{pair!r} is not PARTITION=OFFSET.", param_hint="--from")
            offsets[partition] = offset
        return offsets
    try:
        moment = datetime.fromisoformat(word)
    except ValueError:
        raise click.BadParameter(
            f"{text!r} is not earliest, latest, an ISO time or PARTITION=OFFSET.",
            param_hint="--from",
        ) from None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def _start(wanted: str | datetime | dict[int, int], numbers: list[int]) -> Any:
    """Offsets name their partitions; --partition may narrow them further."""
    if isinstance(wanted, dict) and numbers:
        missing = sorted(set(numbers) - set(wanted))
        if missing:
            raise click.BadParameter(
                f"names no offset for partition {missing[0]}.", param_hint="--from"
            )
        return {number: wanted[number] for number in numbers}
    return wanted


def _check_offsets(client: Client, topic: str, wanted: str | datetime | dict[int, int]) -> None:
    """An offset beyond the end is a slip of the pen, not a wish to read nothing."""
    from quiverlog.errors import OffsetOutOfRange

    if not isinstance(wanted, dict):
        return
    firsts = client.list_offsets(topic, at=dict.fromkeys(wanted, "earliest"))
    ends = client.list_offsets(topic, at=dict.fromkeys(wanted, "latest"))
    for partition, offset in wanted.items():
        first, end = firsts[partition] or 0, ends[partition] or 0
        if not first <= offset <= end:
            raise OffsetOutOfRange(
                f"Offset {offset} of {topic}-{partition} is not in its range, {first} to {end}."
            )


def _schema(client: Client, topic: str, columns: list[str] | None, *, metadata: bool) -> pa.Schema:
    """The columns of the rows to come, known before the first of them is."""
    import pyarrow as pa

    from quiverlog.errors import InvalidArgument

    schema = client.schemas(topic).current
    if columns is not None:
        unknown = [name for name in columns if name not in schema.names]
        if unknown:
            raise InvalidArgument(
                f"Topic {topic!r} has no column {unknown[0]!r}; it has {', '.join(schema.names)}."
            )
        schema = pa.schema([schema.field(name) for name in columns])
    if metadata:
        schema = pa.schema([*schema, *_metadata_fields()])
    return schema


def _metadata_fields() -> list[pa.Field]:
    import pyarrow as pa

    return [
        pa.field("_topic", pa.string()),
        pa.field("_partition", pa.int32()),
        pa.field("_offset", pa.int64()),
        pa.field("_timestamp", pa.timestamp("us", "UTC")),
    ]


def _batches(
    client: Client, topic: str, options: dict[str, Any], *, metadata: bool, flush: Any
) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    with client.consumer(topic, **options) as consumer:
        for batch in consumer:
            data = batch.data
            if metadata:
                rows = data.num_rows
                values = (
                    pa.repeat(pa.scalar(batch.topic), rows),
                    pa.repeat(pa.scalar(batch.partition, pa.int32()), rows),
                    batch.offsets,
                    batch.timestamps,
                )
                data = pa.RecordBatch.from_arrays(
                    [*data.columns, *values],
                    schema=pa.schema([*data.schema, *_metadata_fields()]),
                )
            yield data
            if flush is not None:
                flush()


def _limited(batches: Iterator[pa.RecordBatch], rows_max: int | None) -> Iterator[pa.RecordBatch]:
    left = rows_max
    if left == 0:
        return
    for batch in batches:
        if left is None:
            yield batch
            continue
        yield batch.slice(0, left)
        left -= min(left, batch.num_rows)
        if left == 0:
            return
