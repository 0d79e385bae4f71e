"""Appends whose rows are in the log and not yet as safe as their callers asked.

Callers of one partition are called in the order of their appends, also when appends span
partitions.

Invariant: both queues are in the order of the appends, and all of `confirmed` is older than all
of `unflushed`. A repetition's offset may be lower than its neighbours', which only makes it wait
longer.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Final

from quiverlog.core.partition.levels import Positions, safe_offset
from quiverlog.errors import QuiverlogError
from quiverlog.types import Durability, Now

__all__ = ["BROKER", "Answers", "Append", "AppendEntry"]

BROKER: Final = -1
"""Asks for a flush that is waited for, but by no connection."""
_SWEEP_MIN: Final = 256
_REPLICATED: Final = int(Durability.REPLICATED)


class AppendEntry:
    """One partition's rows of an append.

    `end_offset`: rows below it must be safe; 0: none. `error`: why they are not stored, or not
    known to be safe. `waits`: it is in `Answers.unflushed`. `result`: the caller's own.
    """

    __slots__ = ("end_offset", "error", "level", "replica", "result", "waits")

    # `replica`: a Replica, which holds its `Answers` and so is above this file.
    def __init__(self, replica: Any, level: int, end_offset: int, result: Any = None) -> None:
        self.replica = replica
        self.level = level
        self.end_offset = end_offset
        self.error: QuiverlogError | None = None
        self.result = result
        self.waits = False


class Append:
    """What one caller appends: a subclass, which gets the outcome in `then`.

    `asker`: the connection in whose turn the rows are flushed. `waiting`: entries that wait, and
    one more while held. `queued`: entries that `Appends.finish` has seen.
    """

    __slots__ = ("asker", "done", "entries", "queued", "waiting")

    def __init__(self, asker: int = BROKER) -> None:
        self.asker = asker
        self.entries: list[AppendEntry] = []
        self.queued = self.waiting = 0
        self.done = False

    def then(self, bug: Exception | None, now: Now) -> None:
        """Take the outcome, once: each entry is safe, or has its error.

        A bug of ours may come as `bug`, also later: the outcome is unknown. It may be called while
        decisions are applied: what follows from it is appended by `Appends.add`, not admitted.
        """
        raise NotImplementedError

    def on_wait(self, now: Now) -> None:
        """Called before `then` if rows are not safe at once."""

    def hold(self) -> None:
        """Wait for entries that come later: it is not complete before `release`."""
        self.waiting += 1

    def release(self, now: Now) -> None:
        self.waiting -= 1
        _call_in_order(self, now)

    def complete(self, now: Now) -> None:
        assert not self.waiting
        assert not self.done, "a caller is called once"
        self._end(now)

    def fail(self, bug: Exception, now: Now) -> None:
        self.done = True
        self.then(bug, now)
        _call_next(self, now)

    def give_up(self, error: QuiverlogError, now: Now) -> None:
        """Wait no longer: what is not known to be safe has `error`."""
        assert not self.done
        for entry in self.entries:
            # An acknowledgement never overtakes an earlier one, even when its rows are safe.
            if entry.waits or not (entry.error or entry.replica.answers.is_next(self)):
                entry.error = error
        self._end(now)
        _call_next(self, now)

    def _end(self, now: Now) -> None:
        self.done = True
        try:
            self.then(None, now)
        except Exception as bug:  # Not raised: it may be called for another append.
            self.then(bug, now)


class Answers:
    """One partition's appends: `unflushed` until their rows are safe, then `confirmed` until
    earlier callers are called and the whole append is safe.
    """

    __slots__ = ("_sweep_at", "confirmed", "unflushed")

    def __init__(self) -> None:
        self._sweep_at = _SWEEP_MIN
        self.unflushed: deque[tuple[AppendEntry, Append]] = deque()
        self.confirmed: deque[Append] = deque()

    def __bool__(self) -> bool:
        return bool(self.unflushed or self.confirmed)

    def enqueue(self, entry: AppendEntry, append: Append) -> None:
        assert not append.done, "an append that has its outcome waits for nothing"
        assert not entry.waits
        entry.waits = True
        append.waiting += 1
        self.unflushed.append((entry, append))
        if len(self.unflushed) + len(self.confirmed) > self._sweep_at:
            self._sweep()

    def _sweep(self) -> None:
        # Those that have timed out: a disk that hangs must not cost ever more memory.
        self.unflushed = deque(pair for pair in self.unflushed if not pair[1].done)
        self.confirmed = deque(append for append in self.confirmed if not append.done)
        self._sweep_at = max(_SWEEP_MIN, 2 * (len(self.unflushed) + len(self.confirmed)))

    def advance(self, positions: Positions, now: Now) -> None:
        """Confirm what has become as safe as its caller asked."""
        unflushed = self.unflushed
        while unflushed:
            entry, append = unflushed[0]
            if entry.end_offset and entry.end_offset > safe_offset(entry.level, positions):
                break
            del unflushed[0]
            try:
                self._confirm(entry, append, now)
            except Exception as bug:
                append.fail(bug, now)

    def fail(self, error: QuiverlogError, now: Now) -> None:
        """Fail every entry that waits for a flush of this log."""
        unflushed = self.unflushed
        while unflushed:
            entry, append = unflushed.popleft()
            entry.error = error
            try:
                self._confirm(entry, append, now)
            except Exception as bug:
                append.fail(bug, now)

    def fail_replicated(self, error: QuiverlogError) -> None:
        """Fail entries that wait for replicas, of which too few are in sync.

        Their rows are stored, and may be replicated after all. `advance` must follow.
        """
        for entry, _ in self.unflushed:
            if entry.end_offset and entry.level >= _REPLICATED:
                entry.end_offset = 0
                entry.error = error

    def _confirm(self, entry: AppendEntry, append: Append, now: Now) -> None:
        assert entry.waits
        entry.waits = False
        append.waiting -= 1
        if len(append.entries) == 1 and not (append.waiting or self.confirmed):
            if not append.done:
                append.complete(now)  # One partition, nothing before it: as nearly always.
            return
        self.confirmed.append(append)
        _call_in_order(append, now)

    def is_next(self, append: Append) -> bool:
        confirmed = self.confirmed
        while confirmed and confirmed[0].done:
            confirmed.popleft()
        return bool(confirmed) and confirmed[0] is append


def _call_in_order(append: Append, now: Now) -> None:
    """Complete `append` if it is next everywhere, and those that have then become next."""
    candidates = [append]
    while candidates:
        candidate = candidates.pop()
        if candidate.done or candidate.waiting:
            continue
        # A producer keeps at most five batches of a partition unanswered, and the broker remembers
        # five to recognise a repetition. If this answer waited for another partition's disk while
        # later ones left, more than five could lie behind it: its repetition after a crash would be
        # refused although it is stored.
        if all(entry.replica.answers.is_next(candidate) for entry in candidate.entries):
            candidate.complete(now)
            candidates += _next_after(candidate)


def _call_next(append: Append, now: Now) -> None:
    for other in _next_after(append):
        _call_in_order(other, now)


def _next_after(append: Append) -> dict[Append, None]:
    found: dict[Append, None] = {}
    for entry in append.entries:
        answers = entry.replica.answers
        answers.is_next(append)  # Takes those that are done off the queue.
        if answers.confirmed:
            found[answers.confirmed[0]] = None
    return found
