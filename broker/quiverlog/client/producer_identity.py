"""The identity machine: producer id, epoch and sequence numbers of one partition.

    numbered --a batch failed for good, or the broker forgot us--> broken
    broken   --nothing is under way, the oldest batch is not stored--> asks for a producer id
    asks     --`renew`--> numbered, from sequence 0 on

Invariants:

- Sequence numbers of a partition have no gap under one identity: what is numbered is sent, or the
  machine is broken and numbers anew.
- A batch gets other numbers only when it is known not to be stored under the old ones.
"""

from __future__ import annotations

from collections.abc import Iterable

from quiverlog.types import NO_SEQUENCE

from .producer_types import EncodedBatch, Identity
from .restamp import restamp

__all__ = ["Numbering"]

SEQUENCES = 1 << 31


class Numbering:
    """See the module's docstring. `is_idempotent` False: batches carry no numbers at all."""

    __slots__ = ("_next_sequence", "identity", "is_broken", "is_idempotent", "is_known")

    def __init__(self, identity: Identity, *, is_idempotent: bool) -> None:
        self.identity = identity
        self.is_idempotent = is_idempotent
        self.is_broken = False
        """The numbers have a hole, or the broker does not know them any more."""
        self.is_known = False
        """The broker has stored a batch under this identity."""
        self._next_sequence = 0

    def take(self, row_count: int) -> tuple[Identity, int]:
        """The numbers of the next batch."""
        assert row_count > 0
        sequence = self.next_sequence
        self._next_sequence = (self._next_sequence + row_count) % SEQUENCES
        return self.identity, sequence

    @property
    def next_sequence(self) -> int:
        """The base sequence of the next batch."""
        return self._next_sequence if self.is_idempotent else NO_SEQUENCE

    def break_off(self) -> None:
        """A numbered batch will never be stored: what follows is out of order for the broker."""
        self.is_broken = self.is_idempotent

    def renew(self, identity: Identity, waiting: Iterable[EncodedBatch]) -> None:
        """Number what waits anew. None of it is stored: each comes after one that is not."""
        assert self.is_broken
        self.is_broken = self.is_known = False
        self.identity = identity
        self._next_sequence = 0
        for batch in waiting:
            batch.maybe_stored = False
            batch.identity, batch.sequence = self.take(batch.row_count)
            restamp(batch.encoded, *identity, batch.sequence)
