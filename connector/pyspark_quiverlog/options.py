"""Every option of the data source, in one table.

Owns names, types, defaults, where each option applies, its documentation (docs/spark.md holds the
table generated from here) and the refusals: an option is parsed and checked before anything else
happens, and a refusal names the option and says what to use instead. Names are those of Spark's
Kafka source wherever the meaning is the same. Knows nothing of Spark, brokers or offsets at work.

Spark hands option keys over in lower case, so names are matched without regard to case.
"""

from __future__ import annotations

import difflib
import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from quiverlog.errors import InvalidOption

from .option_types import (
    Positions,
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

__all__ = [
    "OPTIONS",
    "OptionSpec",
    "Positions",
    "ReadOptions",
    "Use",
    "WriteOptions",
    "markdown_table",
    "parse_read_options",
    "parse_write_options",
]


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
        "isolation.level",
        "isolation_level",
        "choice",
        parse_choice("read_committed", "read_uncommitted"),
        Use.READ,
        "Whether rows of transactions that are not yet decided may be read.",
        default="read_committed",
    ),
    OptionSpec(
        "fetchFrom",
        "fetch_from",
        "choice",
        parse_choice("leader"),
        Use.READ,
        "Which replica serves reads. Only `leader` so far.",
        default="leader",
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
        "deliveryMode",
        "delivery_mode",
        "choice",
        parse_choice("at_least_once"),
        Use.WRITE,
        "Only `at_least_once` so far: a task or a micro-batch that Spark runs again is written "
        "again.",
        default="at_least_once",
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

REFUSED: dict[str, str] = {
    "kafka.bootstrap.servers": "use `bootstrap.servers`",
    "bootstrapservers": "use `bootstrap.servers`",
    "kafka.group.id": "there are no consumer groups here: the checkpoint keeps the position",
    "group.id": "there are no consumer groups here: the checkpoint keeps the position",
    "groupidprefix": "there are no consumer groups here: the checkpoint keeps the position",
    "kafka.isolation.level": "use `isolation.level`",
    "kafka.client.rack": "reads are served by the leader (`fetchFrom`)",
    "client.rack": "reads are served by the leader (`fetchFrom`), so a rack has no effect yet",
    "kafkaconsumer.polltimeoutms": "use `request.timeout`, such as 30s",
    "fetchoffset.numretries": "retries go on until `request.timeout`, such as 30s",
    "fetchoffset.retryintervalms": "retries go on until `request.timeout`, such as 30s",
    "includeheaders": "headers are an ordinary column of a topic that was created with the `raw` "
    "schema; name it in `columns`",
    "auto.offset.reset": "use `startingOffsets`",
    "kafka.auto.offset.reset": "use `startingOffsets`",
    "enable.auto.commit": "the checkpoint keeps the position; leave it out",
    "interceptor.classes": "leave it out",
    "key.deserializer": "topics are typed: columns arrive with the types of the topic's schema",
    "value.deserializer": "topics are typed: columns arrive with the types of the topic's schema",
    "key.serializer": "topics are typed: columns are stored with the types of the topic's schema",
    "value.serializer": "topics are typed: columns are stored with the types of the topic's schema",
    "filter": "rows are not filtered in the reader yet; use `.where(...)` on the DataFrame, and "
    "`columns` or `startingTimestamp` to read less",
    "acks": "use `durability`",
    "kafka.acks": "use `durability`",
    "linger.ms": "the writer fills batches up to `batch.rows` and `batch.size`",
    "topics": "use `subscribe`",
    "topicspattern": "use `subscribePattern`",
    "maxfilespertrigger": "use `maxOffsetsPerTrigger` or `maxBytesPerTrigger`",
}

_IGNORED = frozenset(
    {
        *("checkpointlocation", "queryname"),
        *("provider", "owner", "location", "external", "is_managed_location"),
        *("comment", "collation", "serialization.format"),
    }
)
"""Spark adds these by itself: the first two to a sink's options, the others to a table's."""

_TABLE_HINT = (
    " No option has arrived at all: Spark does not pass those of a catalogue's table on to a "
    "Python source. Use CREATE TEMPORARY VIEW ... USING quiverlog OPTIONS(...)."
)

_BY_KEY: dict[str, OptionSpec] = {
    key.lower(): spec for spec in OPTIONS for key in (spec.name, *spec.aliases)
}
assert len(_BY_KEY) == sum(1 + len(s.aliases) for s in OPTIONS), "each name once"
assert not set(REFUSED) & set(_BY_KEY)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """A read's options, checked. Times in seconds, `*_timestamp*` in milliseconds since 1970."""

    bootstrap_servers: tuple[str, ...]
    subscribe: tuple[str, ...] | None
    subscribe_pattern: str | None
    assign: dict[str, tuple[int, ...]] | None
    starting_offsets: str | Positions | None
    starting_timestamp: int | None
    starting_offsets_by_timestamp: Positions | None
    starting_strategy: str
    ending_offsets: str | Positions
    ending_timestamp: int | None
    ending_offsets_by_timestamp: Positions | None
    max_rows_per_trigger: int | None
    max_bytes_per_trigger: int | None
    min_rows_per_trigger: int | None
    max_trigger_delay: float
    min_partitions: int | None
    max_rows_per_task: int | None
    min_rows_per_task: int
    fail_on_data_loss: bool
    columns: tuple[str, ...] | None
    include_metadata: bool
    isolation_level: str
    fetch_from: str
    fetch_bytes: int
    request_timeout: float
    connect_timeout: float
    client_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions:
    """A write's options, checked. Times in seconds. `partition_column` None: see the table."""

    bootstrap_servers: tuple[str, ...]
    topic: str | None
    topic_column: str
    partition_column: str | None
    durability: str
    compression: str
    batch_rows: int
    batch_bytes: int
    delivery_mode: str
    delivery_timeout: float
    request_timeout: float
    connect_timeout: float
    client_id: str


def parse_read_options(raw: Mapping[str, str], use: Use) -> ReadOptions:
    """Check a read's options. `use` is STREAM_READ, BATCH_READ, or READ while it is not known.

    Raises:
        InvalidOption: with the option's name and what to use instead.
    """
    values = _parse(_with_path(raw, "subscribe", _SELECTORS), use)
    options = ReadOptions(**_fields(values, Use.READ))
    _check_read(options, use)
    return options


def parse_write_options(raw: Mapping[str, str], use: Use) -> WriteOptions:
    """Check a write's options; `use` is STREAM_WRITE or BATCH_WRITE.

    Raises:
        InvalidOption: with the option's name and what to use instead.
    """
    values = _parse(_with_path(raw, "topic", ("topic",)), use)
    return WriteOptions(**_fields(values, Use.WRITE))


_SELECTORS = ("subscribe", "subscribePattern", "assign")


def _with_path(raw: Mapping[str, str], name: str, selectors: tuple[str, ...]) -> dict[str, str]:
    """`load("x")` and `save("x")` arrive as the option `path`.

    A table in Spark's catalogue has its warehouse location there, which cannot be a topic's name
    (it has slashes) and means nothing here.
    """
    options = {key.lower(): value for key, value in raw.items()}
    path = options.pop("path", None)
    if path is None:
        return options
    given = [s for s in selectors if s.lower() in options]
    if "/" in path or ":" in path:
        if not given:
            raise InvalidOption(f"option `path`: {path!r} is no topic; use `{name}`.")
        return options
    if given:
        raise InvalidOption(f"option `path`: the topic is given twice; leave `{given[0]}` out.")
    return options | {name: path}


def _parse(raw: Mapping[str, str], use: Use) -> dict[str, Any]:
    values: dict[str, Any] = {}
    given: dict[str, str] = {}
    for key, text in raw.items():
        lowered = key.lower()
        if lowered in _IGNORED or lowered.startswith("option."):  # a table's options, once more
            continue
        spec = _lookup(lowered)
        if not spec.use & use:
            raise InvalidOption(_misplaced(spec, use))
        if spec.field in given:
            raise InvalidOption(
                f"options `{given[spec.field]}` and `{key}` mean the same: set one."
            )
        given[spec.field] = key
        try:
            values[spec.field] = spec.parse(text)
        except ValueError as error:
            raise InvalidOption(f"option `{spec.name}`: expected {error}, got {text!r}.") from error
    if "bootstrap_servers" not in values:
        table = "" if raw else _TABLE_HINT
        raise InvalidOption(
            f"option `bootstrap.servers` is required, such as 127.0.0.1:9292.{table}"
        )
    return values


def _lookup(key: str) -> OptionSpec:
    spec = _BY_KEY.get(key)
    if spec is not None:
        return spec
    instead = REFUSED.get(key)
    if instead is None and key.startswith("kafka."):
        bare = _BY_KEY.get(key.removeprefix("kafka."))
        instead = (
            f"use `{bare.name}`" if bare else "Kafka's client is not in use here; leave it out"
        )
    if instead is not None:
        raise InvalidOption(f"option `{key}` does not apply: {instead}.")
    near = difflib.get_close_matches(key, list(_BY_KEY), n=1)
    did_you_mean = f"did you mean `{_BY_KEY[near[0]].name}`?" if near else "no such option."
    raise InvalidOption(f"option `{key}` is unknown: {did_you_mean}")


def _misplaced(spec: OptionSpec, use: Use) -> str:
    instead = ""
    if spec.name == "topic":
        instead = " Use `subscribe`."
    elif spec.field in ("subscribe", "subscribe_pattern", "assign"):
        instead = " Use `topic`."
    elif spec.name.startswith("ending"):
        instead = " A streaming query has no end; use Trigger.AvailableNow or a batch read."
    elif use is Use.BATCH_READ:
        instead = " A batch read takes all rows up to `endingOffsets`."
    return f"option `{spec.name}` applies to {spec.use.label}, not to {use.label}.{instead}"


def _fields(values: dict[str, Any], use: Use) -> dict[str, Any]:
    """All fields of the options class, defaults filled in."""
    result = {}
    for spec in OPTIONS:
        if spec.use & use:
            default = spec.parse(spec.default) if spec.default is not None else None
            result[spec.field] = values.get(spec.field, default)
    return result


def _check_read(options: ReadOptions, use: Use) -> None:
    chosen = [
        name
        for name, value in zip(
            _SELECTORS, (options.subscribe, options.subscribe_pattern, options.assign), strict=True
        )
        if value is not None
    ]
    if len(chosen) != 1:
        got = " and ".join(f"`{name}`" for name in chosen) or "none"
        raise InvalidOption(
            f"exactly one of `subscribe`, `subscribePattern` and `assign` is required, got {got}."
        )
    if use is Use.BATCH_READ and options.starting_offsets == "latest":
        raise InvalidOption(
            "option `startingOffsets`: a batch that starts at latest has no rows; use earliest."
        )
    _check_read_limits(options)
    topics = options.subscribe or tuple(options.assign or ())
    for name, positions in (
        ("startingOffsets", options.starting_offsets),
        ("endingOffsets", options.ending_offsets),
        ("startingOffsetsByTimestamp", options.starting_offsets_by_timestamp),
        ("endingOffsetsByTimestamp", options.ending_offsets_by_timestamp),
    ):
        if isinstance(positions, dict):
            _check_topics_named(name, positions, topics)


def _check_read_limits(options: ReadOptions) -> None:
    least, most = options.min_rows_per_trigger, options.max_rows_per_trigger
    if least is not None and most is not None and least > most:
        raise InvalidOption(
            f"option `minOffsetsPerTrigger` ({least}) is above `maxOffsetsPerTrigger` ({most})."
        )
    if options.columns is not None and any(c in _METADATA for c in options.columns):
        raise InvalidOption(
            "option `columns`: `_topic`, `_partition`, `_offset` and `_timestamp` come with "
            "`includeMetadata`, not with `columns`."
        )


_METADATA = frozenset({"_topic", "_partition", "_offset", "_timestamp"})


def _check_topics_named(name: str, positions: Positions, topics: tuple[str, ...]) -> None:
    if not topics:  # A pattern: what it matches is only known at the broker.
        return
    foreign = sorted(set(positions) - set(topics))
    missing = sorted(set(topics) - set(positions))
    if foreign:
        raise InvalidOption(f"option `{name}` names {foreign[0]!r}, which is not subscribed.")
    if missing:
        raise InvalidOption(f"option `{name}` has nothing for the subscribed {missing[0]!r}.")


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
