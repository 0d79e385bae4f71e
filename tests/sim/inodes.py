"""What a simulated disk keeps: every file and directory twice, as programs see it and as it is on
the plate.

Owns what a power failure leaves. Bytes of a file that were not synced arrive as a prefix or page by
page, in any order; pages that did not arrive read as zeros. Changes of a directory that was not
synced happened or did not, each on its own, but for those of one name: these keep their order. A
rename is one change: never both names, never neither.

Mappings: `Inode.view` hands out memory that follows the file, as a shared mapping does. A write or
a truncation below a live view changes it and is counted in `Inode.changes`; the holder of a view
notices it by a checksum of its own.
"""

from __future__ import annotations

import random
import weakref
from typing import ClassVar

__all__ = ["Directory", "Inode", "Node"]

PAGE_BYTES = 512
HEAD_BYTES = 64
_VIEWS_SWEEP = 64


class _Pages(bytearray):
    """Mapped bytes; they live as long as any view of them."""


class Inode:
    """Contents: as seen, and as on the disk. `dropped`: ranges that a failed fsync lost.

    `cold`: numbers of the pages that are not in memory after a crash, until they are read.
    """

    __slots__ = ("_views", "cold", "data", "dropped", "durable")

    changes: ClassVar[int] = 0
    """How often the bytes below a live view have changed, in all files of all disks."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.durable = b""
        self.dropped: list[tuple[int, int]] = []
        self.cold: set[int] = set()
        self._views: list[tuple[weakref.ref[_Pages], int]] = []

    # --- what programs do ----------------------------------------------------------------------
    def write(self, position: int, data: bytes) -> None:
        """Bytes at `position`; what a failed write left behind them is gone."""
        del self.data[position:]
        self.data += data
        self._rewritten(position, position + len(data))
        self._follow(position)

    def rewrite(self, position: int, data: bytes) -> None:
        """Bytes in the middle were written again: they are dirty, the next sync takes them."""
        self.data[position : position + len(data)] = data
        self._rewritten(position, position + len(data))
        self._follow(position)

    def truncate(self, size: int) -> None:
        """Cut; views of what was cut read zeros (a real one would be SIGBUS)."""
        del self.data[size:]
        self._follow(size)

    def view(self, start: int, end: int) -> memoryview:
        """A mapping of these bytes."""
        pages = _Pages(self.data[start:end])
        if len(self._views) >= _VIEWS_SWEEP:
            self._views = [(ref, at) for ref, at in self._views if ref() is not None]
        self._views.append((weakref.ref(pages), start))
        return memoryview(pages).toreadonly()

    def _follow(self, position: int) -> None:
        """Live mappings show what the file holds from `position` on."""
        for ref, start in self._views:
            pages = ref()
            if pages is None or start + len(pages) <= position:
                continue
            low = max(0, position - start)
            now = bytes(self.data[start + low : start + len(pages)]).ljust(len(pages) - low, b"\0")
            if pages[low:] != now:
                pages[low:] = now
                Inode.changes += 1

    def resident(self, start: int, end: int) -> bool:
        """Are these bytes in memory?"""
        return not self.cold or self.cold.isdisjoint(_pages(start, end))

    def warm(self, start: int, end: int) -> None:
        """These bytes were read."""
        if self.cold:
            self.cold.difference_update(_pages(start, end))

    # --- what the disk has ---------------------------------------------------------------------
    def sync(self) -> None:
        """Everything that is dirty reaches the disk."""
        self.durable = bytes(self._arriving())

    def _arriving(self) -> bytearray:
        arriving = bytearray(self.data)
        for start, end in self.dropped:
            end = min(end, len(arriving))
            if start < end:
                arriving[start:end] = bytes(end - start)
        return arriving

    def on_plate(self) -> Inode:
        """A file with what is on the disk."""
        copy = Inode()
        copy.data, copy.durable = bytearray(self.durable), self.durable
        return copy

    def _rewritten(self, start: int, end: int) -> None:
        kept = [(a, min(b, start)) for a, b in self.dropped if a < start]
        kept += [(max(a, end), b) for a, b in self.dropped if b > end]
        self.dropped = kept

    def sync_failed(self) -> None:
        """What was dirty counts as written from now on and is on no disk."""
        if len(self.data) > len(self.durable):
            self.dropped.append((len(self.durable), len(self.data)))

    def flip(self, bit: int) -> None:
        """Damage a bit, on the disk and in the cache alike."""
        self.data[bit // 8] ^= 1 << bit % 8
        if bit // 8 < len(self.durable):
            durable = bytearray(self.durable)
            durable[bit // 8] ^= 1 << bit % 8
            self.durable = bytes(durable)

    def crash(self, rng: random.Random, *, reorder: bool) -> bool:
        """The power goes. True when pages arrived out of order."""
        arriving, kept = bytes(self._arriving()), self.durable
        reordered = False
        if len(arriving) > len(kept):
            first = len(kept)
            size = rng.choice([first, len(arriving), rng.randint(first, len(arriving))])
            tail = bytearray(arriving[first:size])
            if reorder and len(tail) > PAGE_BYTES and rng.random() < 0.5:
                reordered = self._lose_pages(tail, first, rng)
            kept += bytes(tail)
        elif len(arriving) < len(kept) and rng.random() < 0.5:
            kept = arriving
        if len(arriving) // PAGE_BYTES % 2 and len(kept) >= HEAD_BYTES:
            kept = arriving[:HEAD_BYTES] + kept[HEAD_BYTES:]  # What was written over the head.
        if len(arriving) == len(kept) <= PAGE_BYTES and sum(arriving) % 2:
            kept = arriving  # A small file that was written over in place.
        self.data = bytearray(kept)
        self.durable = kept
        self.dropped = []
        self._views = []
        share = rng.choice((0.0, 0.1, 1.0))
        self.cold = {page for page in _pages(0, len(kept)) if rng.random() < share}
        return reordered

    @staticmethod
    def _lose_pages(tail: bytearray, first: int, rng: random.Random) -> bool:
        """Zeros where a page did not arrive; the page of the first byte was there before."""
        lost = False
        at = -(first % PAGE_BYTES) % PAGE_BYTES
        while at < len(tail):
            if rng.random() < 0.3:
                page = tail[at : at + PAGE_BYTES]
                tail[at : at + PAGE_BYTES] = bytes(len(page))
                lost = True
            at += PAGE_BYTES
        return lost


def _pages(start: int, end: int) -> range:
    """Numbers of the pages that hold these bytes."""
    return range(start // PAGE_BYTES, -(-end // PAGE_BYTES))


class Directory:
    """Names: as seen, and as on the disk; between them the changes that no sync has covered."""

    __slots__ = ("durable", "entries", "pending")

    def __init__(self) -> None:
        self.entries: dict[str, Node] = {}
        self.durable: dict[str, Node] = {}
        self.pending: list[dict[str, Node | None]] = []

    def change(self, names: dict[str, Node | None]) -> None:
        """One change: names that appear, and names that go (None)."""
        _apply(self.entries, names)
        self.pending.append(names)

    def on_plate(self, done: dict[int, Node] | None = None) -> Directory:
        """A copy of what a power failure that takes all it can would leave."""
        done = {} if done is None else done
        copy = Directory()
        for name, node in self.durable.items():
            if id(node) not in done:
                done[id(node)] = (
                    node.on_plate(done) if isinstance(node, Directory) else node.on_plate()
                )
            copy.durable[name] = done[id(node)]
        copy.entries = dict(copy.durable)
        return copy

    def sync(self) -> None:
        """All changes are on the disk."""
        self.durable = dict(self.entries)
        self.pending.clear()

    def crash(self, rng: random.Random) -> list[str]:
        """Each change happened or did not, in an order that a journal could have written.

        Returns the kinds of those that did not.
        """
        undone: list[str] = []
        likelihood = rng.choice((0.0, 0.5, 0.5, 1.0))
        lost: set[str] = set()
        for names in self.pending:
            if lost.isdisjoint(names) and rng.random() < likelihood:
                _apply(self.durable, names)
            else:
                lost.update(names)
                made = sum(node is not None for node in names.values())
                kinds = ("removal", "creation") if len(names) == 1 else ("removal", "rename")
                undone.append(kinds[made])
        self.pending.clear()
        self.entries = dict(self.durable)
        return undone


Node = Inode | Directory


def _apply(entries: dict[str, Node], names: dict[str, Node | None]) -> None:
    for name, node in names.items():
        if node is None:
            entries.pop(name, None)
        else:
            entries[name] = node
