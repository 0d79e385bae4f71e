"""The table of topic configuration: what is taken, what is refused, and with which words."""

from __future__ import annotations

import pytest

from quiverlog.core.controller.configs import (
    CONFIG_DEFS,
    check_configs,
    default_text,
    topic_config,
)
from quiverlog.errors import InvalidConfig
from quiverlog.settings import Kind
from quiverlog.types import Compression, Durability


def test_every_default_is_a_value_of_its_key() -> None:
    for key in CONFIG_DEFS:
        for replication_factor in (1, 2, 3):
            CONFIG_DEFS[key].parse(default_text(key, replication_factor))


def test_every_key_is_documented() -> None:
    for key, definition in CONFIG_DEFS.items():
        assert definition.key == key
        assert definition.doc.endswith(".")
        assert definition.allowed
        if definition.kind is Kind.INTEGER:
            assert definition.unit in ("ms", "bytes", "replicas")


def test_defaults_follow_the_replication_factor() -> None:
    assert topic_config({}, {}, 1).durability is Durability.FLUSHED
    three = topic_config({}, {}, 3)
    assert three.durability is Durability.REPLICATED
    assert [topic_config({}, {}, n).min_in_sync_replicas for n in (1, 2, 3)] == [1, 2, 2]
    many = topic_config({"min.insync.replicas": "15"}, {}, 3)
    assert many.min_in_sync_replicas == 3, "all there are"


def test_own_value_beats_the_brokers_beats_the_tables() -> None:
    assert topic_config({}, {}, 1).compression is Compression.NONE
    defaults = {"compression.type": "lz4", "durability": "memory"}
    assert topic_config({}, defaults, 1).compression is Compression.LZ4
    config = topic_config({"compression.type": "zstd"}, defaults, 1)
    assert config.compression is Compression.ZSTD
    assert config.durability is Durability.MEMORY


@pytest.mark.parametrize(
    ("configs", "message"),
    [
        ({"retention": "1"}, "'retention' is not a topic configuration key"),
        ({"retention.ms": "soon"}, "retention.ms is 'soon', not a whole number"),
        ({"retention.ms": "999"}, r"retention.ms is 999, allowed is 1000 to \d+, or -1 for no"),
        ({"segment.bytes": "-1"}, "segment.bytes is -1, allowed is"),
        ({"segment.bytes": str(2**31)}, "segment.bytes is 2147483648"),
        ({"durability": "none"}, "durability is 'none', allowed are memory, flushed, replicated"),
        ({"durability": "FLUSHED"}, "durability is 'FLUSHED'"),
        ({"cleanup.policy": "compact"}, "'cleanup.policy' does not exist yet: rows are deleted by"),
        ({"durability": "replicated"}, "the topic has one replica"),
        ({"min.insync.replicas": "0"}, "min.insync.replicas"),
        ({"durability": "replicated_flushed"}, "'replicated_flushed', but the topic has one"),
        ({"validation": ""}, "validation is ''"),
    ],
)
def test_bad_values_are_refused_by_name(configs: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidConfig, match=message):
        topic_config(configs, {}, 1)


def test_unlimited_is_minus_one_where_it_makes_sense() -> None:
    check_configs({"retention.ms": "-1", "retention.bytes": "-1"})
    with pytest.raises(InvalidConfig):
        check_configs({"retention.ms": "-2"})
