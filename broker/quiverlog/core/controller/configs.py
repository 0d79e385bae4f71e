"""The table of topic configuration: every key with its type, default, range and meaning.

docs/config.md is generated from it. Values are sent and stored as text; `TopicConfig` holds them
typed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from quiverlog.broker_keys import CONFIG_KEYS
from quiverlog.errors import InvalidConfig
from quiverlog.limits import (
    BATCH_BYTES_DEFAULT_MAX,
    BATCH_BYTES_MAX,
    BATCH_HEADER_BYTES,
    INDEX_INTERVAL_BYTES,
    KIB,
    MIB,
    REPLICATION_FACTOR_MAX,
    RETENTION_MS_DEFAULT,
    SEGMENT_BYTES_DEFAULT,
    SEGMENT_BYTES_MAX,
    SEGMENT_BYTES_MIN,
    SEGMENT_MS_DEFAULT,
    TIMESTAMP_AHEAD_MS_DEFAULT,
)
from quiverlog.settings import InvalidValue, Kind, Setting, SettingsTable
from quiverlog.types import Compression, Durability

__all__ = [
    "CONFIG_DEFS",
    "TAKEN_AT_CREATION",
    "TOPIC_DEFAULTS_PREFIX",
    "TopicConfig",
    "check_configs",
    "check_default",
    "defaults_among",
    "topic_config",
    "why_no_topic_key",
]


CREATE_TIME: Final = "CreateTime"
LOG_APPEND_TIME: Final = "LogAppendTime"
DURABILITY_BY_REPLICATION: Final = "by replication factor"
MIN_IN_SYNC_BY_REPLICATION: Final = "1 for one replica, 2 for more"
"""`replicated` rows survive the loss of a machine."""

_DEFS: Final = (
    Setting(
        "retention.ms",
        Kind.INTEGER,
        str(RETENTION_MS_DEFAULT),
        "Rows older than this are deleted. A row's age is that of its batch's newest row, but at"
        " most the time since the batch arrived.",
        unit="ms",
        minimum=1_000,
        maximum=100 * 365 * 24 * 3_600_000,
        unlimited=True,
    ),
    Setting(
        "retention.bytes",
        Kind.INTEGER,
        "-1",
        "The oldest segments of a partition are deleted while it is larger than this.",
        unit="bytes",
        minimum=64 * KIB,
        unlimited=True,
    ),
    Setting(
        "segment.bytes",
        Kind.INTEGER,
        str(SEGMENT_BYTES_DEFAULT),
        "A log file is closed and the next one begun at this size.",
        unit="bytes",
        minimum=SEGMENT_BYTES_MIN,
        maximum=SEGMENT_BYTES_MAX,
    ),
    Setting(
        "segment.ms",
        Kind.INTEGER,
        str(SEGMENT_MS_DEFAULT),
        "A log file is closed and the next one begun at this age.",
        unit="ms",
        minimum=1_000,
        maximum=100 * 365 * 24 * 3_600_000,
    ),
    Setting(
        "max.message.bytes",
        Kind.INTEGER,
        str(BATCH_BYTES_DEFAULT_MAX),
        "A stored batch is at most this large; larger ones are refused.",
        unit="bytes",
        minimum=BATCH_HEADER_BYTES * 16,
        maximum=BATCH_BYTES_MAX,
    ),
    Setting(
        "message.timestamp.type",
        Kind.CHOICE,
        CREATE_TIME,
        "The clock that stamps rows: the producer's (`CreateTime`) or the leader's, when a batch"
        " arrives (`LogAppendTime`: the bounds below do not count then).",
        choices=(CREATE_TIME, LOG_APPEND_TIME),
    ),
    Setting(
        "message.timestamp.before.max.ms",
        Kind.INTEGER,
        "-1",
        "A batch whose oldest row is further behind the leader's clock is refused"
        " (INVALID_TIMESTAMP).",
        unit="ms",
        minimum=0,
        unlimited=True,
    ),
    Setting(
        "message.timestamp.after.max.ms",
        Kind.INTEGER,
        str(TIMESTAMP_AHEAD_MS_DEFAULT),
        "A batch whose newest row is further ahead of the leader's clock is refused"
        " (INVALID_TIMESTAMP): it would not expire in time, and keep all rows after it.",
        unit="ms",
        minimum=0,
        unlimited=True,
    ),
    Setting(
        "durability",
        Kind.CHOICE,
        None,
        "What an acknowledgement rests on, at least: `memory` is the leader's page cache, `flushed`"
        " its disk, `replicated` the logs of all in-sync replicas, `replicated_flushed` the disks"
        " of at least `min.insync.replicas` of them as well. Readers of a topic with one replica"
        " get rows once they are as safe as this, others once they are replicated.",
        choices=tuple(level.label for level in Durability if level >= 0),
        default_doc=DURABILITY_BY_REPLICATION,
    ),
    Setting(
        "min.insync.replicas",
        Kind.INTEGER,
        None,
        "Rows are replicated, and readers get them, while this many replicas are in sync; with"
        " fewer, writes that ask for `replicated` are refused. At most the number of replicas.",
        unit="replicas",
        minimum=1,
        maximum=REPLICATION_FACTOR_MAX,
        default_doc=MIN_IN_SYNC_BY_REPLICATION,
    ),
    Setting(
        "unclean.leader.election.enable",
        Kind.CHOICE,
        "false",
        "Whether a replica may lead that is not in sync and may lack rows that readers got, where"
        " no other is alive: `true` prefers availability to rows. Readers get LOG_TRUNCATED for"
        " lost rows that they had read, OFFSET_OUT_OF_RANGE for lost rows up to their end; the"
        " broker's log and metrics record each such election.",
        choices=("false", "true"),
    ),
    Setting(
        "compression.type",
        Kind.CHOICE,
        Compression.NONE.label,
        "Codec that producers are advised to use. The broker stores batches as they come.",
        choices=tuple(codec.label for codec in Compression),
    ),
    Setting(
        "validation",
        Kind.CHOICE,
        "basic",
        "How closely a batch is checked before it is stored: `basic` checks checksum, header,"
        " schema id, row count and all that lets rows be read: buffers, decompression, offsets,"
        " null counts, times within a day; `full` also the values: UTF-8 and decimal digits.",
        choices=("basic", "full"),
    ),
    Setting(
        "index.interval.bytes",
        Kind.INTEGER,
        str(INDEX_INTERVAL_BYTES),
        "The index gets an entry about every this many bytes of log; at least every 64 KiB.",
        unit="bytes",
        minimum=512,
        maximum=MIB * 64,
    ),
)

ABSENT: Final = {
    "cleanup.policy": "does not exist yet: rows are deleted by `retention.ms` and"
    " `retention.bytes`, and keeping the newest row of each key (compaction) does not exist",
    "max.compaction.lag.ms": "does not exist: logs are not compacted",
}

CONFIG_DEFS: Final = SettingsTable(_DEFS, absent=ABSENT)

TAKEN_AT_CREATION: Final = ("min.insync.replicas", "unclean.leader.election.enable")
"""A broker's defaults for these are written into a topic when it is created with several replicas,
or gets them: leader and controller must use the same values, or rows could get lost."""

TOPIC_DEFAULTS_PREFIX: Final = "topic.defaults."
"""Turns a topic key into a broker key: the default for topics that do not set it."""


@dataclass(frozen=True, slots=True)
class TopicConfig:
    """All values of one topic, typed. -1 in a retention: no bound.

    Unless `stamps_arrival`, times of rows may be `behind_ms_max` and `ahead_ms_max` away from the
    leader's clock; -1: any distance.
    """

    retention_ms: int
    retention_bytes: int
    segment_bytes: int
    segment_ms: int
    batch_bytes_max: int
    durability: Durability
    min_in_sync_replicas: int
    unclean_leader_election: bool
    compression: Compression
    validate_full: bool
    index_interval_bytes: int
    stamps_arrival: bool
    behind_ms_max: int
    ahead_ms_max: int


def default_text(key: str, replication_factor: int) -> str:
    if key == "durability":
        return Durability.FLUSHED.label if replication_factor == 1 else Durability.REPLICATED.label
    if key == "min.insync.replicas":
        return "1" if replication_factor == 1 else "2"
    default = CONFIG_DEFS[key].default
    assert isinstance(default, str), key
    return default


def why_no_topic_key(key: str) -> str:
    if key in CONFIG_DEFS.absent:
        return CONFIG_DEFS.absent[key]
    if key in CONFIG_KEYS:
        return (
            "is a setting of brokers, not of topics: `quiverlog config set --cluster`, or "
            "--broker ID, sets it while they run, where it can be"
        )
    close = CONFIG_DEFS.suggest(key)
    return "is not a topic configuration key" + (f" (is it {close}?)" if close else "")


def check_configs(configs: Mapping[str, str]) -> None:
    for key, text in configs.items():
        definition = CONFIG_DEFS.get(key)
        if definition is None:
            raise InvalidConfig(f"{key!r} {why_no_topic_key(key)}.")
        try:
            definition.parse(text)
        except InvalidValue as error:
            raise InvalidConfig(f"{key} {error}") from None


def check_default(key: str, text: str) -> str:
    check_configs({key: text})
    # A default must suit topics of one replica, too: `replicated` does not.
    topic_config({}, {key: text}, 1)
    return str(CONFIG_DEFS[key].parse(text))


def defaults_among(values: Mapping[str, str]) -> dict[str, str]:
    """Return the topic defaults among broker keys, by topic key."""
    found = {}
    for name, text in values.items():
        key = name.removeprefix(TOPIC_DEFAULTS_PREFIX)
        if key != name:
            # A newer version may have set a value that this one does not accept.
            with contextlib.suppress(InvalidConfig):
                found[key] = check_default(key, text)
    return found


def topic_config(
    configs: Mapping[str, str], defaults: Mapping[str, str], replication_factor: int
) -> TopicConfig:
    assert replication_factor >= 1
    check_configs(configs)
    check_configs(defaults)

    def text(key: str) -> str:
        # Written into the topic when it was created: a later default does not count.
        fixed = replication_factor > 1 and key in TAKEN_AT_CREATION
        own = configs.get(key, None if fixed else defaults.get(key))
        return default_text(key, replication_factor) if own is None else own

    def number(key: str) -> int:
        value = CONFIG_DEFS[key].parse(text(key))
        assert isinstance(value, int)
        return value

    stamps_arrival = text("message.timestamp.type") == LOG_APPEND_TIME
    config = TopicConfig(
        retention_ms=number("retention.ms"),
        retention_bytes=number("retention.bytes"),
        segment_bytes=number("segment.bytes"),
        segment_ms=number("segment.ms"),
        batch_bytes_max=number("max.message.bytes"),
        durability=Durability[text("durability").upper()],
        min_in_sync_replicas=min(number("min.insync.replicas"), replication_factor),
        unclean_leader_election=text("unclean.leader.election.enable") == "true",
        compression=Compression[text("compression.type").upper()],
        validate_full=text("validation") == "full",
        index_interval_bytes=number("index.interval.bytes"),
        stamps_arrival=stamps_arrival,
        behind_ms_max=-1 if stamps_arrival else number("message.timestamp.before.max.ms"),
        ahead_ms_max=-1 if stamps_arrival else number("message.timestamp.after.max.ms"),
    )
    assert SEGMENT_BYTES_MIN <= config.segment_bytes <= SEGMENT_BYTES_MAX
    assert BATCH_HEADER_BYTES < config.batch_bytes_max <= BATCH_BYTES_MAX
    assert config.retention_ms == -1 or config.retention_ms > 0
    assert config.retention_bytes == -1 or config.retention_bytes > 0
    if config.durability >= Durability.REPLICATED and replication_factor == 1:
        label = config.durability.label
        raise InvalidConfig(f"durability is {label!r}, but the topic has one replica.")
    return config
