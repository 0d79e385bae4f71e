"""The data source's options: parsed and checked before any request, or refused, with the
alternative where there is one.

Names match without regard to case: Spark passes a stream's in lower case.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Final, Literal

from quiverlog.errors import InvalidOption
from quiverlog.settings import InvalidValue, Setting

from .option_table import OPTIONS, Use
from .option_types import LATEST, Positions, Secret

__all__ = [
    "Positions",
    "ReadOptions",
    "Use",
    "WriteOptions",
    "parse_read_options",
    "parse_write_options",
]


logger = logging.getLogger("pyspark_quiverlog")

TOKEN_OF_STREAM_S: Final = 2 * 3_600.0
"""A sink's process ends when it is idle for a minute, so a slow trigger makes a token each time: as
many as 120 count then, and a user has at most 1,000."""
TOKEN_OF_BATCH_S: Final = 12 * 3_600.0
"""A batch job has one token for all of its tasks."""

# Spark adds these by itself: the first two to a sink's options, the others to a table's.
_IGNORED = frozenset(
    {
        *("checkpointlocation", "queryname"),
        *("provider", "owner", "location", "external", "is_managed_location"),
        *("comment", "collation", "serialization.format"),
    }
)

_TABLE_HINT = (
    " There are no options: Spark does not pass those of a catalogue's table to a "
    "Python source. Use CREATE TEMPORARY VIEW ... USING quiverlog OPTIONS(...)."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """Times in seconds, `*_timestamp*` in milliseconds since 1970."""

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
    driver_read_rows: int
    group_id: str | None
    report_progress: bool
    fail_on_data_loss: bool
    fail_on_corrupt_data: bool
    columns: tuple[str, ...] | None
    include_metadata: bool
    fetch_bytes: int
    request_timeout: float
    connect_timeout: float
    isolation_level: str  # of no effect
    client_id: str
    security_file: str | None
    user: str | None
    password: Secret | None
    password_file: str | None
    password_env: str | None
    token_file: str | None
    token_lifetime: float
    token: Secret | None = None  # No option: what the driver sends to tasks.
    fetch_from: Literal["leader", "follower", "nearest"]
    client_rack: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions:
    """Times in seconds. `partition_column` None: see the table."""

    bootstrap_servers: tuple[str, ...]
    topic: str | None
    topic_column: str
    partition_column: str | None
    durability: str
    compression: str
    create_topic: bool
    create_partitions: int
    create_key: tuple[str, ...] | None
    create_replication: int | None
    delivery_mode: Literal["exactly_once", "at_least_once"]
    sink_id: str | None
    transaction_timeout: float
    txn_app_id: str | None = None  # both of batch writes only
    txn_version: int | None = None
    batch_rows: int
    batch_bytes: int
    delivery_timeout: float
    request_timeout: float
    connect_timeout: float
    isolation_level: str  # of no effect
    client_id: str
    security_file: str | None
    user: str | None
    password: Secret | None
    password_file: str | None
    password_env: str | None
    token_file: str | None
    token_lifetime: float
    token: Secret | None = None  # No option: what the driver sends to tasks.


def parse_read_options(raw: Mapping[str, str], use: Use) -> ReadOptions:
    """Check a read's options. `use` is STREAM_READ, BATCH_READ, or READ while undecided.

    Raises:
        InvalidOption: names the option and, where there is one, the alternative.
    """
    values = _parse(_with_path(raw, "subscribe", _SELECTORS), use)
    options = ReadOptions(**_fields(values, Use.READ))
    _check_login(options)
    _check_read(options, use)
    return options


def parse_write_options(raw: Mapping[str, str], use: Use) -> WriteOptions:
    """Check a write's options; `use` is STREAM_WRITE or BATCH_WRITE. Raises InvalidOption."""
    values = _parse(_with_path(raw, "topic", ("topic",)), use)
    options = WriteOptions(**_fields(values, use))
    _check_login(options)
    _check_transaction(options)
    for setting in OPTIONS.values():
        is_about_creation = setting.key.startswith("createTopic.")
        if is_about_creation and setting.field in values and not options.create_topic:
            raise InvalidOption(
                f"option `{setting.key}` applies to new topics: set `createTopic` to true as "
                "well, or leave it out."
            )
    return options


@cache
def _warn_of_literal_password() -> None:
    """Warn once in a process."""
    logger.warning(
        "option `password`: Spark's own processes and memory have it as text, with Connect also the"
        " server's UI and event log; `passwordFile` and `passwordEnv` name the place where the"
        " driver reads it"
    )


def _check_login(options: ReadOptions | WriteOptions) -> None:
    given = {
        "password": options.password,
        "passwordFile": options.password_file,
        "passwordEnv": options.password_env,
        "tokenFile": options.token_file,
    }
    names = [name for name, value in given.items() if value is not None]
    if len(names) > 1:
        raise InvalidOption(f"options `{'` and `'.join(names)}` are given: set one of them.")
    if options.token_file is not None and options.user is not None:
        raise InvalidOption("option `tokenFile` has a user by itself: leave `user` out.")
    if options.token_file is None and bool(names) is not (options.user is not None):
        missing, there = ("user", names[0]) if names else ("passwordFile", "user")
        raise InvalidOption(f"option `{there}` needs `{missing}` as well.")
    if options.password is not None:
        _warn_of_literal_password()


def _check_transaction(options: WriteOptions) -> None:
    for given, missing, name, other in (
        (options.txn_version, options.txn_app_id, "txnVersion", "txnAppId"),
        (options.txn_app_id, options.txn_version, "txnAppId", "txnVersion"),
    ):
        if given is not None and missing is None:
            raise InvalidOption(f"option `{name}` needs `{other}` as well: set both, or neither.")
    if options.txn_app_id is not None and options.delivery_mode == "at_least_once":
        raise InvalidOption(
            "option `txnAppId` needs `deliveryMode` exactly_once: at_least_once writes every time."
        )
    # The transactional id has both, with a `/` between.
    if options.txn_app_id is not None and "/" in (options.sink_id or ""):
        raise InvalidOption(
            f"option `sinkId` is {options.sink_id!r}: it may have no `/` beside `txnAppId`, as "
            "another job might have the same name then, and its rows would be skipped."
        )


_SELECTORS = ("subscribe", "subscribePattern", "assign")


def _with_path(raw: Mapping[str, str], name: str, selectors: tuple[str, ...]) -> dict[str, str]:
    # `load("x")` and `save("x")` set `path`.
    options = {key: value for key, value in raw.items() if key.lower() != "path"}
    path = next((value for key, value in raw.items() if key.lower() == "path"), None)
    if path is None:
        return options
    given = [key for key in options if key.lower() in {s.lower() for s in selectors}]
    if "/" in path or ":" in path:  # a catalogue table's place in the warehouse
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
        if lowered in _IGNORED or lowered.startswith("option."):  # a table's options, a second time
            continue
        setting = _lookup(key)
        if not setting.where & use:
            raise InvalidOption(_misplaced(setting, key, use))
        if setting.field in given:
            raise InvalidOption(
                f"options `{given[setting.field]}` and `{key}` mean the same: set one."
            )
        given[setting.field] = key
        try:
            values[setting.field] = setting.parse(text)
        except InvalidValue as error:
            raise InvalidOption(f"option `{_spelt(setting, key)}` {error}") from error
    in_stream = use in (Use.STREAM_READ, Use.STREAM_WRITE)
    values.setdefault("token_lifetime", TOKEN_OF_STREAM_S if in_stream else TOKEN_OF_BATCH_S)
    if "bootstrap_servers" not in values:
        table = "" if raw else _TABLE_HINT
        raise InvalidOption(
            f"option `bootstrap.servers` is required, such as 127.0.0.1:9292.{table}"
        )
    return values


def _lookup(key: str) -> Setting:
    setting = OPTIONS.find(key)
    if setting is not None:
        return setting
    lowered = key.lower()
    instead = OPTIONS.absent.get(lowered)
    if instead is None and lowered.startswith("kafka."):
        bare = OPTIONS.find(lowered.removeprefix("kafka."))
        instead = f"use `{bare.key}`" if bare else "Kafka's client is not in use here; leave it out"
    if instead is not None:
        raise InvalidOption(f"option `{key}` does not apply: {instead}.")
    close = OPTIONS.suggest(key)
    did_you_mean = f"did you mean `{close}`?" if close else "no such option."
    raise InvalidOption(f"option `{key}` is unknown: {did_you_mean}")


def _spelt(setting: Setting, key: str) -> str:
    # Spark has made a stream's options lower case.
    return setting.key if key == setting.key.lower() else key


def _misplaced(setting: Setting, key: str, use: Use) -> str:
    instead = ""
    if setting.key == "topic":
        instead = " Use `subscribe`."
    elif setting.key in _SELECTORS:
        instead = " Use `topic`."
    elif setting.key in ("txnAppId", "txnVersion"):
        instead = (
            " A streaming query has its own id and micro-batches; `sinkId` tells its sinks apart."
        )
    elif setting.key.startswith("ending"):
        instead = " A streaming query has no end; use Trigger.AvailableNow or a batch read."
    elif use is Use.BATCH_READ:
        instead = " A batch read takes all rows up to `endingOffsets`."
    where: Use = setting.where
    return f"option `{_spelt(setting, key)}` applies to {where.label}, not to {use.label}.{instead}"


def _fields(values: dict[str, Any], use: Use) -> dict[str, Any]:
    result = {}
    for setting in OPTIONS.values():
        if setting.where & use:
            default = setting.parse(setting.default) if setting.default is not None else None
            result[setting.field] = values.get(setting.field, default)
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
    if use is Use.BATCH_READ and _starts_at_latest(options.starting_offsets):
        raise InvalidOption(
            "option `startingOffsets`: a batch that starts at latest (-1) has no rows; use "
            "earliest (-2)."
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


def _starts_at_latest(starts: str | Positions | None) -> bool:
    if not isinstance(starts, dict):
        return starts == "latest"
    return any(
        LATEST in (given.values() if isinstance(given, dict) else (given,))
        for given in starts.values()
    )


def _check_read_limits(options: ReadOptions) -> None:
    least, most = options.min_rows_per_trigger, options.max_rows_per_trigger
    if least is not None and most is not None and least > most:
        raise InvalidOption(
            f"option `minOffsetsPerTrigger` ({least}) is above `maxOffsetsPerTrigger` ({most})."
        )
    if options.client_rack is not None and options.fetch_from == "leader":
        raise InvalidOption(
            "option `client.rack` needs `fetchFrom`: set that to nearest or follower."
        )
    if options.columns is not None and any(c in _METADATA for c in options.columns):
        raise InvalidOption(
            "option `columns`: `_topic`, `_partition`, `_offset` and `_timestamp` come with "
            "`includeMetadata`, not with `columns`."
        )


_METADATA = frozenset({"_topic", "_partition", "_offset", "_timestamp"})


def _check_topics_named(name: str, positions: Positions, topics: tuple[str, ...]) -> None:
    if not topics:  # Only the brokers can resolve a pattern.
        return
    foreign = sorted(set(positions) - set(topics))
    missing = sorted(set(topics) - set(positions))
    if foreign:
        raise InvalidOption(f"option `{name}` names {foreign[0]!r}, which is not subscribed.")
    if missing:
        raise InvalidOption(f"option `{name}` has nothing for the subscribed {missing[0]!r}.")
