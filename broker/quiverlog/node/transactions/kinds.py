"""What an internal topic brings: its machine, its rows, and how records become batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, Protocol

import pyarrow as pa

from quiverlog.batch import codec
from quiverlog.batch.codec import encode_batch
from quiverlog.batch.header import FLAG_CODEC_MASK, BatchHeader
from quiverlog.errors import CorruptBatch, QuiverlogError
from quiverlog.limits import MIB
from quiverlog.node.partitions.replica import Replica
from quiverlog.node.transactions.replay import Decoder, Read
from quiverlog.types import Now

__all__ = ["Kind", "Machine", "Proposed", "bytes_of", "encode_rows", "read_batch"]

_BATCH_BYTES: Final = 1 * MIB
_ROW_BYTES: Final = 32

Proposed = Callable[[int, QuiverlogError | None, Now], None]
"""`then(offset of the first record, None, now)`, or `then(-1, error, now)`; called exactly once."""


class Machine(Protocol):
    """The state of one partition during one life; a new one is made for each replay."""

    def apply(self, offset: int, record: Any) -> None:
        """Take a record of the log: in a replay each, in order, also of snapshots (`Kind.capture`);
        when serving each that was pended, in the order of `pend`, when it is safe.
        """

    def pend(self, record: Any) -> None:
        """See a record that is proposed and not yet safe."""

    def drop_pending(self) -> None:
        """Forget all that was pended and not applied: nothing of it was stored."""


class Kind(Decoder, Protocol):
    """One internal topic. `decode` runs in a job, all else on the loop.

    schema: the topic's, fixed in code.
    level: of records where the partition has several replicas; FLUSHED where it has one.
    """

    schema: pa.Schema
    level: int
    takes_snapshots: bool

    def new_machine(self, replica: Replica, leader_epoch: int) -> Machine: ...

    def row(self, record: Any) -> tuple[Any, ...]:
        """Return the values of the record's row in the order of the schema: bytes, str, int."""

    def decode(self, header: BatchHeader, prefix: memoryview, read: Read) -> list[tuple[int, Any]]:
        """Return (offset, record) of each row that the machine wants, in order.

        `prefix`: the first PREFIX_BYTES. `read` verifies the CRC of a whole batch, which
        `read_batch` takes. Raises CorruptBatch.
        """

    def capture(self, machine: Any) -> Iterator[Any]:
        """Return the records of a snapshot, BEGIN first, END last: of the state now, with all that
        is pended; each is made when it is taken (copy no more than a dict in the call).

        They are appended in pieces, other records in between, and neither pended nor applied when
        serving. A replay applies them like all others; the machine has the rule: where the first
        row is BEGIN, its rows are the state, and others wait for END; a later snapshot is passed.
        """

    # `hosted`: a Hosted, which holds its Kind and so is above this file.
    def serving(self, hosted: Any, now: Now) -> None:
        """Begin to serve: all rows are applied and safe. After an exception it does not serve."""

    def stopped(self, hosted: Any, error: QuiverlogError, now: Now) -> None:
        """Serve no longer: once after each `serving`, when all proposals have their errors."""


def encode_rows(
    schema: pa.Schema, schema_id: int, rows: Sequence[tuple[Any, ...]], now: Now
) -> list[tuple[BatchHeader, memoryview]]:
    """Return batches, without a producer, of at most some 1 MiB each, or of one row."""
    batches: list[tuple[BatchHeader, memoryview]] = []
    first = byte_count = 0
    for number, row in enumerate(rows):
        byte_count += bytes_of(row)
        if byte_count >= _BATCH_BYTES or number + 1 == len(rows):
            # One conversion for all columns: a column each takes three times as long.
            structs = pa.array(rows[first : number + 1], pa.struct(list(schema)))
            data = pa.RecordBatch.from_struct_array(structs)
            batch = encode_batch(data, schema_id=schema_id, timestamp_us=max(0, now.wall_us))
            batches.append((BatchHeader.unpack(batch), memoryview(batch)))
            first, byte_count = number + 1, 0
    assert first == len(rows), "each row is in a batch"
    return batches


def bytes_of(row: tuple[Any, ...]) -> int:
    return _ROW_BYTES + sum(len(value) for value in row if isinstance(value, bytes | str))


def read_batch(header: BatchHeader, view: memoryview, schema: pa.Schema) -> pa.RecordBatch:
    """Return the rows of a whole batch whose CRC is verified. Raises CorruptBatch."""
    if header.flags & ~FLAG_CODEC_MASK:
        raise CorruptBatch(f"its flags {header.flags:#04x} are unknown to this version.")
    return codec.read_rows(view, header, schema, schema)
