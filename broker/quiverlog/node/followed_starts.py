"""The log starts of copies: a copy begins where its leader's log does, and decides nothing itself.

Owns what each leader has said of its start, and trimming the copies to it (trims.py). A leader says
two offsets: where its log begins, and below which rows never come back. The first moves with every
look of retention and is followed without a write where no file goes; the second was promised to a
client, and is on the copy's disk before the copy says that it has followed.

Must not know: how a leader's word gets here.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from quiverlog.errors import QuiverlogError
from quiverlog.node.replica import Replica
from quiverlog.node.trims import Trims
from quiverlog.types import Now

__all__ = ["FollowedStarts"]


class _Said(NamedTuple):
    start_offset: int
    saved_offset: int


class FollowedStarts:
    """See the module docstring.

    Args:
        moved: called with a copy whose start has moved: its leader is to know.
        failed: called with a copy that could not be trimmed now.
    """

    __slots__ = ("_failed", "_moved", "_said", "_trims")

    def __init__(
        self,
        trims: Trims,
        moved: Callable[[Replica], None],
        failed: Callable[[Replica, Now], None],
    ) -> None:
        self._trims = trims
        self._moved = moved
        self._failed = failed
        self._said: dict[Replica, _Said] = {}

    def said(self, replica: Replica, start_offset: int, saved_offset: int, now: Now) -> None:
        """The leader's log begins there, and rows below `saved_offset` never come back."""
        log = replica.log
        assert not replica.state.leads, "a leader decides itself"
        if start_offset <= log.log_start_offset and saved_offset <= log.start_saved:
            self._said.pop(replica, None)
            return
        self._said[replica] = _Said(start_offset, saved_offset)
        self.go_on(replica, now)

    def go_on(self, replica: Replica, now: Now) -> None:
        """Follow what was said last, as far as the copy has rows and nothing else is under way."""
        said = self._said.get(replica)
        if said is None or replica.state.leads or replica.deleted:
            self._said.pop(replica, None)
            return
        if replica.cutting or replica.fault is not None or self._trims.busy(replica):
            return
        log = replica.log
        end = log.log_end_offset
        saved = min(said.saved_offset, end)
        start = min(said.start_offset, end)
        promised = saved > log.start_saved
        if not promised and start <= log.log_start_offset:
            return  # The rest comes with rows.
        assert log.log_start_offset <= end
        then = partial(self._trimmed, [replica])
        try:
            self._trims.trim(replica, saved if promised else start, now, then, promised=promised)
        except QuiverlogError as error:
            then(None, error, now)

    def _trimmed(
        self, replicas: list[Replica], _files: object, error: BaseException | None, now: Now
    ) -> None:
        while replicas:  # It may be called again, after a bug of ours.
            replica = replicas.pop()
            if replica.deleted or replica.state.leads:
                self._said.pop(replica, None)
            elif error is not None:
                self._failed(replica, now)
            else:
                self._moved(replica)
                self.go_on(replica, now)

    def forget(self, replica: Replica) -> None:
        """The partition has no leader elsewhere any more, or is not here."""
        self._said.pop(replica, None)
