"""Producer id, epoch and sequence numbers of one partition.

    numbered --numbers are lost (`break_off`), or a newer identity (`supersede`)--> broken
    broken   --a later batch is acknowledged--> numbered
    broken   --nothing in flight, the oldest batch is not stored: `renew`--> numbered

`renew` takes up the lost numbers where no batch with them or later ones can be stored, else it
begins at 0 under another identity. Invariants:

- The stored sequence numbers of a partition have no gap under one identity.
- A batch gets other numbers, and so another checksum, only when it is known not to be stored under
  the old ones.
"""

from __future__ import annotations

from collections.abc import Sequence

from quiverlog.batch.codec import Encoded, write_crc
from quiverlog.batch.header import BatchHeader
from quiverlog.types import NO_SEQUENCE

from .types import EncodedBatch, Identity

__all__ = ["Numbering", "restamp"]


def restamp(batch: Encoded, producer_id: int, producer_epoch: int, base_sequence: int) -> None:
    header = BatchHeader.unpack(batch)
    assert header.total_bytes == len(batch)
    header._replace(
        producer_id=producer_id, producer_epoch=producer_epoch, base_sequence=base_sequence
    ).pack_into(batch)
    write_crc(batch)


SEQUENCES = 1 << 31


class Numbering:
    """The numbers of one partition; batches carry none where `is_idempotent` is False.

    Attributes:
        is_broken: the numbers have a hole, or the identity is superseded.
        is_known: the broker has stored a batch under this identity.
        wants_epoch: only a new epoch settles whether the oldest batch is stored.
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
        # Index and sequence of the oldest such batch, where neither its numbers nor later ones are
        # stored or in flight.
        self._resume: tuple[int, int] | None = None

    def take(self, row_count: int) -> tuple[Identity, int]:
        assert row_count > 0
        sequence = self.next_sequence
        self._next_sequence = (self._next_sequence + row_count) % SEQUENCES
        return self.identity, sequence

    @property
    def next_sequence(self) -> int:
        return self._next_sequence if self.is_idempotent else NO_SEQUENCE

    @property
    def needs_epoch(self) -> bool:
        return self._resume is None

    def break_off(self, batch: EncodedBatch, *, is_settled: bool = False) -> None:
        """Lose a batch's numbers: the broker may refuse later ones as out of order. `is_settled`:
        no batch with these numbers or later ones is stored, or may yet be."""
        if not self.is_idempotent:
            return
        if not is_settled or (self.is_broken and self._resume is None):
            self._resume = None
        elif self._resume is None or batch.index < self._resume[0]:
            self._resume = (batch.index, batch.sequence)
        self.is_broken = True
        self._hole = max(self._hole, batch.index)

    def unsettle(self) -> None:
        # A batch has no answer, and may arrive at any time: lost numbers are not taken up.
        self._resume = None

    def supersede(self) -> None:
        self.is_broken = self.is_idempotent
        self.wants_epoch = False
        self._resume = None

    def acknowledged(self, batch: EncodedBatch, newest: Identity) -> None:
        """Record that a batch is stored, and with it all that were numbered before it."""
        self.is_known = True
        if not self.is_broken or self.identity != newest:
            return
        if batch.index > self._hole:
            self.is_broken = self.wants_epoch = False
        if self._resume is not None and batch.index > self._resume[0]:
            self._resume = None

    def is_never_stored(self, batch: EncodedBatch, next_sequence: int) -> bool:
        """Return True if InvalidProducerEpoch and `ProducePartitionResult.next_sequence` prove that
        the batch is not stored."""
        if next_sequence < 0 or (next_sequence == 0 and self.is_known):
            return False  # A newer epoch has written, or the broker has dropped the state.
        return (batch.sequence - next_sequence) % SEQUENCES < SEQUENCES // 2

    def renew(self, identity: Identity, waiting: Sequence[EncodedBatch]) -> None:
        """Number the waiting batches anew: none is stored, as each follows one that is not."""
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
