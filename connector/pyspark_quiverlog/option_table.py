"""Every option of the data source, in one table.

Owns names, types, defaults, where each option applies, its documentation (docs/spark.md holds the
table generated from here). Names are those of Spark's Kafka source wherever the meaning is the
same. Must not know how options are given or what they do.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .option_types import (
    parse_addresses,
    parse_assignment,
    parse_boolean,
    parse_bytes,
    parse_choice,
    parse_count,
    parse_count_or_zero,
    parse_duration,
    parse_ending_offsets,
    parse_names,
    parse_pattern,
    parse_starting_offsets,
    parse_text,
    parse_timestamp_ms,
    parse_timestamps,
)

__all__ = ["OPTIONS", "OptionSpec", "Use", "markdown_table"]


class Use(enum.Flag):
    """Where an option means something."""

    STREAM_READ = enum.auto()
    BATCH_READ = enum.auto()
    STREAM_WRITE = enum.auto()
    BATCH_WRITE = enum.auto()
    READ = STREAM_READ | BATCH_READ
    WRITE = STREAM_WRITE | BATCH_WRITE
    ALL = READ | WRITE

    @property
    def label(self) -> str:
        """As the docs and the refusals write it."""
        return _USE_LABELS.get(self) or ", ".join(_USE_LABELS[part] for part in self)


_USE_LABELS: dict[Use, str] = {
    Use.STREAM_READ: "streaming read",
    Use.BATCH_READ: "batch read",
    Use.STREAM_WRITE: "streaming write",
    Use.BATCH_WRITE: "batch write",
    Use.READ: "read",
    Use.WRITE: "write",
    Use.ALL: "all",
}


# --- the table ------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class OptionSpec:
    """One option. `default` None: none, or it depends (then `default_doc` says on what)."""

    name: str
    field: str
    kind: str
    parse: Callable[[str], Any]
    use: Use
    doc: str
    default: str | None = None
    default_doc: str = ""
    aliases: tuple[str, ...] = ()

    @property
    def default_label(self) -> str:
        """As the docs show it."""
        return self.default_doc or (f"`{self.default}`" if self.default is not None else "none")


OPTIONS: tuple[OptionSpec, ...] = (
    OptionSpec(
        "bootstrap.servers",
        "bootstrap_servers",
        "addresses",
        parse_addresses,
        Use.ALL,
        "Brokers to ask first, `host:port` separated by commas. The others are learnt from them.",
        default_doc="required",
    ),
    OptionSpec(
        "subscribe",
        "subscribe",
        "names",
        parse_names,
        Use.READ,
        'Topics to read, separated by commas. `load("flights")` says the same.',
        default_doc="one of the three is required",
    ),
    OptionSpec(
        "subscribePattern",
        "subscribe_pattern",
        "regular expression",
        parse_pattern,
        Use.READ,
        "Read every topic whose whole name matches. A topic that appears while a streaming query "
        "runs is taken up, from its first row.",
        default_doc="one of the three is required",
    ),
    OptionSpec(
        "assign",
        "assign",
        "JSON",
        parse_assignment,
        Use.READ,
        'Read these partitions alone: `{"flights":[0,1]}`.',
        default_doc="one of the three is required",
    ),
    OptionSpec(
        "startingOffsets",
        "starting_offsets",
        "JSON",
        parse_starting_offsets,
        Use.READ,
        "Where a new query starts: `earliest`, `latest` (streaming only), or JSON per partition, "
        'where -2 stands for earliest and -1 for latest: `{"flights":{"0":23,"1":-2}}`. With '
        "JSON, each partition must be named. A restarted query goes on from its checkpoint; "
        "partitions found later start at their first row.",
        default_doc="`latest` for streaming, `earliest` for batch",
    ),
    OptionSpec(
        "startingTimestamp",
        "starting_timestamp",
        "milliseconds",
        parse_timestamp_ms,
        Use.READ,
        "Start at the first row whose timestamp is this moment or later, in every partition. "
        "Wins over the other starting options.",
    ),
    OptionSpec(
        "startingOffsetsByTimestamp",
        "starting_offsets_by_timestamp",
        "JSON",
        parse_timestamps,
        Use.READ,
        'The same per partition: `{"flights":{"0":1767225600000}}`. Wins over `startingOffsets`.',
    ),
    OptionSpec(
        "startingOffsetsByTimestampStrategy",
        "starting_strategy",
        "choice",
        parse_choice("error", "latest"),
        Use.READ,
        "When a partition has no row at or after the starting timestamp: fail (`error`) or start "
        "at its end (`latest`).",
        default="error",
    ),
    OptionSpec(
        "endingOffsets",
        "ending_offsets",
        "JSON",
        parse_ending_offsets,
        Use.BATCH_READ,
        "Where a batch ends (exclusive): `latest`, or JSON per partition, where -1 stands for "
        "latest.",
        default="latest",
    ),
    OptionSpec(
        "endingTimestamp",
        "ending_timestamp",
        "milliseconds",
        parse_timestamp_ms,
        Use.BATCH_READ,
        "End before the first row whose timestamp is this moment or later, in every partition. "
        "Wins over the other ending options.",
    ),
    OptionSpec(
        "endingOffsetsByTimestamp",
        "ending_offsets_by_timestamp",
        "JSON",
        parse_timestamps,
        Use.BATCH_READ,
        "The same per partition. Wins over `endingOffsets`.",
    ),
    OptionSpec(
        "maxOffsetsPerTrigger",
        "max_rows_per_trigger",
        "rows",
        parse_count,
        Use.STREAM_READ,
        "At most so many rows per micro-batch, shared over the partitions in proportion to what "
        "waits in each. `maxRowsPerTrigger` is the same.",
        aliases=("maxRowsPerTrigger",),
    ),
    OptionSpec(
        "maxBytesPerTrigger",
        "max_bytes_per_trigger",
        "bytes",
        parse_bytes,
        Use.STREAM_READ,
        "At most so many stored bytes per micro-batch, in whole batches, but never less than one "
        "batch. Works together with `maxOffsetsPerTrigger`.",
    ),
    OptionSpec(
        "minOffsetsPerTrigger",
        "min_rows_per_trigger",
        "rows",
        parse_count,
        Use.STREAM_READ,
        "Wait until so many rows are there. `minRowsPerTrigger` is the same.",
        aliases=("minRowsPerTrigger",),
    ),
    OptionSpec(
        "maxTriggerDelay",
        "max_trigger_delay",
        "duration",
        parse_duration,
        Use.STREAM_READ,
        "Wait no longer than this for `minOffsetsPerTrigger`.",
        default="15m",
    ),
    OptionSpec(
        "minPartitions",
        "min_partitions",
        "count",
        parse_count,
        Use.READ,
        "Split large ranges until there are about so many Spark tasks.",
    ),
    OptionSpec(
        "maxRecordsPerPartition",
        "max_rows_per_task",
        "rows",
        parse_count,
        Use.READ,
        "Split ranges until no Spark task reads more rows than this.",
    ),
    OptionSpec(
        "minRecordsPerPartition",
        "min_rows_per_task",
        "rows",
        parse_count_or_zero,
        Use.READ,
        "Ranges with fewer rows than this are read together in one Spark task (a task costs about "
        "30 ms). 0 gives each partition of the log its own task.",
        default="1000",
    ),
    OptionSpec(
        "failOnDataLoss",
        "fail_on_data_loss",
        "boolean",
        parse_boolean,
        Use.READ,
        "When rows that were to be read are gone (retention, truncation, a topic deleted or "
        "created anew): fail and name the ranges, or log them and go on.",
        default="true",
    ),
    OptionSpec(
        "failOnCorruptData",
        "fail_on_corrupt_data",
        "boolean",
        parse_boolean,
        Use.READ,
        "When stored rows cannot be decoded, or the broker finds them damaged: fail and name "
        "topic, partition and offsets, or log them and step over them. `failOnDataLoss` does not "
        "cover this.",
        default="true",
    ),
    OptionSpec(
        "columns",
        "columns",
        "names",
        parse_names,
        Use.READ,
        "Read these columns only, in this order; the others are not decoded. A schema given by "
        "`.schema(...)` says the same and may also widen types.",
    ),
    OptionSpec(
        "includeMetadata",
        "include_metadata",
        "boolean",
        parse_boolean,
        Use.READ,
        "Add the columns `_topic`, `_partition`, `_offset` and `_timestamp`.",
        default="false",
    ),
    OptionSpec(
        "fetch.max.bytes",
        "fetch_bytes",
        "bytes",
        parse_bytes,
        Use.READ,
        "Bytes asked for in one fetch of a task; two are in flight or in memory at a time.",
        default="4m",
    ),
    OptionSpec(
        "topic",
        "topic",
        "name",
        parse_text,
        Use.WRITE,
        "Topic to write to. Without it, each row names its topic in `topicColumn`. "
        '`save("delays")` says the same.',
        default_doc="this or a topic column is required",
    ),
    OptionSpec(
        "topicColumn",
        "topic_column",
        "name",
        parse_text,
        Use.WRITE,
        "Column (string, never null) that names each row's topic when `topic` is not set. It is "
        "not stored.",
        default="topic",
    ),
    OptionSpec(
        "partitionColumn",
        "partition_column",
        "name",
        parse_text,
        Use.WRITE,
        "Column (int) that names each row's partition; null leaves the choice to the topic's key "
        "columns. It is not stored. Without this option, a column `partition` is taken for it "
        "unless the topic's own schema has a column of that name.",
        default_doc="`partition`, when the topic has no such column",
    ),
    OptionSpec(
        "durability",
        "durability",
        "choice",
        parse_choice("topic_default", "memory", "flushed", "replicated"),
        Use.WRITE,
        "What an acknowledgement must rest on; may only be stronger than the topic's own level.",
        default="topic_default",
    ),
    OptionSpec(
        "compression.type",
        "compression",
        "choice",
        parse_choice("topic_default", "none", "lz4", "zstd"),
        Use.WRITE,
        "Codec of the batches; by default what the topic advises.",
        default="topic_default",
    ),
    OptionSpec(
        "batch.rows",
        "batch_rows",
        "rows",
        parse_count,
        Use.WRITE,
        "Spark hands over 10,000 rows at a time; they are gathered to batches of up to so many "
        "rows before they are stored.",
        default="65536",
    ),
    OptionSpec(
        "batch.size",
        "batch_bytes",
        "bytes",
        parse_bytes,
        Use.WRITE,
        "And up to so many bytes.",
        default="4m",
    ),
    OptionSpec(
        "delivery.timeout",
        "delivery_timeout",
        "duration",
        parse_duration,
        Use.WRITE,
        "How long a task goes on trying to get its rows acknowledged.",
        default="120s",
    ),
    OptionSpec(
        "request.timeout",
        "request_timeout",
        "duration",
        parse_duration,
        Use.ALL,
        "How long one request may take, retries included, before the query fails.",
        default="30s",
    ),
    OptionSpec(
        "connect.timeout",
        "connect_timeout",
        "duration",
        parse_duration,
        Use.ALL,
        "How long one attempt to connect may take.",
        default="10s",
    ),
    OptionSpec(
        "client.id",
        "client_id",
        "name",
        parse_text,
        Use.ALL,
        "Name of this query in the brokers' logs and metrics.",
        default="spark",
    ),
)


def markdown_table(use: Use) -> str:
    """The table in docs/spark.md for reads (`Use.READ`) or writes (`Use.WRITE`)."""
    lines = ["| option | type | default | applies to | meaning |", "|---|---|---|---|---|"]
    for spec in OPTIONS:
        if spec.use & use:
            doc = spec.doc.replace("|", "\\|")
            where = "both" if spec.use & use == use else (spec.use & use).label
            lines.append(
                f"| `{spec.name}` | {spec.kind} | {spec.default_label} | {where} | {doc} |"
            )
    return "\n".join(lines) + "\n"
