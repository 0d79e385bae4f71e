"""Readers to be looked at because their partitions changed: bounded in each call of the node.

Owns the queue of partitions whose long polls are to look again. Sixty thousand readers of one
partition are not woken in one go: the first ones in this call, the rest when the node is called
again, which `busy` asks for.

Invariant: a reader that waits is looked at after every move, if not in that call then in a later
one; a move during a round begins another round after it, so nobody at the end is passed over.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from quiverlog.node.purgatory import Purgatory, Waiter
from quiverlog.node.replica import Replica
from quiverlog.types import Now

__all__ = ["WAKES_PER_CALL", "Wakeups"]

WAKES_PER_CALL: Final = 500
"""Reading for one that waits takes some 20 us."""


class Wakeups:
    """See the module docstring."""

    __slots__ = ("_changed", "_purgatory", "_round")

    def __init__(self, purgatory: Purgatory) -> None:
        self._purgatory = purgatory
        self._changed: dict[Replica, None] = {}
        self._round: deque[tuple[Waiter, int]] = deque()

    @property
    def busy(self) -> bool:
        """True while readers are left to be looked at."""
        return bool(self._round or self._changed)

    def readable_changed(self, replica: Replica) -> None:
        """Its readers may see something new."""
        if replica.waiters:
            self._changed[replica] = None

    def queue(self, waiters: dict[Waiter, int]) -> None:
        """These are to be looked at, whatever becomes of their partition."""
        self._round.extend(waiters.items())

    def run(self, now: Now) -> None:
        """Look at the next ones."""
        for _ in range(WAKES_PER_CALL):
            if not self._round:
                if not self._changed:
                    return
                replica = next(iter(self._changed))
                del self._changed[replica]
                self._round.extend(replica.waiters.items())
                continue
            waiter, index = self._round.popleft()
            if not waiter.done:
                try:
                    waiter.wake(index, now)
                except Exception as error:
                    self._purgatory.fail(waiter, "waking a request", error)
