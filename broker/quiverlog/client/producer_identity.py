"""The identity machine: producer id, epoch and sequence numbers of one partition.

    numbered --a batch failed for good, or the broker forgot us--> broken
    numbered --another partition has taken the next epoch--------> broken
    broken   --no answer is owed, the oldest batch is not stored-> `renew`: numbered, under the next
               epoch, or under this one where nothing is left in the network
    broken   --a batch behind the failed one is acknowledged-----> numbered: that one was stored

Invariants:

- Sequence numbers of a partition have no gap under one identity: what is numbered is sent, or the
  machine is broken and numbers anew.
- A batch gets other numbers only when it is not stored under the old ones, *and never will be*. An
  answer speaks of its moment: what was sent and not answered may arrive later. So numbers that such
  a batch has used are used again under a newer epoch only, whose answer ends the older one.
"""

from __future__ import annotations

from collections.abc import Sequence

from quiverlog.types import NO_SEQUENCE

from .producer_types import EncodedBatch, Identity
from .restamp import restamp

__all__ = ["Numbering"]

SEQUENCES = 1 << 31


class Numbering:
    """See the module's docstring. `is_idempotent` False: batches carry no numbers at all.

    Attributes:
        is_broken: the numbers have a hole, or the broker does not know them any more.
        is_known: the broker has stored a batch under this identity.
        wants_epoch: only the next epoch tells what became of the oldest batch.
    """

    __slots__ = (
        "_hole", "_next_sequence", "_resume", "identity", "is_broken", "is_idempotent", "is_known",
        "wants_epoch",
    )  # fmt: skip

    def __init__(self, identity: Identity, *, is_idempotent: bool) -> None:
        self.identity = identity
        self.is_idempotent = is_idempotent
        self.is_broken = self.is_known = self.wants_epoch = False
        self._next_sequence = 0
        self._hole = -1  # The index of the newest batch whose numbers are lost.
        # Index and sequence of the oldest such batch, where none that was numbered like it or later
        # is stored or under way.
        self._resume: tuple[int, int] | None = None

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

    @property
    def needs_epoch(self) -> bool:
        """True where `renew` takes another identity."""
        return self._resume is None

    def break_off(self, batch: EncodedBatch, *, is_settled: bool = False) -> None:
        """A numbered batch will never be stored: what follows is out of order for the broker.

        Args:
            is_settled: nothing that was sent under these numbers or later ones may be stored.
        """
        if not self.is_idempotent:
            return
        if not is_settled or (self.is_broken and self._resume is None):
            self._resume = None
        elif self._resume is None or batch.index < self._resume[0]:
            self._resume = (batch.index, batch.sequence)
        self.is_broken = True
        self._hole = max(self._hole, batch.index)

    def unsettle(self) -> None:
        """A batch was sent and not answered: it may arrive at any time."""
        self._resume = None

    def supersede(self) -> None:
        """The producer has a newer identity: nothing more is stored under this one."""
        self.is_broken = self.is_idempotent
        self.wants_epoch = False
        self._resume = None

    def acknowledged(self, batch: EncodedBatch, newest: Identity) -> None:
        """A batch is stored, and so is all that was numbered before it."""
        self.is_known = True
        if not self.is_broken or self.identity != newest:
            return
        if batch.index > self._hole:
            self.is_broken = self.wants_epoch = False
        if self._resume is not None and batch.index > self._resume[0]:
            self._resume = None

    def is_never_stored(self, batch: EncodedBatch, next_sequence: int) -> bool:
        """Whether a broker that has ended the batch's epoch says that it is not stored.

        Args:
            next_sequence: see `ProducePartitionResult`.
        """
        if next_sequence < 0 or (next_sequence == 0 and self.is_known):
            return False  # A newer epoch has written, or the broker has forgotten us.
        return (batch.sequence - next_sequence) % SEQUENCES < SEQUENCES // 2

    def renew(self, identity: Identity, waiting: Sequence[EncodedBatch]) -> None:
        """Number what waits anew. None of it is stored: each comes after one that is not."""
        assert self.is_broken
        if identity != self.identity:
            self.identity = identity
            self.is_known = False
            self._next_sequence = 0
        else:
            assert self._resume is not None, "numbers that may arrive later are not used again"
            index, self._next_sequence = self._resume
            if waiting and waiting[0].index < index:
                self._next_sequence = waiting[0].sequence
        self.is_broken = self.wants_epoch = False
        self._resume, self._hole = None, -1
        for batch in waiting:
            batch.maybe_stored = False
            batch.identity, batch.sequence = self.take(batch.row_count)
            restamp(batch.encoded, *identity, batch.sequence)
