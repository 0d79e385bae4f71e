"""The log in Raft's view: what the host has stored, and the tail that is not durable yet.

```
              snapshot.index     durable_index    in the current write        last_index
   ────────────────┼──────────────────┼───────────────────┼──────────────────────┤
   snapshot        │ store            │ tail                                     │
```

Invariants:
- applied <= commit <= last_index, and applied <= durable_index: a snapshot of the state machine
  never contains an entry that this replica has not flushed.
- The tail begins right after `durable_index` and hides what the store has there: after a conflict
  the store still shows entries that a later write replaces.
- Entries up to `commit` never change.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from quiverlog.core.raft.messages import Entry, EntryKind, SnapshotMeta

__all__ = ["LogStore", "LogView", "Place"]


class LogStore(Protocol):
    """The durable log as of the last reported write, in memory.

    The host changes it only in the same call of its loop that reports a write or a snapshot.
    """

    @property
    def snapshot(self) -> SnapshotMeta:
        """The newest snapshot. A new log has index 0 and its first voters, if any."""

    @property
    def first_index(self) -> int:
        """The oldest entry kept: at most `snapshot.index + 1`. Entries below the snapshot may be
        kept, so that slow followers need no snapshot."""

    @property
    def last_index(self) -> int:
        """The newest durable entry, or `snapshot.index`."""

    def term(self, index: int) -> int:
        """Return the term, for `first_index <= index <= last_index`."""

    def entries(self, first: int, bytes_max: int) -> Sequence[Entry]:
        """Return as many entries from `first` on as fit into `bytes_max`, but at least one."""


class Place(msgspec.Struct, frozen=True):
    """0: the term is not known."""

    index: int
    term: int

    def is_at_least(self, other: Place) -> bool:
        """Return whether a log ending here is at least as up to date (paper, section 5.4.1)."""
        return (self.term, self.index) >= (other.term, other.index)


class LogView:
    __slots__ = ("_flight_last", "_store", "_tail", "_unwritten_first", "applied", "commit")

    def __init__(self, store: LogStore) -> None:
        assert store.first_index <= store.snapshot.index + 1
        assert store.last_index >= store.snapshot.index
        self._store = store
        self._tail: list[Entry] = []
        self._flight_last = 0
        self._unwritten_first = store.last_index + 1
        # The commit index is not stored: the leader sends it again, and a snapshot is committed.
        self.commit = store.snapshot.index
        self.applied = store.snapshot.index

    # --- looking -------------------------------------------------------------------------------
    @property
    def snapshot(self) -> SnapshotMeta:
        return self._store.snapshot

    @property
    def first_index(self) -> int:
        return self._store.first_index

    @property
    def durable_index(self) -> int:
        return self._tail[0].index - 1 if self._tail else self._store.last_index

    @property
    def last_index(self) -> int:
        return self._tail[-1].index if self._tail else self._store.last_index

    @property
    def last(self) -> Place:
        index = self.last_index
        term = self.term(index)
        assert term is not None
        return Place(index, term)

    def term(self, index: int) -> int | None:
        if self._tail and index >= self._tail[0].index:
            place = index - self._tail[0].index
            return self._tail[place].term if place < len(self._tail) else None
        if index == self._store.snapshot.index:
            return self._store.snapshot.term
        if self._store.first_index <= index <= self._store.last_index:
            return self._store.term(index)
        return None

    def matches(self, index: int, term: int) -> bool:
        return self.term(index) == term

    def entries(self, first: int, bytes_max: int) -> list[Entry]:
        assert self.first_index <= first <= self.last_index, (self.first_index, first)
        found: list[Entry] = []
        size = 0
        if first <= self.durable_index:
            durable = self.durable_index
            found = [e for e in self._store.entries(first, bytes_max) if e.index <= durable]
            size = sum(entry.size_bytes for entry in found)
            first = found[-1].index + 1
        if first > self.durable_index:
            for entry in self._tail[first - self.durable_index - 1 :]:
                size += entry.size_bytes
                if found and size > bytes_max:
                    break
                found.append(entry)
        assert found, "at least one entry, however large"
        assert found[-1].index - found[0].index == len(found) - 1, "entries without gaps"
        return found

    def newest_possible_match(self, index: int, term: int) -> Place:
        """Return the newest place up to `index` whose term is at most `term`, or not known.

        Both sides skip a whole term of disagreement in one exchange, instead of one entry (paper,
        end of section 5.3; etcd's raft does the same with its reject hint).
        """
        index = min(index, self.last_index)
        term_above: int | None = None
        while index > 0:
            own = self.term(index)
            if own is not None:
                assert term_above is None or own <= term_above, "terms never fall along a log"
                term_above = own
            if own is None:
                return Place(index, 0)
            if own <= term:
                return Place(index, own)
            index -= 1
        return Place(0, 0)

    # --- growing -------------------------------------------------------------------------------
    def append(self, term: int, kind: EntryKind, data: bytes) -> Entry:
        assert term >= self.last.term
        entry = Entry(self.last_index + 1, term, kind, data)
        self._tail.append(entry)
        assert self.last_index == entry.index
        return entry

    def append_from_leader(self, prev_index: int, entries: Sequence[Entry]) -> Sequence[Entry]:
        assert prev_index <= self.last_index, "entries without a gap"
        for position, entry in enumerate(entries):
            assert entry.index == prev_index + 1 + position
            # Only a conflict replaces entries: the message may be old, and the log ahead of it
            # (paper, figure 2, AppendEntries rule 3).
            if not self.matches(entry.index, entry.term):
                if entry.index <= self.last_index:
                    self._truncate(entry.index)
                self._tail.extend(entries[position:])
                assert self.last_index == prev_index + len(entries)
                return entries[position:]
        return ()

    def _truncate(self, index: int) -> None:
        """Drop entries from `index` on. New ones follow at once: the next write replaces them."""
        assert index > self.commit, "a committed entry is never replaced"
        assert index <= self.last_index, "only what is here can be dropped"
        durable = self.durable_index
        if index <= durable:
            self._tail.clear()
        else:
            del self._tail[index - durable - 1 :]
        # Entries of the current write may be dropped, too: that write makes nothing durable from
        # here on, although its entries have the same indexes.
        self._unwritten_first = min(self._unwritten_first, index)

    # --- becoming durable ------------------------------------------------------------------------
    @property
    def has_unwritten(self) -> bool:
        return self.last_index >= self._unwritten_first

    def begin_write(self) -> tuple[Entry, ...]:
        """Return the entries of the next write; the host truncates at the first one's index."""
        assert self._flight_last == 0, "one write at a time"
        if not self.has_unwritten:
            return ()
        entries = tuple(self._tail[self._unwritten_first - self._tail[0].index :])
        assert entries[0].index == self._unwritten_first
        self._flight_last = entries[-1].index
        self._unwritten_first = self._flight_last + 1
        assert self._flight_last == self.last_index, "one write takes all that waits"
        return entries

    def complete_write(self) -> None:
        if self._flight_last:
            # After a conflict during the write, `_unwritten_first` lies within it: what it wrote
            # from there on is already replaced in the tail.
            durable = min(self._flight_last, self._unwritten_first - 1)
            if self._tail and self._tail[0].index <= durable:
                del self._tail[: durable - self._tail[0].index + 1]
            self._flight_last = 0
        assert self.durable_index <= self._store.last_index, "the store shows what is durable"
        assert self.applied <= self.durable_index

    # --- committing and applying ---------------------------------------------------------------
    def commit_to(self, index: int) -> bool:
        assert index <= self.last_index, "only what is here can be committed here"
        if index <= self.commit:
            return False
        self.commit = index
        return True

    @property
    def has_to_apply(self) -> bool:
        return self.applied < min(self.commit, self.durable_index)

    def to_apply(self, bytes_max: int) -> tuple[Entry, ...]:
        if not self.has_to_apply:
            return ()
        # Not beyond the disk: a leader may commit with a majority that does not include itself.
        end = min(self.commit, self.durable_index)
        return tuple(e for e in self.entries(self.applied + 1, bytes_max) if e.index <= end)

    def applied_to(self, index: int) -> None:
        assert self.applied <= index <= min(self.commit, self.durable_index)
        self.applied = index

    def restored(self) -> SnapshotMeta:
        snapshot = self._store.snapshot
        assert snapshot.index > self.commit, "a snapshot never takes back what is committed"
        assert self._store.last_index == snapshot.index
        self._tail.clear()
        self._flight_last = 0
        self._unwritten_first = snapshot.index + 1
        self.commit = self.applied = snapshot.index
        assert self.durable_index == snapshot.index
        assert not self.has_unwritten
        return snapshot
