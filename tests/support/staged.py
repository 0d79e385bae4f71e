"""Rows of `__staged` as a client encodes them, and a node that has the topic.

Owns the shape of a good row; a test changes what it is about.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from quiverlog.core.controller.internal_topics import INTERNAL_TOPICS, STAGED
from quiverlog.node.apis.topics import make_internal_topics
from quiverlog.node.broker import Broker
from quiverlog.node.runtime.tasks import Call, Steps
from quiverlog.types import Compression
from quiverlog.wire import messages as m

from .batches import NO_PRODUCER, encode_data
from .node import START_WALL_US, NodeDriver

__all__ = ["ATTEMPT", "SCHEMA_STAGED", "make_staged", "staged_batch", "staged_row"]

ATTEMPT = bytes(range(16))
SCHEMA_STAGED = INTERNAL_TOPICS[STAGED].schema


def make_staged(node: NodeDriver) -> bytes:
    """Have the node make its internal topics; returns the id of `__staged`."""

    def handle(broker: Broker, call: Call) -> Steps:
        yield from make_internal_topics(broker, call)
        return m.InitProducerIdResponse()

    node.call(m.HelloRequest())
    handlers = node.node._steps_handlers
    before, handlers[m.InitProducerIdRequest] = handlers[m.InitProducerIdRequest], handle
    response, _ = node.call(m.InitProducerIdRequest())
    handlers[m.InitProducerIdRequest] = before
    assert response.error_code == 0, response.error_message
    topic_id: bytes = node.node.broker.metadata.image.topics[STAGED].topic_id
    return topic_id


def staged_row(topic_id: bytes, batch: bytes, **changes: Any) -> dict[str, Any]:
    """A row for partition 0 of the topic; `changes` by column."""
    good = {
        "kind": 0,
        "transactional_id": "id",
        "epoch": 1,
        "sequence": 2,
        "attempt": ATTEMPT,
        "topic_id": topic_id,
        "partition": 0,
        "row_count": int.from_bytes(batch[36:40], "little"),
        "batch": batch,
    }
    return {**good, **changes}


def staged_batch(
    rows: Sequence[dict[str, Any]],
    *,
    compression: Compression = Compression.NONE,
    producer: tuple[int, int, int] = NO_PRODUCER,
) -> bytes:
    """One batch of `__staged`. A None is a null, which no client may write."""
    schema = pa.schema([field.with_nullable(True) for field in SCHEMA_STAGED])
    arrays = [pa.array([row[f.name] for row in rows], f.type) for f in schema]
    data = pa.record_batch(arrays, schema=schema)
    return bytes(
        encode_data(
            data, at_us=START_WALL_US, schema_id=1, producer=producer, compression=compression
        )
    )
