"""The fetches that a consumer has under way: to whom, of what, and who is let rest between them.

Owns what is remembered of each, and the pauses after answers that came early and without rows; the
consumer's machine (consumer_core.py) decides.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from quiverlog.limits import FETCH_MAX_WAIT_MS_DEFAULT, LEADER_SILENCE_MS

from .commands import PendingReply
from .replica_choice import LEADER
from .results import Address
from .routing import empty_pause_s

__all__ = ["FOLLOWER_TIMEOUT_S", "OVERDUE_S", "Pauses", "Request", "Source"]

OVERDUE_S = (FETCH_MAX_WAIT_MS_DEFAULT + LEADER_SILENCE_MS) / 1000
"""A leader may keep an answer back for the first part of it, the rest is silence."""
FOLLOWER_TIMEOUT_S = 10.0
"""A follower that gives no answer is given up after that: the leader is there."""


class Source(NamedTuple):
    """A broker that is asked, as leader or as a follower (with its node id)."""

    address: Address
    follower: int = LEADER

    @property
    def is_follower(self) -> bool:
        """True: what it says is to be doubted."""
        return self.follower != LEADER


@dataclass(slots=True)
class Request:
    """A fetch under way."""

    pending: PendingReply
    source: Source
    offsets: dict[int, int]
    """Partition -> the offset that was asked for; a seek makes the answer stale."""
    sent_s: float
    waited_s: float = 0.0
    """How long the consumer has waited for it: without what the caller did meanwhile."""
    looked_s: float = 0.0
    """How much of that had passed when the metadata were looked at for it."""

    @property
    def is_overdue(self) -> bool:
        """A leader owes the answer for so long that somebody else may lead by now."""
        return not self.source.is_follower and self.waited_s - self.looked_s >= OVERDUE_S


@dataclass(slots=True)
class _Pause:
    """A broker whose last answers came early and without rows."""

    streak: int = 0
    until_s: float = 0.0


class Pauses:
    """A long poll that comes back early with nothing must not become a loop without rest."""

    __slots__ = ("_clock", "_jitter", "_pauses")

    def __init__(self, clock: Callable[[], float], jitter: Callable[[], float]) -> None:
        self._clock = clock
        self._jitter = jitter
        self._pauses: dict[Source, _Pause] = {}

    def holds(self, source: Source) -> bool:
        """True while nothing is asked of this one."""
        pause = self._pauses.get(source)
        return pause is not None and pause.until_s > self._clock()

    def ends_s(self) -> list[float]:
        """When those that hold end."""
        now_s = self._clock()
        return [pause.until_s for pause in self._pauses.values() if pause.until_s > now_s]

    def answered(self, request: Request, *, brought: bool, failed: bool) -> None:
        """An answer has come, with rows, with errors, or with neither."""
        if brought:
            self._pauses.pop(request.source, None)
            return
        now_s = self._clock()
        if failed or now_s - request.sent_s >= FETCH_MAX_WAIT_MS_DEFAULT / 2000:
            return
        pause = self._pauses.setdefault(request.source, _Pause())
        pause.until_s = now_s + empty_pause_s(pause.streak, self._jitter())
        pause.streak += 1
