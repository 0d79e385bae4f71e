"""Producer ids and epochs: each is assigned once, and one that cannot have been is refused.

Blocks of ids and epochs are decisions: durable before a client gets one. What is left of a block
after a restart counts as assigned, and so does every block of another broker: only that one has
its assigned ids.

An id is the number of the cluster and a counter that goes on where ids without a number ended: of
both kinds, those with a counter that was assigned are valid.
"""

from __future__ import annotations

from collections.abc import Callable

from quiverlog.core.controller.records import ProducerIdBlockRecord
from quiverlog.core.controller.topics import PRODUCER_ID_BLOCK
from quiverlog.limits import PRODUCERS_UNSEEN_MAX, PRODUCERS_UNSEEN_MS_MAX
from quiverlog.node.metadata.metadata import Metadata
from quiverlog.types import PRODUCER_COUNTERS_END, Now

__all__ = ["ProducerIds"]

_UNSEEN_US_MAX = PRODUCERS_UNSEEN_MS_MAX * 1_000


class ProducerIds:
    """`next`: the lowest counter of this broker's block that is not assigned.

    Args:
        known_us: returns the time up to which decisions are applied here.
    """

    __slots__ = ("_end", "_known_us", "_metadata", "_unseen", "next")

    def __init__(self, metadata: Metadata, known_us: Callable[[Now], int]) -> None:
        self._metadata = metadata
        self._known_us = known_us
        # By id and epoch: time of its first and last request; the least recent first.
        self._unseen: dict[tuple[int, int], tuple[int, int]] = {}
        self.next = 0
        self._end = 0

    def start(self) -> None:
        # An earlier process may have assigned all ids of its block.
        self.next = self._end = self._metadata.image.next_producer_id

    @property
    def exhausted(self) -> bool:
        return self.next >= self._end

    def block_added(self, record: ProducerIdBlockRecord) -> None:
        start = record.next_producer_id - PRODUCER_ID_BLOCK
        assert start >= self._end, "blocks are not given out twice"
        if self.exhausted:
            self.next, self._end = start, record.next_producer_id
        elif start == self._end:
            self._end = record.next_producer_id
        assert not self.exhausted

    def take(self) -> int:
        assert not self.exhausted
        assert self.next < PRODUCER_COUNTERS_END
        self.next += 1
        return self._metadata.image.cluster_number * PRODUCER_COUNTERS_END + self.next - 1

    def may_be_assigned(self, producer_id: int) -> bool:
        """False: by the metadata here, the id was not assigned."""
        image = self._metadata.image
        number, counter = divmod(producer_id, PRODUCER_COUNTERS_END)
        is_ours_to_assign = self.next <= counter < self._end
        is_below = counter < image.next_producer_id and not is_ours_to_assign
        return is_below and number in (0, image.cluster_number)

    def may_be_new_elsewhere(self, producer_id: int, epoch: int, now: Now) -> bool:
        """True: an id or epoch that is missing here may have been assigned a moment ago."""
        if self._metadata.is_decided_here:
            return False
        unseen, at_us = self._unseen, now.mono_us
        first_us, last_us = unseen.pop((producer_id, epoch), (at_us, at_us))
        if at_us - last_us >= _UNSEEN_US_MAX:
            first_us = at_us  # Another producer, which may have got it since.
        # Never assigned: decisions up to its first use are applied, or it was sent for too long.
        elif self._known_us(now) > first_us or at_us - first_us >= _UNSEEN_US_MAX:
            return False
        if len(unseen) >= PRODUCERS_UNSEEN_MAX:
            del unseen[next(iter(unseen))]
        unseen[producer_id, epoch] = (first_us, at_us)
        return True

    def newest_epoch(self, producer_id: int) -> int:
        """Return the newest epoch assigned, or being assigned."""
        return self._metadata.pending.producer_epochs.get(producer_id, 0)

    def assigned_epoch(self, producer_id: int) -> int:
        """Return the newest epoch that a client may have; 0 if the metadata have none."""
        return self._metadata.image.producer_epochs.get(producer_id, 0)
