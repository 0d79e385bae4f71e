"""Producer id, epoch and sequence numbers of one partition, and putting them into encoded batches.

    numbered --a batch failed for good, or the broker forgot the producer--> broken
    broken   --nothing is under way, the oldest batch is not stored--> asks for a producer id
    asks     --`renew`--> numbered, from sequence 0 on

Invariants:
- Sequence numbers of a partition have no gap under one identity.
- A batch gets other numbers only when it is known not to be stored under the old ones; they lie
  under its checksum, which is made anew (some 35 us a MiB).
"""

from __future__ import annotations

from collections.abc import Sequence

from quiverlog.batch.codec import Encoded, write_crc
from quiverlog.batch.header import BatchHeader
from quiverlog.types import NO_SEQUENCE

from .types import EncodedBatch, Identity

__all__ = ["Numbering", "restamp"]


# Give an encoded batch another producer's numbers.
def restamp(batch: Encoded, producer_id: int, producer_epoch: int, base_sequence: int) -> None:
    """Write the numbers and the new checksum into a whole encoded batch."""
    header = BatchHeader.unpack(batch)
    assert header.total_bytes == len(batch)
    header._replace(
        producer_id=producer_id, producer_epoch=producer_epoch, base_sequence=base_sequence
    ).pack_into(batch)
    write_crc(batch)


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
