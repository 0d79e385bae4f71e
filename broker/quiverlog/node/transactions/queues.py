"""Which committed rows are forwarded next: the queues of one broker, without I/O.

    Publish   what one publish row names: a `Part` for each partition that it reaches (a target)
    Line      parts of one source (a led partition of `__staged`) for one target, in log order
    Piece     rows of a part that are read and sent together; some are under way at once

Invariants: a line sends its parts one after the other, and the pieces of a part in their order; a
part stays until its target has acknowledged all of it, so that the publisher can go back to any row
of it.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Final, NamedTuple

from quiverlog.errors import QuiverlogError
from quiverlog.limits import (
    FORWARD_BACKOFF_MS_MAX,
    FORWARD_BACKOFF_MS_MIN,
    FORWARD_BATCHES_MAX,
    FORWARD_BYTES_MAX,
    FORWARD_PIECE_BYTES,
    FORWARD_TARGET_BYTES,
)
from quiverlog.types import Durability

__all__ = ["Item", "Line", "Piece", "Publish", "Queues", "TargetKey", "Waiting"]

TargetKey = tuple[bytes, int]
"""Topic id and partition."""
_MEMORY: Final = Durability.MEMORY


class Item(NamedTuple):
    """A staged row: one batch of its target, and where its rows lie in the publish."""

    offset: int
    base_sequence: int
    row_count: int


class Publish:
    """The rows that one publish row names, and what has become of them.

    `ends`: where each target ended when all was safe there. `level`: the weakest that a target
    gave them. `missing_count`: rows that a fault took; `dropped_count`: of deleted targets.
    `then` is called once, when no target is left.
    """

    __slots__ = (
        "dropped_count", "durability", "ends", "level", "missing_count", "next_offset",
        "producer_id", "targets", "then", "todo",
    )  # fmt: skip

    def __init__(
        self,
        producer_id: int,
        durability: int,
        targets: dict[TargetKey, Sequence[Item]],
        then: Callable[[Publish], None],
    ) -> None:
        assert targets
        assert all(targets.values()), "a publish has rows for each target that it names"
        self.producer_id = producer_id
        self.durability = durability
        self.targets = targets
        self.then = then
        self.todo = len(targets)
        self.next_offset = 1 + max(items[-1].offset for items in targets.values())
        self.ends: dict[TargetKey, int] = {}
        self.level: int | None = None
        self.missing_count = 0
        self.dropped_count = 0


class Line:
    """`at`: the item of the first part that is read next; `sequence`: what the target expects then,
    which is less where rows before it are missing. `safe_at`, `safe_sequence`: the same of what is
    safe. `pieces`: those under way, in order. `is_reading`: the size of the last one is not known
    yet, and so not where the next begins. `is_back`: nothing was safe since it has gone back.
    `missing`: items of the first part whose rows are counted as missing."""

    __slots__ = (
        "at", "is_back", "is_reading", "missing", "parts", "pieces", "safe_at", "safe_sequence",
        "sequence", "source",
    )  # fmt: skip

    def __init__(self, source: Hashable) -> None:
        self.source = source
        self.parts: deque[tuple[Publish, Sequence[Item]]] = deque()
        self.pieces: deque[Piece] = deque()
        self.at = self.sequence = self.safe_at = self.safe_sequence = 0
        self.is_reading = self.is_back = False
        self.missing: set[int] = set()

    @property
    def may_begin(self) -> bool:
        return not self.is_reading and bool(self.parts) and self.at < len(self.parts[0][1])

    @property
    def rows_left(self) -> int:
        parts = list(self.parts)  # In one step: any thread may ask.
        rows = sum(_next(items[-1]) for _, items in parts)
        return rows - _begin(parts[0][1], self.safe_at) if rows else 0

    def begin_again(self, at: int, sequence: int) -> None:
        """Read from there next; what is under way does not count any more."""
        assert not at or at < len(self.parts[0][1]), "a part that is done is gone"
        for piece in self.pieces:
            piece.is_void = True
        self.pieces.clear()
        self.at = self.safe_at = at
        self.sequence = self.safe_sequence = sequence
        self.is_reading = False


class Piece:
    """`items`: of the part; those from `first` to before `end` may be sent. `sequence`: what the
    target expects first, `next_sequence` then. `item_count`: those
    that are sent, or missing; `missing_count`: rows. `is_void`: the line does not wait for it any
    more."""

    __slots__ = (
        "end", "first", "held_bytes", "is_safe", "is_void", "item_count", "items", "line",
        "missing_count", "next_sequence", "publish", "sequence", "target",
    )  # fmt: skip

    def __init__(self, target: _Target, line: Line) -> None:
        self.target = target
        self.line = line
        self.publish, self.items = line.parts[0]
        self.first = line.at
        self.end = min(line.at + FORWARD_BATCHES_MAX, len(self.items))
        self.sequence = self.next_sequence = line.sequence
        assert self.first < self.end, "a piece has a row"
        assert self.sequence <= self.head.base_sequence, "the target expects no row that is behind"
        self.item_count = self.missing_count = self.held_bytes = 0
        self.is_safe = self.is_void = False

    @property
    def head(self) -> Item:
        return self.items[self.first]

    @property
    def key(self) -> TargetKey:
        return self.target.key

    @property
    def source(self) -> Hashable:
        return self.line.source

    def count_missing(self) -> None:
        """Leave out rows that were counted before the publisher went back to them."""
        left, self.missing_count, at = self.missing_count, 0, self.first
        while left > 0:  # They lie before all that is sent.
            if at not in self.line.missing:
                self.line.missing.add(at)
                self.missing_count += self.items[at].row_count
            left -= self.items[at].row_count
            at += 1
        assert not left, "items are missing as a whole"


class Waiting(NamedTuple):
    """A target that has not got all rows. `error`: why the last try failed, if it did."""

    key: TargetKey
    error: QuiverlogError | None
    since_us: int
    row_count: int


class _Target:
    """`since_us`: when it last got on. `rests`: until it is tried again."""

    __slots__ = (
        "error", "failures", "held_bytes", "is_ready", "key", "lines", "rests", "since_us",
        "under_way",
    )  # fmt: skip

    def __init__(self, key: TargetKey) -> None:
        self.key = key
        self.lines: dict[Hashable, Line] = {}
        self.under_way = self.held_bytes = 0
        self.is_ready = self.rests = False
        self.failures = 0
        self.error: QuiverlogError | None = None
        self.since_us = 0

    @property
    def may_begin(self) -> bool:
        if self.under_way and self.held_bytes + FORWARD_PIECE_BYTES > FORWARD_TARGET_BYTES:
            return False
        return any(line.may_begin for line in self.lines.values())


class Queues:
    """
    Attributes:
        byte_count: of the pieces under way; one that is not read yet counts as a full one.
        finished: publishes without a target left, for the caller to take.
        lost: pieces that are done, with rows that were missing.
    """

    __slots__ = ("_later", "_number", "_ready", "_targets", "byte_count", "finished", "lost")

    def __init__(self) -> None:
        self._targets: dict[TargetKey, _Target] = {}
        self._ready: deque[_Target] = deque()
        self._later: list[tuple[int, int, _Target]] = []
        self._number = 0
        self.byte_count = 0
        self.finished: list[Publish] = []
        self.lost: list[Piece] = []

    def __bool__(self) -> bool:
        # With targets that are forgotten: their moments are due until `take` has met them.
        return bool(self._targets or self._ready or self._later)

    def add(self, source: Hashable, publish: Publish, now_us: int) -> None:
        """Queue it behind the source's earlier ones."""
        for key, items in publish.targets.items():
            target = self._targets.get(key)
            if target is None:
                target = self._targets[key] = _Target(key)
                target.since_us = now_us
            line = target.lines.get(source)
            if line is None:
                line = target.lines[source] = Line(source)
            if line.parts:
                newest = line.parts[-1][0]
                # A target takes all of an older publish for stored.
                assert newest.producer_id < publish.producer_id, "publishes come in their order"
            line.parts.append((publish, items))
            self._offer(target)

    def stop(self, source: Hashable) -> None:
        """Forget what the source has: another leader goes on with it."""
        for target in list(self._targets.values()):
            line = target.lines.pop(source, None)
            if line is not None:
                line.parts.clear()
                line.begin_again(0, 0)
                self._offer(target)

    # --- pieces --------------------------------------------------------------------------------
    @property
    def has_room(self) -> bool:
        return not self.byte_count or self.byte_count + FORWARD_PIECE_BYTES <= FORWARD_BYTES_MAX

    def next_us(self) -> int | None:
        """Return when `take` will have a piece at the latest; 0: now; None: not by time alone."""
        if self._ready and self.has_room:
            return 0
        return self._later[0][0] if self._later else None

    def take(self, now_us: int) -> Piece | None:
        """Begin a piece; it ends by one of the methods below."""
        later = self._later
        while later and later[0][0] <= now_us:
            target = heapq.heappop(later)[2]
            target.rests = False
            self._offer(target)
        while self._ready and self.has_room:
            target = self._ready.popleft()
            target.is_ready = False
            if target.rests or not target.may_begin:
                self._offer(target)
                continue
            line = next(one for one in target.lines.values() if one.may_begin)
            # To the end: no source waits for all that another has.
            target.lines[line.source] = target.lines.pop(line.source)
            piece = Piece(target, line)
            line.pieces.append(piece)
            line.is_reading = True
            target.under_way += 1
            # Its size is not known before it is read: the bound holds for the usual one.
            self._hold(piece, FORWARD_PIECE_BYTES)
            assert self.byte_count <= FORWARD_BYTES_MAX
            self._offer(target)
            return piece
        return None

    def loaded(
        self, piece: Piece, item_count: int, byte_count: int, missing_count: int = 0
    ) -> None:
        """Count what is sent; the next piece may begin behind it."""
        assert piece.first < piece.first + item_count <= piece.end
        assert not piece.item_count, "a piece is read once"
        piece.item_count, piece.missing_count = item_count, missing_count
        if byte_count:
            piece.next_sequence = _next(piece.items[piece.first + item_count - 1])
            assert piece.next_sequence > piece.sequence
        self._hold(piece, byte_count)
        if not piece.is_void:
            line = piece.line
            assert line.is_reading
            assert line.pieces[-1] is piece, "the next begins where this one ends"
            line.at, line.sequence = piece.first + item_count, piece.next_sequence
            line.is_reading = False
        self._offer(piece.target)

    def skipped(self, piece: Piece, item_count: int, missing_count: int, now_us: int) -> None:
        """Go on behind items that are missing here, of which nothing is sent."""
        self.loaded(piece, item_count, 0, missing_count)
        self._end(piece)
        self._safe(piece, now_us)

    def acknowledged(self, piece: Piece, end_offset: int, level: int, now_us: int) -> None:
        """Take the answer that the piece, and all before it, is safe below `end_offset`."""
        assert piece.item_count, "what is acknowledged was sent"
        self._end(piece)
        if not piece.is_void:
            piece.line.is_back = False
            publish = piece.publish
            publish.level = level if publish.level is None else min(publish.level, level)
            publish.ends[piece.key] = max(end_offset, publish.ends.get(piece.key, -1))
            for one in piece.line.pieces:
                if one is piece:
                    break
                # Rows are safe in the order of their offsets.
                one.is_safe = one.item_count > 0
        self._safe(piece, now_us)

    def go_back(self, piece: Piece, expected: int, error: QuiverlogError, now_us: int) -> None:
        """Begin again at the row that the target expects: it has lost what it had acknowledged."""
        line = piece.line
        # Only back: what a target has beyond what was sent it would have skipped itself.
        if not piece.is_void and expected < piece.sequence:
            items = line.parts[0][1]
            assert items is piece.items, "a line sends one part at a time"
            at = bisect_left(items, expected, key=lambda item: item.base_sequence)
            assert at <= piece.first, "only back"
            if items[at].base_sequence == expected:
                self._end(piece)
                line.begin_again(at, expected)
                if line.is_back:
                    piece.target.error = error
                    self._rest(piece.target, now_us)
                line.is_back = True
                self._offer(piece.target)
                return
        # It expects what was sent, or the middle of a batch: nothing that was sent explains that.
        self.failed(piece, error, now_us)

    def failed(self, piece: Piece, error: QuiverlogError, now_us: int) -> None:
        """Try again later: for ever, as the rows are committed."""
        target = piece.target
        self._end(piece)
        if not piece.is_void:
            piece.line.begin_again(piece.line.safe_at, piece.line.safe_sequence)
            target.error = error
            self._rest(target, now_us)
        self._offer(target)

    def deleted(self, piece: Piece) -> int:
        """Drop all that waits for the target, which is no more; return the number of rows."""
        target = piece.target
        self._end(piece)
        row_count = 0
        for line in target.lines.values():
            done = _begin(line.parts[0][1], line.safe_at)
            for publish, items in line.parts:
                dropped = _next(items[-1]) - done
                assert dropped > 0, "a part that is done is gone"
                publish.dropped_count += dropped
                row_count += dropped
                done = 0
                self._finish_part(publish)
            line.parts.clear()
            line.begin_again(0, 0)
        target.lines.clear()
        self._offer(target)
        return row_count

    # --- what waits ----------------------------------------------------------------------------
    def waiting(self, source: Hashable | None = None) -> Iterator[Waiting]:
        """Yield the targets that rows of the source wait for; None: of all. Any thread may ask."""
        for target in list(self._targets.values()):
            lines = [line for line in list(target.lines.values()) if source in (None, line.source)]
            row_count = sum(line.rows_left for line in lines)
            if row_count:
                yield Waiting(target.key, target.error, target.since_us, row_count)

    # --- within --------------------------------------------------------------------------------
    def _offer(self, target: _Target) -> None:
        """Queue the target if a piece of it may begin; forget it if nothing is left."""
        if not target.lines:
            if not target.under_way and self._targets.get(target.key) is target:
                del self._targets[target.key]
        elif not (target.is_ready or target.rests) and target.may_begin:
            target.is_ready = True
            self._ready.append(target)

    def _rest(self, target: _Target, now_us: int) -> None:
        if target.rests:
            return
        # Small at first: most often another leader is elected just then.
        delay_ms = min(FORWARD_BACKOFF_MS_MAX, FORWARD_BACKOFF_MS_MIN << min(target.failures, 16))
        target.failures += 1
        target.rests = True
        self._number += 1
        heapq.heappush(self._later, (now_us + delay_ms * 1000, self._number, target))

    def _hold(self, piece: Piece, byte_count: int) -> None:
        more = byte_count - piece.held_bytes
        piece.held_bytes = byte_count
        piece.target.held_bytes += more
        self.byte_count += more
        assert self.byte_count >= piece.target.held_bytes >= 0

    def _end(self, piece: Piece) -> None:
        self._hold(piece, 0)
        piece.target.under_way -= 1
        assert piece.target.under_way >= 0, "a piece ends once"

    def _safe(self, piece: Piece, now_us: int) -> None:
        target, line = piece.target, piece.line
        if not piece.is_void:
            piece.is_safe = True
            while line.pieces and line.pieces[0].is_safe:
                one = line.pieces.popleft()
                one.is_void = True
                line.safe_at, line.safe_sequence = one.first + one.item_count, one.next_sequence
                one.count_missing()  # Not before: a piece that fails is read again.
                if one.missing_count:
                    one.publish.missing_count += one.missing_count
                    self.lost.append(one)
                target.failures, target.error, target.since_us = 0, None, now_us
            publish, items = line.parts[0]
            assert publish is piece.publish, "a line sends one part at a time"
            assert line.safe_at <= line.at, "what is safe was sent"
            if line.safe_at == len(items):
                line.parts.popleft()
                line.missing.clear()
                line.begin_again(0, 0)
                self._finish_part(publish)
                if not line.parts:
                    del target.lines[line.source]
        self._offer(target)

    def _finish_part(self, publish: Publish) -> None:
        publish.todo -= 1
        assert publish.todo >= 0
        if not publish.todo:
            self.finished.append(publish)


def _next(item: Item) -> int:
    return item.base_sequence + item.row_count


def _begin(items: Sequence[Item], at: int) -> int:
    """Return the sequence at which the item `at` is expected."""
    return _next(items[at - 1]) if at else 0
