"""THE table of topic configuration: every key with its type, default, range and meaning.

Owns the keys and how their text is read; docs/config.md is made from this table. Values travel and
are stored as text, as they were given; `TopicConfig` is the typed result.

Must not know: topics, files, where defaults of a broker come from.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

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
)
from quiverlog.types import Compression, Durability

__all__ = ["CONFIG_DEFS", "ConfigDef", "ConfigKind", "TopicConfig", "check_configs", "topic_config"]


class ConfigKind(enum.Enum):
    """How the text of a value is read."""

    INT = "integer"
    CHOICE = "choice"


@dataclass(frozen=True, slots=True)
class ConfigDef:
    """One key. `minimum` and `maximum` are inclusive; `unlimited` says that -1 is taken as well."""

    key: str
    kind: ConfigKind
    default: str
    doc: str
    unit: str = ""
    minimum: int = 0
    maximum: int = 2**63 - 1
    unlimited: bool = False
    choices: tuple[str, ...] = ()

    def parse(self, text: str) -> int | str:
        """The typed value.

        Raises:
            InvalidConfig: not a value of this key; the message names key, value and range.
        """
        if self.kind is ConfigKind.CHOICE:
            if text not in self.choices:
                raise InvalidConfig(f"{self.key} is {text!r}, allowed are {self.range_text}.")
            return text
        try:
            value = int(text)
        except ValueError:
            raise InvalidConfig(f"{self.key} is {text!r}, not a whole number.") from None
        if not (self.minimum <= value <= self.maximum or (self.unlimited and value == -1)):
            raise InvalidConfig(f"{self.key} is {value}, allowed is {self.range_text}.")
        return value

    @property
    def range_text(self) -> str:
        """The allowed values, for messages and docs."""
        if self.kind is ConfigKind.CHOICE:
            return ", ".join(self.choices)
        top = "" if self.maximum == 2**63 - 1 else f" to {self.maximum}"
        text = f"{self.minimum}{top}" if top else f"{self.minimum} or more"
        return f"{text}, or -1 for no bound" if self.unlimited else text


DURABILITY_BY_REPLICATION: Final = "by replication factor"
"""Default of `durability`: `flushed` for one replica, `replicated` for more."""

_DEFS: Final = (
    ConfigDef(
        "retention.ms",
        ConfigKind.INT,
        str(RETENTION_MS_DEFAULT),
        "Rows older than this are deleted. A row's age is that of its batch's newest row.",
        unit="ms",
        minimum=1_000,
        maximum=100 * 365 * 24 * 3_600_000,
        unlimited=True,
    ),
    ConfigDef(
        "retention.bytes",
        ConfigKind.INT,
        "-1",
        "The oldest segments of a partition are deleted while it is larger than this.",
        unit="bytes",
        minimum=64 * KIB,
        unlimited=True,
    ),
    ConfigDef(
        "segment.bytes",
        ConfigKind.INT,
        str(SEGMENT_BYTES_DEFAULT),
        "A log file is closed and the next one begun at this size.",
        unit="bytes",
        minimum=SEGMENT_BYTES_MIN,
        maximum=SEGMENT_BYTES_MAX,
    ),
    ConfigDef(
        "segment.ms",
        ConfigKind.INT,
        str(SEGMENT_MS_DEFAULT),
        "A log file is closed and the next one begun at this age.",
        unit="ms",
        minimum=1_000,
        maximum=100 * 365 * 24 * 3_600_000,
    ),
    ConfigDef(
        "max.message.bytes",
        ConfigKind.INT,
        str(BATCH_BYTES_DEFAULT_MAX),
        "A stored batch is at most this large; larger ones are refused.",
        unit="bytes",
        minimum=BATCH_HEADER_BYTES * 16,
        maximum=BATCH_BYTES_MAX,
    ),
    ConfigDef(
        "durability",
        ConfigKind.CHOICE,
        DURABILITY_BY_REPLICATION,
        "What an acknowledgement rests on, at least: `memory` is the leader's page cache, `flushed`"
        " its disk, `replicated` all in-sync replicas. Readers see rows once they are so safe.",
        choices=tuple(level.label for level in Durability if level >= 0),
    ),
    ConfigDef(
        "min.insync.replicas",
        ConfigKind.INT,
        "1",
        "With `replicated`: fewer replicas in sync than this, and writes are refused.",
        minimum=1,
        maximum=REPLICATION_FACTOR_MAX,
    ),
    ConfigDef(
        "compression.type",
        ConfigKind.CHOICE,
        Compression.NONE.label,
        "Codec that producers are advised to use. The broker stores batches as they come.",
        choices=tuple(codec.label for codec in Compression),
    ),
    ConfigDef(
        "validation",
        ConfigKind.CHOICE,
        "basic",
        "How closely a batch is looked at before it is stored: `basic` checks checksum, header,"
        " schema id, row count and all that lets rows be read: buffers, decompression, offsets,"
        " null counts; `full` also the values: UTF-8 and decimal digits.",
        choices=("basic", "full"),
    ),
    ConfigDef(
        "index.interval.bytes",
        ConfigKind.INT,
        str(INDEX_INTERVAL_BYTES),
        "The index gets an entry for about every so many bytes of log.",
        unit="bytes",
        minimum=512,
        maximum=MIB * 64,
    ),
    ConfigDef(
        "cleanup.policy",
        ConfigKind.CHOICE,
        "delete",
        "What happens to old rows. `delete` is the only policy.",
        choices=("delete",),
    ),
)

CONFIG_DEFS: Final[Mapping[str, ConfigDef]] = {entry.key: entry for entry in _DEFS}
"""By key, in the order in which they are shown."""


@dataclass(frozen=True, slots=True)
class TopicConfig:
    """All values of one topic, typed. -1 in a retention stands for no bound."""

    retention_ms: int
    retention_bytes: int
    segment_bytes: int
    segment_ms: int
    batch_bytes_max: int
    durability: Durability
    min_insync_replicas: int
    compression: Compression
    validate_full: bool
    index_interval_bytes: int


def default_text(key: str, replication_factor: int) -> str:
    """The default of a key, as text, for a topic with so many replicas."""
    if key == "durability":
        return Durability.FLUSHED.label if replication_factor == 1 else Durability.REPLICATED.label
    if key == "min.insync.replicas":
        return "1" if replication_factor < 3 else "2"
    return CONFIG_DEFS[key].default


def check_configs(configs: Mapping[str, str]) -> None:
    """Every key known, every value in its range.

    Raises:
        InvalidConfig: naming the first offender.
    """
    for key, text in configs.items():
        definition = CONFIG_DEFS.get(key)
        if definition is None:
            raise InvalidConfig(f"{key!r} is not a topic configuration key.")
        definition.parse(text)


def topic_config(
    configs: Mapping[str, str], defaults: Mapping[str, str], replication_factor: int
) -> TopicConfig:
    """The typed values: the topic's own, else the broker's defaults, else the table's.

    Raises:
        InvalidConfig: an unknown key, a bad value, or values that contradict each other.
    """
    check_configs(configs)
    check_configs(defaults)

    def text(key: str) -> str:
        own = configs.get(key, defaults.get(key))
        return default_text(key, replication_factor) if own is None else own

    def number(key: str) -> int:
        value = CONFIG_DEFS[key].parse(text(key))
        assert isinstance(value, int)
        return value

    config = TopicConfig(
        retention_ms=number("retention.ms"),
        retention_bytes=number("retention.bytes"),
        segment_bytes=number("segment.bytes"),
        segment_ms=number("segment.ms"),
        batch_bytes_max=number("max.message.bytes"),
        durability=Durability[text("durability").upper()],
        min_insync_replicas=number("min.insync.replicas"),
        compression=Compression[text("compression.type").upper()],
        validate_full=text("validation") == "full",
        index_interval_bytes=number("index.interval.bytes"),
    )
    if config.durability == Durability.REPLICATED and replication_factor == 1:
        raise InvalidConfig("durability is 'replicated', but the topic has one replica.")
    if config.min_insync_replicas > replication_factor:
        raise InvalidConfig(
            f"min.insync.replicas is {config.min_insync_replicas}, but the topic has"
            f" {replication_factor} replica(s)."
        )
    return config
