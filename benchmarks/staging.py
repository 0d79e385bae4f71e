"""Holders of transactional ids, thin enough not to be what is measured: frames over a plain socket.

Staged rows carry no producer's numbers, so that the same frame may be sent again and again: nothing
is lost on the way here, and nothing is sent twice.
"""

from __future__ import annotations

import itertools
import secrets
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, Final, TypeVar

import pyarrow as pa

from benchmarks.bench_cluster import until
from benchmarks.load import Frame, Load
from benchmarks.quiver import BrokerProcess, Topic, header_of, open_load, produced
from quiverlog.batch.checksum import crc32c
from quiverlog.batch.codec import encode_batch
from quiverlog.client.client import Client
from quiverlog.core.controller.internal_topics import INTERNAL_TOPICS, STAGED, TRANSACTIONS
from quiverlog.limits import TRANSACTIONS_PARTITIONS
from quiverlog.wire import frames
from quiverlog.wire import messages as m
from quiverlog.wire.transaction_messages import (
    CommittedAttempt,
    CommittedPart,
    CommitTransactionRequest,
    CommitTransactionResponse,
    OpenTransactionRequest,
    OpenTransactionResponse,
)

__all__ = ["Holder", "Staged", "decode", "ids_of", "open_frame", "send"]

DEPTH: Final = 4
ATTEMPT: Final = b"benchmark-exact1"
INSTANCE: Final = b"one"

_R = TypeVar("_R", bound=m.Response)
Staged = tuple[Topic, int]
"""A partition of `__staged`: its topic, and its number."""


class Holder:
    """One transactional id: stages batches beside their leader, and commits them."""

    def __init__(
        self, brokers: Mapping[int, BrokerProcess], client: Client, stack: ExitStack, name: str = ""
    ) -> None:
        self._brokers = brokers
        self._client = client
        self._stack = stack
        self._loads: dict[int, Load] = {}
        self._numbers = itertools.count(1)
        self._sequences = itertools.count(1)
        self.name = name or f"benchmark-{secrets.token_hex(4)}"
        self._make_topics()
        self._partition = crc32c(self.name.encode()) % TRANSACTIONS_PARTITIONS
        until(self.is_open, "the coordinator serves", every_seconds=0.2)

    def load(self, node_id: int) -> Load:
        if node_id not in self._loads:
            self._loads[node_id] = self._stack.enter_context(open_load(self._brokers[node_id]))
        return self._loads[node_id]

    def _ask(self, node_id: int, request: m.Request, kind: type[_R]) -> _R:
        return decode(
            self.load(node_id).exchange([frames.encode(request, next(self._numbers))]), kind
        )

    def _open(self, node_id: int) -> OpenTransactionResponse:
        request = OpenTransactionRequest(transactional_id=self.name, instance=INSTANCE)
        return self._ask(node_id, request, OpenTransactionResponse)

    def _make_topics(self) -> None:
        def made() -> bool:
            topics = self._client.metadata([STAGED, TRANSACTIONS]).topics
            leaders = [one.leader for topic in topics.values() for one in topic.partitions]
            if len(topics) == 2 and min(leaders) >= 0:
                return True
            for node_id in self._brokers:
                self._open(node_id)
            return False

        until(made, "both internal topics are there", every_seconds=0.2)

    def is_open(self) -> bool:
        """Open it, or show that it lives."""
        info = self._client.metadata([TRANSACTIONS]).topics[TRANSACTIONS]
        self._coordinator = info.partitions[self._partition].leader
        if self._coordinator < 0:
            return False
        response = self._open(self._coordinator)
        self.epoch = response.epoch
        return not response.error_code

    # --- a transaction -------------------------------------------------------------------------
    def staged_on(self, node_id: int, number: int = 0) -> Staged:
        """A partition of `__staged` that the broker leads: `number` takes one of them."""
        info = self._client.metadata([STAGED]).topics[STAGED]
        led = [one for one in info.partitions if one.leader == node_id]
        assert led, f"broker {node_id} leads no partition of {STAGED}"
        one = led[number % len(led)]
        return Topic(STAGED, info.topic_id, info.schema_id, one.leader_epoch), one.partition

    def begin(self) -> None:
        self.sequence = next(self._sequences)

    def frames(
        self, staged: Staged, rows: Iterable[tuple[Topic, bytes, int]], count: int = 1
    ) -> list[Frame]:
        """Each stages these batches of partitions 0, with the number of rows in each."""
        values: list[tuple[Any, ...]] = [
            (0, self.name, self.epoch, self.sequence, ATTEMPT, target.topic_id, 0, count, batch)
            for target, batch, count in rows
        ]
        schema = INTERNAL_TOPICS[STAGED].schema
        columns = [
            pa.array(column, field.type)
            for column, field in zip(zip(*values, strict=True), schema, strict=True)
        ]
        data = pa.record_batch(columns, schema=schema)
        batch = encode_batch(data, schema_id=1, timestamp_us=time.time_ns() // 1000)
        topic, partition = staged
        entry = m.ProducePartition(topic.topic_id, partition, topic.leader_epoch, len(batch))
        request = m.ProduceRequest(partitions=[entry])
        return [
            [frames.encode(request, next(self._numbers), len(batch)), batch] for _ in range(count)
        ]

    def commit(
        self, partition: int, first: int, next_offset: int, row_count: int, *, wait: int = 1
    ) -> None:
        """Returns when all is published, or with `wait` 0 decided."""
        part = CommittedPart(partition, first, next_offset, row_count)
        request = CommitTransactionRequest(
            transactional_id=self.name,
            epoch=self.epoch,
            sequence=self.sequence,
            attempts=[CommittedAttempt(ATTEMPT, row_count, [part])],
            wait=wait,
        )
        response = self._ask(self._coordinator, request, CommitTransactionResponse)
        if response.error_code or (wait and not response.is_published):
            raise AssertionError(f"not committed and published: {response}")


def decode(reply: bytes | memoryview, kind: type[_R]) -> _R:
    response = frames.decode_response(header_of(reply), kind.API)
    assert isinstance(response, kind)
    return response


def open_frame(name: str, number: int) -> Frame:
    request = OpenTransactionRequest(transactional_id=name, instance=INSTANCE)
    return [frames.encode(request, number)]


def ids_of(partition: int) -> Iterator[str]:
    """Transactional ids of one partition of `__transactions`."""
    names = (f"benchmark-{number}" for number in itertools.count())
    return (one for one in names if crc32c(one.encode()) % TRANSACTIONS_PARTITIONS == partition)


def send(load: Load, requests: Sequence[Frame]) -> tuple[int, int]:
    """The base offsets of the first and the last batch."""
    offsets: list[int] = []
    waiting = 0
    for frame in requests:
        if waiting == DEPTH:
            offsets.append(produced(load.receive()).base_offset)
            waiting -= 1
        load.send(frame)
        waiting += 1
    offsets += [produced(load.receive()).base_offset for _ in range(waiting)]
    return offsets[0], offsets[-1]
