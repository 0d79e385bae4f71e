"""The batches of one partition on their way to its leader, oldest first. No I/O, no clock.

Owns what may be sent now, and the pause after a failed try. `sender` owns the invariants of which
this queue keeps the order: what is in flight was sent before what waits, and what failed goes
again, in the order of the first try, before anything newer.

Must not know: requests, leaders, receivers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from quiverlog.limits import LEADER_SILENCE_MS, PRODUCER_IN_FLIGHT_MAX
from quiverlog.types import Now

from .producer_identity import Numbering
from .producer_types import EncodedBatch

__all__ = ["SILENCE_US", "PartitionQueue"]

SILENCE_US = LEADER_SILENCE_MS * 1_000
"""An answer that is owed for so long makes its leader suspect."""


@dataclass(slots=True, eq=False)
class PartitionQueue:
    """One partition's batches, oldest first: `in_flight`, then `retry`, then `queue`."""

    partition: int
    numbering: Numbering
    queue: deque[EncodedBatch] = field(default_factory=deque)
    in_flight: list[EncodedBatch] = field(default_factory=list)
    retry: list[EncodedBatch] = field(default_factory=list)
    not_before_us: int = 0
    next_index: int = 0
    awaits_metadata: bool = False
    """The last failure said that the leader may be another one: do not ask the old one again."""
    looked_us: int = 0
    """When the metadata were looked at because of an answer that does not come."""

    @property
    def is_idle(self) -> bool:
        return not (self.queue or self.in_flight or self.retry)

    def batches(self) -> Iterator[EncodedBatch]:
        """All that are neither acknowledged nor failed."""
        yield from self.in_flight
        yield from self.retry
        yield from self.queue

    def append(self, batch: EncodedBatch) -> None:
        """A closed batch joins at the end."""
        batch.index = self.next_index
        self.next_index += 1
        self.queue.append(batch)

    def requeue(self) -> None:
        """All answers are in: what failed goes first, in the old order."""
        if self.retry and not self.in_flight:
            self.queue.extendleft(sorted(self.retry, key=lambda b: -b.index))
            self.retry.clear()

    def next_batch(self, now: Now) -> EncodedBatch | None:
        """The batch that may be sent now."""
        if not self.queue or self.retry or now.mono_us < self.not_before_us:
            return None
        batch = self.queue[0]
        if self.numbering.is_broken and not batch.maybe_stored:
            return None
        if not self.in_flight:
            return batch
        # After a failed try, one at a time until it has gone through.
        if (
            batch.attempts
            or self.numbering.is_broken
            or any(b.attempts > 1 for b in self.in_flight)
        ):
            return None
        oldest = min(b.index for b in self.in_flight)
        return batch if batch.index - oldest < PRODUCER_IN_FLIGHT_MAX else None

    @property
    def look_at_us(self) -> int | None:
        """When to look who leads; None while no answer is owed."""
        if not self.in_flight:
            return None
        # In the order of their sending, so the first one has been waited for the longest.
        return max(self.in_flight[0].sent_us, self.looked_us) + SILENCE_US

    def must_renew_first(self) -> bool:
        """True when new numbers are due: no batch that waits may be stored under the old ones."""
        if not self.numbering.is_broken or self.in_flight or not self.queue:
            return False
        return not self.queue[0].maybe_stored
