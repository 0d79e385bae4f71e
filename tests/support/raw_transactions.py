"""Transactions by single requests: what a client in another language does, step by step.

Owns connections to all brokers of a cluster. Each call asks again where an answer is retriable,
until its deadline, as any client must.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, NamedTuple

import pyarrow as pa

from quiverlog.addresses import parse_address
from quiverlog.batch.checksum import crc32c
from quiverlog.batch.schema import serialize_schema
from quiverlog.core.controller.internal_topics import INTERNAL_TOPICS, STAGED, TRANSACTIONS
from quiverlog.errors import ConnectionFailed, QuiverlogError, error_from_code
from quiverlog.types import Durability
from quiverlog.wire import messages as m
from quiverlog.wire.transaction_messages import (
    AbortTransactionRequest,
    AbortTransactionResponse,
    CommittedAttempt,
    CommittedPart,
    CommitTransactionRequest,
    CommitTransactionResponse,
    OpenTransactionRequest,
    OpenTransactionResponse,
)

from .batches import encode_data
from .rawclient import SCHEMA, RawClient, Stored, make_batch

__all__ = ["RawTransactor", "Staged"]

DEADLINE_S = 60.0
_PAUSE_S = 0.05


class Staged(NamedTuple):
    """Rows of an attempt that are in `__staged`."""

    attempt: bytes
    parts: list[CommittedPart]

    @property
    def committed(self) -> CommittedAttempt:
        return CommittedAttempt(self.attempt, sum(p.row_count for p in self.parts), self.parts)


class RawTransactor:
    def __init__(self, bootstrap: str) -> None:
        self._seeds = [parse_address(one) for one in bootstrap.split(",")]
        self._clients: dict[tuple[str, int], RawClient] = {}
        self._addresses: dict[int, tuple[str, int]] = {}
        self.topics: dict[str, Any] = {}
        self.controller_id = -1
        self._producer: tuple[int, int] = (-1, -1)
        self._sequences: dict[int, int] = {}

    def __enter__(self) -> RawTransactor:
        self.refresh()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for client in self._clients.values():
            client.close()

    # --- the cluster ---------------------------------------------------------------------------
    def _client(self, address: tuple[str, int]) -> RawClient:
        if address not in self._clients:
            self._clients[address] = RawClient(address)
        return self._clients[address]

    def _ask(self, address: tuple[str, int], request: m.Request, body: bytes = b"") -> Any:
        return self._on(address, lambda client: client.ask(request, body))

    def _on(self, address: tuple[str, int], use: Callable[[RawClient], Any]) -> Any:
        try:
            return use(self._client(address))
        except OSError as error:
            client = self._clients.pop(address, None)
            if client is not None:
                client.close()
            raise ConnectionFailed(str(error)) from error

    def refresh(self) -> None:
        for address in [*self._addresses.values(), *self._seeds]:
            with contextlib.suppress(QuiverlogError):
                found = self._ask((address[0], address[1]), m.MetadataRequest())
                self._addresses = {one.node_id: (one.host, one.port) for one in found.brokers}
                self.topics = {one.name: one for one in found.topics}
                self.controller_id = found.controller_id
                return
        raise ConnectionFailed("no broker answers METADATA")

    def _again(self, ask: Any) -> Any:
        deadline = time.monotonic() + DEADLINE_S
        while True:
            try:
                return ask()
            except QuiverlogError as error:
                if not (error.retriable or error.refresh_metadata) or time.monotonic() > deadline:
                    raise
            time.sleep(_PAUSE_S)
            with contextlib.suppress(QuiverlogError):
                self.refresh()

    def leader(self, name: str, partition: int) -> int:
        return int(self.topics[name].partitions[partition].leader_id)

    def _address_of(self, name: str, partition: int) -> tuple[str, int]:
        address = self._addresses.get(self.leader(name, partition))
        if address is None:
            raise ConnectionFailed(f"{name}-{partition} has no live leader")
        return address

    def ask_leader(self, name: str, partition: int, request: m.Request, body: bytes = b"") -> Any:
        return self._ask(self._address_of(name, partition), request, body)

    def _ask_controller(self, request: m.Request) -> Any:
        address = self._addresses.get(self.controller_id)
        if address is None:
            raise ConnectionFailed("the cluster has no controller now")
        return self._ask(address, request)

    def coordinator_of(self, tid: str) -> int:
        return crc32c(tid.encode()) % len(self.topics[TRANSACTIONS].partitions)

    def _ask_coordinator(self, tid: str, request: m.Request) -> Any:
        def ask() -> Any:
            if TRANSACTIONS in self.topics:
                return self.ask_leader(TRANSACTIONS, self.coordinator_of(tid), request)
            return self._ask_controller(request)

        return self._again(ask)

    # --- transactions --------------------------------------------------------------------------
    def open(self, tid: str, instance: bytes, timeout_ms: int = 60_000) -> OpenTransactionResponse:
        found: OpenTransactionResponse = self._ask_coordinator(
            tid,
            OpenTransactionRequest(transactional_id=tid, instance=instance, timeout_ms=timeout_ms),
        )
        return found

    def commit(
        self, tid: str, epoch: int, sequence: int, *staged: Staged, **options: Any
    ) -> CommitTransactionResponse:
        request = CommitTransactionRequest(
            transactional_id=tid,
            epoch=epoch,
            sequence=sequence,
            attempts=[one.committed for one in staged],
            **options,
        )
        found: CommitTransactionResponse = self._ask_coordinator(tid, request)
        return found

    def abort(
        self, tid: str, epoch: int, sequence: int, *, force: bool = False
    ) -> AbortTransactionResponse:
        request = AbortTransactionRequest(
            transactional_id=tid, epoch=epoch, sequence=sequence, force=force
        )
        found: AbortTransactionResponse = self._ask_coordinator(tid, request)
        return found

    # --- staging -------------------------------------------------------------------------------
    def staged_partition(self, target: tuple[str, int]) -> int:
        """One that is led by the leader of the target; any where there is none."""
        leader = self.leader(*target)
        partitions = self.topics[STAGED].partitions
        return next((i for i, one in enumerate(partitions) if one.leader_id == leader), 0)

    def stage(
        self,
        tid: str,
        epoch: int,
        sequence: int,
        targets: Sequence[tuple[str, int, int, int]],
        attempt: bytes = b"",
    ) -> Staged:
        """Stage rows for (topic, partition, first id, row count), each as one batch."""
        attempt = attempt or os.urandom(16)
        by_staged: dict[int, list[tuple[str, int, int, int]]] = {}
        for target in targets:
            by_staged.setdefault(self.staged_partition(target[:2]), []).append(target)
        parts = [
            self._again(
                lambda number=number, some=some: self._stage(
                    tid, epoch, sequence, attempt, number, some
                )
            )
            for number, some in sorted(by_staged.items())
        ]
        return Staged(attempt, parts)

    def _stage(
        self,
        tid: str,
        epoch: int,
        sequence: int,
        attempt: bytes,
        partition: int,
        targets: Sequence[tuple[str, int, int, int]],
    ) -> CommittedPart:
        rows = [
            {
                "kind": 0,
                "transactional_id": tid,
                "epoch": epoch,
                "sequence": sequence,
                "attempt": attempt,
                "topic_id": self.topics[name].topic_id,
                "partition": number,
                "row_count": count,
                "batch": make_batch(first, count),
            }
            for name, number, first, count in targets
        ]
        if self._producer[0] < 0:
            found = self._ask_controller(m.InitProducerIdRequest())
            self._producer = found.producer_id, found.producer_epoch
        base = self._sequences.get(partition, 0)
        data = pa.RecordBatch.from_pylist(rows, schema=INTERNAL_TOPICS[STAGED].schema)
        batch = bytes(
            encode_data(data, at_us=time.time_ns() // 1000, producer=(*self._producer, base))
        )
        entry = m.ProducePartition(self.topics[STAGED].topic_id, partition, batch_bytes=len(batch))
        request = m.ProduceRequest(durability=Durability.TOPIC_DEFAULT, partitions=[entry])
        response = self.ask_leader(STAGED, partition, request, batch)
        (result,) = response.partitions
        if result.error_code:
            raise error_from_code(result.error_code, result.error_message)
        self._sequences[partition] = base + len(rows)
        first = int(result.base_offset)
        return CommittedPart(partition, first, first + len(rows), sum(t[3] for t in targets))

    # --- reading -------------------------------------------------------------------------------
    def read(self, name: str, partition: int) -> list[int]:
        """The ids of all readable rows, in order."""

        def ask() -> list[Stored]:
            address = self._address_of(name, partition)
            topic_id = self.topics[name].topic_id
            return self._on(address, lambda client: [*client.read_all(topic_id, partition)])

        return [one for stored in self._again(ask) for one in stored.ids]

    def read_topic(self, name: str) -> list[list[int]]:
        return [self.read(name, p) for p in range(len(self.topics[name].partitions))]

    def create(self, name: str, partitions: int, replication_factor: int) -> None:
        topic = m.NewTopic(name, serialize_schema(SCHEMA), partitions, replication_factor)
        found = self._again(lambda: self._ask_controller(m.CreateTopicsRequest(topics=[topic])))
        assert not found.topics[0].error_code, found.topics[0].error_message
        self.refresh()
