"""A holder of a transactional id, written from docs/ alone: the stranger's frames, and pyarrow.

It is written from docs/protocol.md, docs/transactions.md and docs/storage-format.md, for topics of
one column of int64, `n`, with one partition. No quiverlog.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar

import pyarrow as pa

from .client import (
    BATCH_HEADER_BYTES,
    CREATE_TOPICS,
    FETCH,
    HEADER,
    INIT_PRODUCER_ID,
    METADATA,
    PRODUCE,
    Refused,
    Stranger,
    check,
    crc32c,
    read_batches,
)

T = TypeVar("T")
TOPIC_SCHEMAS, OPEN, COMMIT, ABORT = 10, 20, 21, 22
TRY_AGAIN = {9, 21, 31, 32, 33, 38, 59, 62, 90, 91, 92}
"""Errors of docs/errors.md that a moment and newer metadata may mend."""
PATIENCE_S = 20
NUMBERS = pa.schema({"n": pa.int64()})


class Topic(NamedTuple):
    topic_id: bytes
    leaders: dict[int, int]
    """By partition; -1: none."""


class Opened(NamedTuple):
    epoch: int
    last_sequence: int
    is_publishing: bool


class Committed(NamedTuple):
    outcome: int
    row_count: int
    durability: int
    is_published: bool


def arrow_batch(rows: pa.RecordBatch, producer: tuple[int, int, int] = (-1, -1, -1)) -> bytes:
    """A batch under schema 1; `producer`: id, epoch and the first row's sequence."""
    message = rows.serialize().to_pybytes()
    message += bytes(-(BATCH_HEADER_BYTES + len(message)) % 64)
    producer_id, epoch, sequence = producer
    now = time.time_ns() // 1000
    size = BATCH_HEADER_BYTES - 16 + len(message)
    fields = [0, 0, size, 0, 1, 0, epoch, producer_id, sequence, rows.num_rows, 1, 0, now, now]
    checked = (HEADER.pack(*fields) + message)[20:]
    fields[3] = crc32c(checked)
    return HEADER.pack(*fields)[:20] + checked


class TransactionalStranger:
    """One client of a cluster: a connection to each broker, and one producer that stages."""

    def __init__(self, host: str, port: int) -> None:
        self._bootstrap = self._connect(host, port)
        self._connections: dict[int, Stranger] = {}
        self.controller_id = -1
        self.addresses: dict[int, tuple[str, int]] = {}
        self.topics: dict[str, Topic] = {}
        self._producer: tuple[int, int] | None = None
        self._staged_schema: pa.Schema | None = None
        self._sequences: dict[int, int] = {}
        """Rows that the producer has staged, by partition of `__staged`."""
        self.refresh()

    def close(self) -> None:
        for one in (self._bootstrap, *self._connections.values()):
            one.close()

    @staticmethod
    def _connect(host: str, port: int) -> Stranger:
        connection = Stranger(host, port)
        connection.hello()
        return connection

    def at(self, node_id: int) -> Stranger:
        if node_id not in self._connections:
            self._connections[node_id] = self._connect(*self.addresses[node_id])
        return self._connections[node_id]

    def refresh(self) -> None:
        answer, _ = self._bootstrap.ask(METADATA)
        check(answer[3], answer[4])
        self.controller_id = answer[6]
        self.addresses = {node_id: (host, port) for node_id, host, port, _ in answer[8]}
        self.topics = {
            name: Topic(topic_id, {one[0]: one[2] for one in partitions})
            for name, topic_id, _, _, _, _, _, _, partitions, *_ in answer[9]
        }

    def _again(self, ask: Callable[[], T]) -> T:
        """What `ask` returns, under newer metadata each time."""
        deadline = time.monotonic() + PATIENCE_S
        pause_s = 0.02
        while True:
            try:
                return ask()
            except (Refused, KeyError) as error:
                code = error.code if isinstance(error, Refused) else None
                if code not in TRY_AGAIN | {None} or time.monotonic() > deadline:
                    raise
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, 1)
            self.refresh()

    def _ask(self, node_id: int, api: int, *fields: Any) -> list[Any]:
        answer, _ = self.at(node_id).ask(api, *fields)
        check(answer[3], answer[4])
        return answer

    # --- topics --------------------------------------------------------------------------------
    def create(self, name: str) -> None:
        topic = [name, NUMBERS.serialize().to_pybytes(), 1, -1, [], {}]

        def ask() -> None:
            answer = self._ask(self.controller_id, CREATE_TOPICS, [topic])
            check(*answer[5][0][2:4])

        self._again(ask)

    def read(self, name: str) -> list[int]:
        """All rows that may be read."""

        def ask() -> list[int]:
            found: list[int] = []
            topic = self.topics[name]
            while True:
                entry = [topic.topic_id, 0, -1, len(found)]
                answer, body = self.at(topic.leaders[0]).ask(FETCH, 0, 1, 0, 1, "", -1, [entry])
                check(answer[3], answer[4])
                check(*answer[5][0][2:4])
                if not body:
                    return found
                found += [value for batch in read_batches(body) for value in batch.values]

        return self._again(ask)

    # --- the transaction -----------------------------------------------------------------------
    def coordinator(self, transactional_id: str) -> int:
        """The node that decides; the controller, while there is no `__transactions`."""
        if "__transactions" not in self.topics:
            return self.controller_id
        leaders = self.topics["__transactions"].leaders
        return leaders[crc32c(transactional_id.encode()) % len(leaders)]

    def _ask_coordinator(self, api: int, transactional_id: str, *fields: Any) -> list[Any]:
        return self._again(
            lambda: self._ask(self.coordinator(transactional_id), api, transactional_id, *fields)
        )

    def open(self, transactional_id: str, instance: bytes) -> Opened:
        answer = self._ask_coordinator(OPEN, transactional_id, instance, 60_000)
        return Opened(answer[5], answer[6], answer[8])

    def commit(
        self, transactional_id: str, epoch: int, sequence: int, attempts: list[Any], wait: int = 1
    ) -> Committed:
        fields = epoch, sequence, attempts, -1, 30_000, wait
        return Committed(*self._ask_coordinator(COMMIT, transactional_id, *fields)[5:9])

    def abort(self, transactional_id: str, epoch: int, sequence: int) -> int:
        """1: it had committed."""
        return int(self._ask_coordinator(ABORT, transactional_id, epoch, sequence)[5])

    # --- its rows ------------------------------------------------------------------------------
    def stage(
        self, transactional_id: str, epoch: int, sequence: int, rows: dict[str, list[int]]
    ) -> list[Any]:
        """Stages rows, by topic, as one attempt; returns how a COMMIT names it."""
        attempt = os.urandom(16)
        self._again(self._prepare)
        by_partition: dict[int, list[dict[str, Any]]] = {}
        for name, values in rows.items():
            batch = arrow_batch(pa.record_batch({"n": values}, schema=NUMBERS))
            staged = by_partition.setdefault(self._staged_partition(name), [])
            staged.append(
                {
                    "kind": 0,
                    "transactional_id": transactional_id,
                    "epoch": epoch,
                    "sequence": sequence,
                    "attempt": attempt,
                    "topic_id": self.topics[name].topic_id,
                    "partition": 0,
                    "row_count": len(values),
                    "batch": batch,
                }
            )
        parts = [self._stage(partition, staged) for partition, staged in by_partition.items()]
        return [attempt, sum(part[3] for part in parts), parts]

    def _prepare(self) -> None:
        """Gets what staging needs once: the schema, and a producer."""
        staged = self.topics["__staged"]
        if self._staged_schema is None:
            answer = self._ask(self.controller_id, TOPIC_SCHEMAS, staged.topic_id)
            _, _, schema = answer[5][0]
            self._staged_schema = pa.ipc.read_schema(pa.py_buffer(schema))
        if self._producer is None:
            answer = self._ask(self.controller_id, INIT_PRODUCER_ID)
            self._producer = answer[5], answer[6]

    def _staged_partition(self, name: str) -> int:
        """One whose leader also leads the topic's partition; else the first."""
        wanted = self.topics[name].leaders[0]
        leaders = self.topics["__staged"].leaders
        return next((number for number, leader in leaders.items() if leader == wanted), 0)

    def _stage(self, partition: int, rows: list[dict[str, Any]]) -> list[int]:
        """The part: partition, first offset, offset behind the last, rows."""
        assert self._producer is not None
        sequence = self._sequences.get(partition, 0)
        batch = arrow_batch(
            pa.RecordBatch.from_pylist(rows, schema=self._staged_schema),
            (*self._producer, sequence),
        )

        def ask() -> int:
            staged = self.topics["__staged"]
            entry = [staged.topic_id, partition, -1, len(batch)]
            leader = self.at(staged.leaders[partition])
            answer, _ = leader.ask(PRODUCE, -1, 30_000, [entry], body=batch)
            check(answer[3], answer[4])
            check(*answer[5][0][2:4])
            return int(answer[5][0][4])

        first = self._again(ask)
        self._sequences[partition] = sequence + len(rows)
        return [partition, first, first + len(rows), sum(one["row_count"] for one in rows)]


@contextmanager
def transactional_stranger(address: str) -> Iterator[TransactionalStranger]:
    host, _, port = address.rpartition(":")
    stranger = TransactionalStranger(host, int(port))
    try:
        yield stranger
    finally:
        stranger.close()
