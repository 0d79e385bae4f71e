"""No option does nothing: whatever can be set is read by code that is no table of options.

A walk over the syntax trees, so that a name in a comment or a text does not count, nor one in the
files that only hand it on.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
from pathlib import Path

import pytest

from pyspark_quiverlog.options import ReadOptions, WriteOptions
from quiverlog.broker_keys import CONFIG_KEYS
from quiverlog.core.controller.configs import CONFIG_DEFS, TopicConfig, topic_config
from quiverlog.node.runtime.config import NodeConfig
from quiverlog.server.net.connections import ConnectionLimits

CODE = Path(__file__).resolve().parents[2] / "broker" / "quiverlog"
CONNECTOR = CODE.parents[1] / "connector" / "pyspark_quiverlog"
TABLES = {
    *(
        "server/config/config.py",
        "broker_keys.py",
        "server/config/docs.py",
        "server/config/config.py",
    ),
    *("server/config/reload.py", "core/controller/configs.py", "node/runtime/config.py"),
}


@functools.cache
def attributes_read() -> dict[str, set[str]]:
    """For each file that is no table: the attributes that it reads."""
    found: dict[str, set[str]] = {}
    for path in CODE.rglob("*.py"):
        name = path.relative_to(CODE).as_posix()
        if name not in TABLES:
            found[name] = {
                node.attr
                for node in ast.walk(ast.parse(path.read_text()))
                if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load)
            }
    return found


def readers(name: str, floors: tuple[str, ...]) -> list[str]:
    """The files of these floors that read an attribute of this name."""
    return [f for f, names in attributes_read().items() if name in names and f.startswith(floors)]


@pytest.mark.parametrize("field", sorted(key.field for key in CONFIG_KEYS.values()))
def test_every_key_of_the_broker_is_read_by_the_server(field: str) -> None:
    assert readers(field, ("server/",))


@pytest.mark.parametrize("field", [field.name for field in dataclasses.fields(ConnectionLimits)])
def test_every_limit_of_connections_is_read(field: str) -> None:
    assert readers(field, ("server/", "wire/"))


@pytest.mark.parametrize("field", [field.name for field in dataclasses.fields(NodeConfig)])
def test_every_setting_of_the_node_is_read_by_the_node(field: str) -> None:
    assert readers(field, ("node/",))


@pytest.mark.parametrize("field", [field.name for field in dataclasses.fields(TopicConfig)])
def test_every_setting_of_a_topic_is_read(field: str) -> None:
    assert readers(field, ("node/", "storage/", "core/controller/"))


OPTIONS_OF_SPARK = [
    field.name for kind in (ReadOptions, WriteOptions) for field in dataclasses.fields(kind)
]


@pytest.mark.parametrize("field", sorted({*OPTIONS_OF_SPARK} - {"isolation_level"}))
def test_every_option_of_spark_is_read_by_the_connector(field: str) -> None:
    files = [p for p in CONNECTOR.rglob("*.py") if not p.name.startswith("option")]
    assert any(f".{field}" in path.read_text() for path in files)


CHANGED = {
    "compression.type": "zstd",
    "durability": "memory",
    "index.interval.bytes": "8192",
    "max.message.bytes": "2048",
    "message.timestamp.after.max.ms": "5000",
    "message.timestamp.before.max.ms": "5000",
    "message.timestamp.type": "LogAppendTime",
    "min.insync.replicas": "1",
    "retention.bytes": "65536",
    "retention.ms": "2000",
    "segment.bytes": "65536",
    "segment.ms": "2000",
    "unclean.leader.election.enable": "true",
    "validation": "full",
}


@pytest.mark.parametrize("key", sorted(CONFIG_DEFS))
def test_every_key_of_a_topic_makes_a_difference(key: str) -> None:
    usual = topic_config({}, {}, 3)
    changed = topic_config({key: CHANGED[key]}, {}, 3)
    assert [
        f.name
        for f in dataclasses.fields(TopicConfig)
        if getattr(usual, f.name) != getattr(changed, f.name)
    ]
