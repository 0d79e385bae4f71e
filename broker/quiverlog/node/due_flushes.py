"""Logs whose rows nobody waits for, and when the flush in the background of each is due.

Owns their order and their pace. Each has a date, some 30 s after its rows, by which it is flushed
at the latest. Few of them wait for it. Many would come as one burst, for rows of many partitions
often come together (thousands of new topics are filled, a producer sends to all partitions): the
first flush of a log is seven fsyncs. So of many the oldest is begun before its date, at the pace at
which all are begun when the last one is due; while rows keep coming that is once in 30 s for each.

Must not know: how a log is flushed, whoever waits for one.
"""

from __future__ import annotations

from typing import Final

from quiverlog.node.replica import Replica

__all__ = ["AT_ONCE", "DueFlushes"]

AT_ONCE: Final = 100
"""So many may be due together, and so many are taken in one call of the node."""


class DueFlushes:
    """See the module docstring."""

    __slots__ = ("_due", "_early_us")

    def __init__(self) -> None:
        # In the order in which they were entered, which is that of their dates but for moments.
        self._due: dict[Replica, int] = {}
        self._early_us = 0  # Before that moment none begins early.

    def __len__(self) -> int:
        return len(self._due)

    def enter(self, replica: Replica, due_us: int) -> None:
        """Have it flushed by then. Whoever is here already keeps its date."""
        assert due_us > 0
        self._due.setdefault(replica, due_us)

    def drop(self, replica: Replica) -> None:
        """Nothing is due: the log is flushed, or never will be."""
        self._due.pop(replica, None)

    def clear(self) -> None:
        """No other flush begins."""
        self._due.clear()

    def next_us(self) -> int | None:
        """When the next one is to be taken; None: there is none."""
        first = next(iter(self._due.values()), None)
        if first is None or len(self._due) <= AT_ONCE:
            return first
        return min(first, self._early_us)

    def take(self, now_us: int) -> Replica | None:
        """The oldest, if it is time, not here any more."""
        next_us = self.next_us()
        if next_us is None or next_us > now_us:
            return None
        count = len(self._due)
        last_us = next(reversed(self._due.values()))
        self._early_us = now_us + max(0, last_us - now_us) // count
        replica = next(iter(self._due))
        del self._due[replica]
        assert len(self._due) == count - 1
        return replica
