"""What a fetch has brought, as offsets and values.

Owns rule 4 of the checker: a fetch begins with the batch that holds the asked offset, and has no
gap.
"""

from __future__ import annotations

from quiverlog.batch.codec import decode_batch, split_batches
from quiverlog.errors import CorruptBatch

from .checker import PartitionModel, Violation
from .rows import HISTORY

__all__ = ["rows_of"]


def rows_of(
    model: PartitionModel, asked_offset: int, body: bytes, *, epochs: dict[int, int] | None = None
) -> tuple[int, list[tuple[int, list[int]]]]:
    """Decode a fetched body (rule 4): the offset after the last row, and the batches' values."""
    expected = -1
    found: list[tuple[int, list[int]]] = []
    try:
        for header, view in split_batches(memoryview(body)):
            if expected < 0 and not header.base_offset <= asked_offset < header.next_offset:
                raise Violation(
                    f"asked for {asked_offset}, got rows {header.base_offset} to"
                    f" {header.next_offset}"
                )
            if expected >= 0 and header.base_offset != expected:
                raise Violation(f"a gap: {expected} was due, {header.base_offset} came")
            data = decode_batch(view, header, HISTORY)
            found.append((header.base_offset, data.column(0).to_pylist()))
            if epochs is not None:
                epochs[header.next_offset - 1] = header.leader_epoch
            expected = header.next_offset
    except CorruptBatch as error:
        if not model.damaged:
            raise Violation(f"{model.name}: damaged bytes were served: {error}") from error
    return max(expected, asked_offset), found
