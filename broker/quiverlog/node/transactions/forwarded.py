"""FORWARD at the leader of a target: committed rows of one publish are appended, each once.

The rows were checked when they were staged, and they are decided: what has become stricter since
(sizes, validation, times) is no reason to refuse them. The publisher sends them until they are
safe.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import pyarrow as pa

from quiverlog.batch.codec import check_crc, split_batches
from quiverlog.batch.header import BatchHeader
from quiverlog.core.controller.internal_topics import refuse_internal
from quiverlog.errors import (
    CorruptBatch,
    InvalidRequest,
    OutOfOrderSequence,
    QuiverlogError,
    UnknownSchema,
)
from quiverlog.limits import FORWARD_BATCHES_MAX
from quiverlog.node.assignment.lookup import Lookup
from quiverlog.node.partitions.acknowledgements import BROKER, AppendEntry
from quiverlog.node.partitions.appends import Appends, OwnAppend
from quiverlog.node.partitions.replica import Replica
from quiverlog.node.runtime.admission import Admission
from quiverlog.node.runtime.metrics import NodeMetrics
from quiverlog.node.runtime.outbox import Outbox
from quiverlog.types import Durability, Now
from quiverlog.wire.transaction_messages import ForwardPartition, ForwardResponse, ForwardResult

__all__ = ["Batches", "Forwarded", "Part", "Targets", "check_batches", "refuse"]

Batches = Sequence[tuple[BatchHeader, memoryview]]
Part = tuple[ForwardPartition, Callable[[Mapping[int, pa.Schema]], Batches]]
Answer = Callable[[ForwardResponse, Exception | None, Now], None]

_LEVELS: Final = frozenset(Durability) - {Durability.TOPIC_DEFAULT}


class Forwarded(OwnAppend):
    """Forwarded rows, for a caller that gets the response when all are safe or refused."""

    __slots__ = ("_answer", "_parts", "_targets", "response")

    def __init__(self, targets: Targets, parts: Sequence[Part], answer: Answer | None) -> None:
        super().__init__(BROKER)
        self._targets = targets
        self._parts = parts
        self._answer = answer
        self.response = ForwardResponse(partitions=[])

    def admit(self, appends: Appends, now: Now) -> None:
        assert not self.response.partitions, "it is admitted once"
        parts, self._parts = self._parts, ()
        for entry, batches in parts:
            result = ForwardResult(entry.topic_id, entry.partition)
            self.response.partitions.append(result)
            self._targets.admit(self, entry, batches, result, now)

    def then(self, bug: Exception | None, now: Now) -> None:
        self.settle()
        assert self._answer is not None
        self._answer(self.response, bug, now)

    def settle(self) -> None:
        for entry in self.entries:
            if entry.error is not None:
                refuse(entry.result, entry.error)


def refuse(result: ForwardResult, error: QuiverlogError) -> None:
    assert error.code, "0 would acknowledge the rows"
    result.error_code, result.error_message = error.code, error.message
    result.base_offset = result.end_offset = -1


class Targets:
    """Appends forwarded rows to partitions that this broker leads."""

    __slots__ = ("_admission", "_lookup", "_metrics", "_outbox", "appends")

    def __init__(
        self,
        lookup: Lookup,
        appends: Appends,
        admission: Admission,
        outbox: Outbox,
        metrics: NodeMetrics,
    ) -> None:
        self._lookup = lookup
        self._admission = admission
        self._outbox = outbox
        self._metrics = metrics
        self.appends = appends

    def admit(
        self,
        forwarded: Forwarded,
        entry: ForwardPartition,
        batches: Callable[[Mapping[int, pa.Schema]], Batches],
        result: ForwardResult,
        now: Now,
    ) -> None:
        """Admit one entry, for one write at `Appends.finish`, or refuse it.

        Args:
            batches: return writable batches; gets the target's schemas.
        """
        try:
            replica = self._leading(entry)
            level = replica.state.level_of_committed(entry.durability)
            end_offset = self._admit(replica, entry, batches(replica.topic.schemas), result, now)
            result.durability = level
            forwarded.entries.append(AppendEntry(replica, level, end_offset, result))
        except QuiverlogError as error:
            refuse(result, error)
        except Exception as error:
            self._outbox.internal_error("FORWARD", error)
            refuse(result, QuiverlogError())

    def _leading(self, entry: ForwardPartition) -> Replica:
        if entry.leader_epoch < 0:
            raise InvalidRequest(
                f"`leader_epoch` is {entry.leader_epoch}: FORWARD is for one epoch."
            )
        if entry.durability not in _LEVELS:
            raise InvalidRequest(f"no durability has the number {entry.durability}.")
        self._admission.check_writable()
        self._admission.check_room()
        replica = self._lookup.leading(entry.topic_id, entry.partition)
        # Their rows decide what is published: a batch of others would stop a coordinator for good.
        refuse_internal(replica.topic.name, "no transaction writes it")
        replica.state.check_leader_epoch(entry.leader_epoch)
        replica.check_fault()
        return replica

    def _admit(
        self,
        replica: Replica,
        entry: ForwardPartition,
        batches: Batches,
        result: ForwardResult,
        now: Now,
    ) -> int:
        """Return the offset below which rows must be safe."""
        # Here, not before: what was admitted just now counts.
        headers = [header for header, _ in batches]
        _check_numbers(replica, entry, headers)
        try:
            stored = replica.producers.publishes.stored(headers, entry.base_sequence)
        except OutOfOrderSequence as error:
            self._lookup.check_end(replica)  # Another leader may have what is missing here.
            result.expected_sequence = error.details["next_sequence"]
            raise
        result.end_offset = stored.end_offset
        if new := list(batches[stored.batch_count :]):
            result.base_offset = self.appends.admit(replica, new, now)
            result.end_offset = replica.state.log_end_offset + replica.admitted_rows
        assert result.base_offset < result.end_offset, "batches have rows"
        self._metrics.batches_deduplicated += stored.batch_count
        return result.end_offset


def _check_numbers(replica: Replica, entry: ForwardPartition, headers: list[BatchHeader]) -> None:
    if not 0 < len(headers) <= FORWARD_BATCHES_MAX:
        raise InvalidRequest(
            f"{replica.name}: {len(headers)} batches, allowed are 1 to {FORWARD_BATCHES_MAX}."
        )
    first = headers[0]
    sequence = first.base_sequence
    if not 0 <= entry.base_sequence <= sequence:
        raise InvalidRequest(
            f"{replica.name}: the entry begins at sequence {entry.base_sequence}, its first batch"
            f" at {sequence}."
        )
    identity = (entry.producer_id, first.producer_epoch)
    for header in headers:
        if (header.producer_id, header.producer_epoch) != identity:
            raise InvalidRequest(f"{replica.name}: an entry is of one publish.")
        if header.base_sequence != sequence:
            raise InvalidRequest(
                f"{replica.name}: a batch has sequence {header.base_sequence} behind one that"
                f" ends at {sequence}."
            )
        sequence += header.row_count


def check_batches(view: memoryview, schemas: Mapping[int, pa.Schema]) -> Batches:
    """Return the batches of an entry that came from another broker.

    Raises CorruptBatch, UnknownSchema.
    """
    batches = list(split_batches(view))
    for header, batch in batches:
        if not header.is_plausible:
            raise CorruptBatch("a forwarded batch has an impossible header.")
        check_crc(batch, header)
        # This broker's metadata may lag behind those of the broker that has checked the rows.
        if header.schema_id not in schemas:
            raise UnknownSchema(f"the topic has no schema {header.schema_id}.")
    return batches
