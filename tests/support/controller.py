"""Topics of a metadata image, for tests of what is decided about them.

Owns the ways to make and change them, and `described`: all that an image holds, as plain values.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import msgspec
import pyarrow as pa

from quiverlog.batch.schema import serialize_schema
from quiverlog.core.controller.image import Image
from quiverlog.core.controller.records import BrokerRecord, Record
from quiverlog.core.controller.topics import alter_topic, create_topic, find_topic

__all__ = ["SCHEMA", "alter", "create", "described", "entropy", "register"]

SCHEMA = pa.schema([("carrier", pa.string()), ("delay", pa.int32())])
_random = itertools.count(1)


def entropy(count: int) -> bytes:
    return next(_random).to_bytes(count, "big")


def register(image: Image, brokers: Sequence[int]) -> None:
    """These brokers are there, and no others."""
    image.brokers.clear()
    for node_id in brokers:
        image.replay(BrokerRecord(node_id, b"", f"host-{node_id}"))


def create(
    image: Image, name: str = "flights", brokers: Sequence[int] = (0,), **changes: Any
) -> list[Record]:
    register(image, brokers)
    options: dict[str, Any] = {
        "schema": serialize_schema(SCHEMA),
        "partitions": 2,
        "replication_factor": 1,
        "key_columns": ["carrier"],
        "configs": {},
        "now_us": 1_000,
        "entropy": entropy,
    }
    return create_topic(image, name=name, **{**options, **changes})


def alter(image: Image, name: str = "flights", **changes: Any) -> list[Record]:
    options: dict[str, Any] = {
        "set_configs": {},
        "delete_configs": [],
        "partitions": -1,
        "schema": b"",
        "now_us": 2_000,
    }
    return alter_topic(image, find_topic(image, name), **{**options, **changes})


def described(image: Image) -> Any:
    """Everything that an image holds, as plain values."""
    return [
        image.version,
        image.next_producer_id,
        image.partition_count,
        {
            name: (
                topic.topic_id,
                topic.created_us,
                topic.configs,
                topic.config,
                topic.key_columns,
                [msgspec.to_builtins(record) for record in topic.schema_records],
                {i: schema.to_string() for i, schema in topic.schemas.items()},
                [
                    (
                        p.partition,
                        p.replicas,
                        p.in_sync_replicas,
                        p.eligible_leader_replicas,
                        p.leader_id,
                        p.leader_epoch,
                        p.partition_epoch,
                    )
                    for p in topic.partitions
                ],
            )
            for name, topic in image.topics.items()
        },
    ]
