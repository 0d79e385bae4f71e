"""When rows of earlier leaders count as replicated (docs/adr/0067): once every counted replica
shows that it has all of them, by a row of this epoch or by the epoch in the list on its disk.
"""

from __future__ import annotations

from collections.abc import Iterable

from quiverlog.core.partition.progress import FollowerProgress
from quiverlog.types import NO_EPOCH

__all__ = ["Agreement"]


class Agreement:
    """`start_offset`: the end of the leader's log when its epoch began. `is_needed`: rows before
    that may not be replicated yet, or the epoch before has no row in the leader's log.
    `is_epoch_saved`: the leader's own list, with its epoch, is on its disk."""

    __slots__ = ("_leader_epoch", "is_epoch_saved", "is_needed", "start_offset")

    def __init__(
        self,
        leader_epoch: int,
        start_offset: int,
        *,
        is_needed: bool = False,
        is_epoch_saved: bool = True,
    ) -> None:
        assert leader_epoch >= 0
        assert start_offset >= 0
        self._leader_epoch = leader_epoch
        self.start_offset = start_offset
        self.is_needed = is_needed
        self.is_epoch_saved = is_epoch_saved

    def is_reached(self, log_end_offset: int, holding: Iterable[FollowerProgress]) -> bool:
        assert log_end_offset >= self.start_offset, "a leader's log is never cut"
        if not self.is_needed:
            return True
        if log_end_offset == self.start_offset and not self.is_epoch_saved:
            return False
        return all(self.is_shown_by(follower) for follower in holding)

    def is_shown_by(self, follower: FollowerProgress) -> bool:
        saved_epoch = follower.saved_epoch
        assert saved_epoch >= NO_EPOCH
        assert follower.log_end_offset >= 0
        if not self.is_needed or follower.log_end_offset > self.start_offset:
            return True
        # The position alone does not show it: another log may hold rows of a later epoch that never
        # counted, and would win an election for the longest log.
        return saved_epoch >= self._leader_epoch
