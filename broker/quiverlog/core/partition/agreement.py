"""Whether the logs that hold rows of earlier leaders say so themselves (docs/adr/0067).

Owns one rule, for one leader epoch: rows of earlier leaders become replicated when all whose rows
count have it in their own logs that they have all of them, by a row of this epoch or by the epoch
in the list on their disk. Rows alone do not show it: another log may have rows of a later epoch
that never counted, and would seem longer where the longest log is to lead.

Must not know: logs, who counts.
"""

from __future__ import annotations

from collections.abc import Iterable

from quiverlog.core.partition.progress import FollowerProgress
from quiverlog.types import NO_EPOCH

__all__ = ["Agreement"]


class Agreement:
    """See the module docstring.

    Attributes:
        start_offset: where the leader's log ended when its epoch began.
        is_needed: rows before that may not be replicated yet, or are so only because of an epoch
            in the lists of those that have them.
        is_epoch_saved: the leader's own list is on its disk, with its epoch.
    """

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
        """True when the leader's log, which ends there, and all those that count say it."""
        assert log_end_offset >= self.start_offset, "a leader's log is never cut"
        if not self.is_needed:
            return True
        if log_end_offset == self.start_offset and not self.is_epoch_saved:
            return False
        return all(self.is_shown_by(follower) for follower in holding)

    def is_shown_by(self, follower: FollowerProgress) -> bool:
        """True where it need not be shown, too."""
        saved_epoch = follower.saved_epoch
        assert saved_epoch >= NO_EPOCH
        assert follower.log_end_offset >= 0
        if not self.is_needed or follower.log_end_offset > self.start_offset:
            return True
        return saved_epoch >= self._leader_epoch
