"""The data source's options as given: parsed, checked, or refused.

Owns the order of the checks and their wording: an option is parsed and checked before anything else
happens, and a refusal names the option and says what to use instead (`REFUSED`: those of other
sources). What options there are lies in `option_table`. Knows nothing of Spark, brokers or offsets.

Spark hands option keys over in lower case, so names are matched without regard to case.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from quiverlog.errors import InvalidOption

from .option_table import OPTIONS, OptionSpec, Use
from .option_types import Positions

__all__ = [
    "REFUSED",
    "Positions",
    "ReadOptions",
    "Use",
    "WriteOptions",
    "parse_read_options",
    "parse_write_options",
]

REFUSED: dict[str, str] = {
    "kafka.bootstrap.servers": "use `bootstrap.servers`",
    "bootstrapservers": "use `bootstrap.servers`",
    "kafka.group.id": "there are no consumer groups here: the checkpoint keeps the position",
    "group.id": "there are no consumer groups here: the checkpoint keeps the position",
    "groupidprefix": "there are no consumer groups here: the checkpoint keeps the position",
    "isolation.level": "there are no transactions yet, every row that can be read is committed; "
    "leave it out",
    "kafka.isolation.level": "there are no transactions yet; leave it out",
    "fetchfrom": "reads are served by the leader; leave it out",
    "kafka.client.rack": "reads are served by the leader; leave it out",
    "client.rack": "reads are served by the leader, so a rack has no effect yet; leave it out",
    "deliverymode": "the sink writes at least once, exactly once is not built yet; leave it out",
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

_BY_KEY: dict[str, OptionSpec] = {
    key.lower(): spec for spec in OPTIONS for key in (spec.name, *spec.aliases)
}
assert len(_BY_KEY) == sum(1 + len(s.aliases) for s in OPTIONS), "each name once"
assert not set(REFUSED) & set(_BY_KEY)

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
    fail_on_corrupt_data: bool
    columns: tuple[str, ...] | None
    include_metadata: bool
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
