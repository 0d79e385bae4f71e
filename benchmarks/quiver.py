"""Our side of the benchmarks: a broker process, topics, and ready-made request frames.

Owns how frames are made before the clock starts. Batches carry a producer id and sequence
numbers, as those of every ordinary producer do, so that the broker's idempotence is paid for.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

import quiverlog
from benchmarks.load import Frame, Load
from benchmarks.rows import SCHEMA, make_batch
from quiverlog.batch.checksum import crc32c
from quiverlog.batch.codec import encode_batch
from quiverlog.batch.header import CRC_OFFSET, CRC_START, BatchHeader
from quiverlog.client.producer.runner import new_identity
from quiverlog.types import Durability
from quiverlog.wire import frames
from quiverlog.wire import messages as m
from tests.support.broker import BrokerProcess

if TYPE_CHECKING:
    from quiverlog.client.client import Client

_CRC = struct.Struct("<I")

__all__ = [
    "BrokerProcess",
    "Topic",
    "fetch_frame",
    "greeting",
    "largest_batch",
    "numbered",
    "open_load",
    "produce_frame",
    "running",
    "temporary_topic",
]


@dataclass(frozen=True, slots=True)
class Topic:
    """What a frame must name."""

    name: str
    topic_id: bytes
    schema_id: int
    leader_epoch: int


@contextmanager
def running(**config: Any) -> Iterator[tuple[BrokerProcess, Client]]:
    """A broker of its own and a client of it."""
    with BrokerProcess(config=config) as broker, quiverlog.connect(broker.bootstrap) as client:
        yield broker, client


@contextmanager
def temporary_topic(
    client: Client, name: str, *, partitions: int = 1, copies: int = 1, durability: str = "flushed"
) -> Iterator[Topic]:
    """A topic of `rows.SCHEMA` that is deleted at the end, its pages with it."""
    config = {"durability": durability}
    client.create_topic(
        name, SCHEMA, partitions=partitions, replication_factor=copies, config=config
    )
    info = client.metadata([name]).topics[name]
    try:
        yield Topic(name, info.topic_id, info.schema_id, info.partitions[0].leader_epoch)
    finally:
        client.delete_topic(name)


def stored_rows(client: Client, topic: str) -> int:
    """Rows that can be read now."""
    return client.describe_topic(topic).rows


def expect_rows(client: Client, topic: str, rows: int) -> None:
    """What was sent must be there, or the figure means nothing."""
    found = stored_rows(client, topic)
    if found != rows:
        raise AssertionError(f"{topic} holds {found} rows, {rows} were sent")


CORRELATION_ID_HELLO: Final = 2**31 - 1


def greeting() -> bytes:
    """The HELLO frame that opens a connection."""
    hello = m.HelloRequest(client_id="benchmark", software="quiverlog-benchmarks")
    return frames.encode(hello, CORRELATION_ID_HELLO)


def open_load(broker: BrokerProcess) -> Load:
    """A connection of the load generator to the broker, greeted."""
    return Load(broker.address, greeting())


def largest_batch(size_max: int, schema_id: int) -> tuple[bytearray, int]:
    """The encoded batch with the most rows that is at most `size_max` bytes, and its rows."""

    now_us = time.time_ns() // 1000  # younger than any retention

    def encoded(rows: int) -> bytearray:
        return encode_batch(make_batch(rows), schema_id=schema_id, timestamp_us=now_us)

    low, high = 1, size_max // 28 + 2
    while high - low > 1:
        middle = (low + high) // 2
        if len(encoded(middle)) <= size_max:
            low = middle
        else:
            high = middle
    return encoded(low), low


def numbered(batch: bytearray, count: int, *, producer_id: int, rows: int) -> list[bytearray]:
    """`count` copies that follow each other in one producer's sequence, each with a good CRC."""
    header = BatchHeader.unpack(batch)
    copies = []
    for number in range(count):
        copy = bytearray(batch)
        header._replace(
            producer_id=producer_id, producer_epoch=0, base_sequence=number * rows
        ).pack_into(copy)
        _CRC.pack_into(copy, CRC_OFFSET, crc32c(memoryview(copy)[CRC_START:]))
        copies.append(copy)
    return copies


def producer_id(client: Client) -> int:
    """A fresh producer id, from the controller."""
    return client.run(new_identity(client.cluster)).producer_id


def produce_frame(topic: Topic, batch: bytes | bytearray, number: int) -> Frame:
    """Request number `number` (from 0) of a connection: it appends one batch to partition 0."""
    entry = m.ProducePartition(
        topic_id=topic.topic_id,
        partition=0,
        leader_epoch=topic.leader_epoch,
        batch_bytes=len(batch),
    )
    request = m.ProduceRequest(durability=Durability.TOPIC_DEFAULT, partitions=[entry])
    return [frames.encode(request, 1 + number, len(batch)), batch]


def fetch_frame(
    topic: Topic,
    offset: int,
    bytes_max: int,
    number: int,
    *,
    max_wait_ms: int = 0,
    from_follower: bool = False,
) -> Frame:
    """Request number `number` (from 0): the batches of partition 0 from `offset` on."""
    entry = m.FetchPartition(
        topic_id=topic.topic_id,
        partition=0,
        leader_epoch=topic.leader_epoch,
        offset=offset,
        bytes_max=bytes_max,
        from_follower=from_follower,
    )
    request = m.FetchRequest(max_wait_ms=max_wait_ms, bytes_max=bytes_max, partitions=[entry])
    return [frames.encode(request, 1 + number)]


def produced(reply: bytes | memoryview) -> m.ProducePartitionResult:
    """The one partition's result; raises when the broker refused the batch."""
    response = frames.decode_response(header_of(reply), m.Api.PRODUCE)
    assert isinstance(response, m.ProduceResponse)
    if response.error_code or response.partitions[0].error_code:
        raise AssertionError(f"the broker refused a batch: {response}")
    return response.partitions[0]


def fetched(reply: bytes | memoryview) -> tuple[m.FetchPartitionResult, memoryview]:
    """The one partition's result and its batches; raises when the broker refused the fetch."""
    response = frames.decode_response(header_of(reply), m.Api.FETCH)
    assert isinstance(response, m.FetchResponse)
    if response.error_code or response.partitions[0].error_code:
        raise AssertionError(f"the broker refused a fetch: {response}")
    return response.partitions[0], memoryview(reply)[8 + len(header_of(reply)) :]


def header_of(frame: bytes | memoryview) -> memoryview:
    view = memoryview(frame)
    return view[8 : 8 + int.from_bytes(view[4:8], "little")]


def fill(client: Client, topic: str, batches: Sequence[pa.RecordBatch], partitions: int) -> None:
    """Send the batches to every partition, one stored batch for each."""
    for partition in range(partitions):
        with client.producer(
            topic,
            partition=partition,
            batch_rows=max(batch.num_rows for batch in batches),
            batch_bytes=32 * 1024 * 1024,
            linger=0.0,
        ) as producer:
            for batch in batches:
                producer.send(batch)
