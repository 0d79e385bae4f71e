"""Producer ids and epochs: each is given out once, and what was never given out is refused.

Owns the block of ids that this life gives out from. Blocks and epochs are decisions (metadata.py):
an id or an epoch is durable before anybody hears of it, and known again after a restart. The rest
of a block is given up by a restart, and counts as given out from then on. So does every block that
another broker has set aside: which of its ids were given out is known there only.

Where others decide, an id that is not known here may have been given out a moment ago. Owns since
when producers ask with such ids and epochs: one was never given out when this broker has applied
what the controller had decided by then, or has heard nothing of it for five seconds.
"""

from __future__ import annotations

from collections.abc import Callable

from quiverlog.core.controller.records import ProducerIdBlockRecord
from quiverlog.core.controller.topics import PRODUCER_ID_BLOCK
from quiverlog.limits import PRODUCERS_UNHEARD_MAX, PRODUCERS_UNHEARD_MS_MAX
from quiverlog.node.metadata.metadata import Metadata
from quiverlog.types import Now

__all__ = ["ProducerIds"]

_UNHEARD_US_MAX = PRODUCERS_UNHEARD_MS_MAX * 1_000


class ProducerIds:
    """See the module docstring. Ids of our block below `next` were given out.

    Args:
        known_us: what was decided up to this moment is applied here.
    """

    __slots__ = ("_end", "_known_us", "_metadata", "_unheard", "next")

    def __init__(self, metadata: Metadata, known_us: Callable[[Now], int]) -> None:
        self._metadata = metadata
        self._known_us = known_us
        # By id and epoch: when it was asked for first, and last; longest not asked for first.
        self._unheard: dict[tuple[int, int], tuple[int, int]] = {}
        self.next = 0
        self._end = 0

    def start(self) -> None:
        """Give out no id that an earlier life may have given out."""
        self.next = self._end = self._metadata.image.next_producer_id

    @property
    def exhausted(self) -> bool:
        """True when another block of ids must be set aside first."""
        return self.next >= self._end

    def block_added(self, record: ProducerIdBlockRecord) -> None:
        """A block is ours to give out."""
        start = record.next_producer_id - PRODUCER_ID_BLOCK
        assert start >= self._end, "blocks are not given out twice"
        if self.exhausted:
            self.next, self._end = start, record.next_producer_id
        elif start == self._end:
            self._end = record.next_producer_id
        assert not self.exhausted

    def take(self) -> int:
        """An id that nobody had before."""
        assert not self.exhausted
        self.next += 1
        return self.next - 1

    def may_be_given(self, producer_id: int) -> bool:
        """False: nobody has that id, as far as this broker has heard."""
        is_ours_to_give = self.next <= producer_id < self._end
        return producer_id < self._metadata.image.next_producer_id and not is_ours_to_give

    def may_be_unheard(self, producer_id: int, epoch: int, now: Now) -> bool:
        """Of one that is not known here. True: others may have given it out a moment ago."""
        if self._metadata.is_decided_here:
            return False
        unheard, at_us = self._unheard, now.mono_us
        first_us, last_us = unheard.pop((producer_id, epoch), (at_us, at_us))
        if at_us - last_us >= _UNHEARD_US_MAX:
            first_us = at_us  # Another producer asks, which may have been given it since.
        elif self._known_us(now) > first_us or at_us - first_us >= _UNHEARD_US_MAX:
            return False
        if len(unheard) >= PRODUCERS_UNHEARD_MAX:
            del unheard[next(iter(unheard))]
        unheard[producer_id, epoch] = (first_us, at_us)
        return True

    def newest_epoch(self, producer_id: int) -> int:
        """The newest epoch that was given out, or is about to be."""
        return self._metadata.pending.producer_epochs.get(producer_id, 0)

    def given_epoch(self, producer_id: int) -> int:
        """The newest epoch that somebody may have heard of; 0 where it is not known any more."""
        return self._metadata.image.producer_epochs.get(producer_id, 0)
