"""Readers to be looked at because their partitions changed: bounded in each call of the node.

Owns which partitions have changed and which long polls are to look again. A partition that changed
marks its readers (as the metadata do, which they may wait for, too); a marked reader looks once at
all of its partitions that have changed since, however many these are.
Sixty thousand readers of one partition, or a thousand partitions of one
reader, are not looked at in one go: the first ones in this call, the rest when the node is called
again, which `busy` asks for.

Invariant: a reader that waits is looked at after every move, if not in that call then in a later
one; a move during a round begins another round after it, so nobody at the end is passed over.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Final

from quiverlog.node.purgatory import Purgatory, Waiter
from quiverlog.types import Now

__all__ = ["MARKS_PER_CALL", "WAKES_PER_CALL", "Wakeups", "Watched"]

WAKES_PER_CALL: Final = 500
"""Partitions that waiting readers look at in one call: some 10 us each."""
MARKS_PER_CALL: Final = 5_000
"""Readers that are marked in one call: a fraction of a microsecond each."""


class Watched:
    """A partition, or the metadata. `waiters`: who waits for a change, with their entry's index."""

    __slots__ = ("waiters",)

    def __init__(self) -> None:
        self.waiters: dict[Waiter, int] = {}

    def watch(self, waiter: Waiter, index: int) -> int:
        """Have a long poll look again after a change; the entry that was told until now."""
        before = self.waiters.get(waiter, index)
        self.waiters[waiter] = index
        return before

    def unwatch(self, waiter: Waiter) -> None:
        """The long poll looks here no more."""
        self.waiters.pop(waiter, None)


class Wakeups:
    """See the module docstring."""

    __slots__ = ("_changed", "_listener", "_marked", "_purgatory", "_round")

    def __init__(self, purgatory: Purgatory) -> None:
        self._purgatory = purgatory
        # Who else is to hear of each change.
        self._listener: Callable[[Watched], None] = lambda watched: None
        # Each once, however often it changes before its readers are marked.
        self._changed: dict[Watched, None] = {}
        # Readers of partitions that changed, to be marked.
        self._round: deque[tuple[Waiter, int]] = deque()
        # Readers to be looked at, with the indexes of their entries that changed.
        self._marked: dict[Waiter, dict[int, None]] = {}

    @property
    def busy(self) -> bool:
        """True while readers are left to be looked at."""
        return bool(self._marked or self._round or self._changed)

    def listen(self, listener: Callable[[Watched], None]) -> None:
        """Have somebody else hear of each change, too: the sessions that copy partitions."""
        self._listener = listener

    def grown(self, watched: Watched) -> None:
        """There are rows that readers may not see yet: copies are made of them."""
        self._listener(watched)

    def changed(self, watched: Watched) -> None:
        """The partition's readers may see something new, also when it is about to go."""
        if watched.waiters:
            self._changed[watched] = None
        self._listener(watched)

    def mark(self, waiter: Waiter, indexes: Iterable[int]) -> None:
        """Have a waiter look at its entries of these indexes."""
        self._marked.setdefault(waiter, {}).update(dict.fromkeys(indexes))
        assert self._marked[waiter], "a marked reader has something to look at"

    def run(self, now: Now) -> None:
        """Mark and look at the next ones."""
        self._mark()
        left = WAKES_PER_CALL
        marked = self._marked
        while marked and left > 0:
            waiter = next(iter(marked))
            indexes = list(marked.pop(waiter))
            if waiter.done:
                left -= 1
                continue
            if len(indexes) > left:
                marked[waiter] = dict.fromkeys(indexes[left:])
                del indexes[left:]
            left -= len(indexes)
            assert left >= 0
            assert indexes, "a marked reader has something to look at"
            try:
                waiter.wake(indexes, now)
            except Exception as error:
                self._purgatory.fail(waiter, "waking a request", error)
            if waiter.answered:
                # It has looked at all of its entries, to answer.
                left -= waiter.entry_count - len(indexes)

    def _mark(self) -> None:
        for _ in range(MARKS_PER_CALL):
            if not self._round:
                if not self._changed:
                    return
                watched = next(iter(self._changed))
                del self._changed[watched]
                self._round.extend(watched.waiters.items())
                continue
            waiter, index = self._round.popleft()
            if not waiter.done:
                found = self._marked.get(waiter)
                if found is None:
                    self._marked[waiter] = {index: None}
                else:
                    found[index] = None
