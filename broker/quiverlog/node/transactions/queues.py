"""Which committed rows are forwarded next: the queues of one broker, without I/O.

    Publish   what one publish row names: a `Part` for each partition that it reaches (a target)
    Line      parts of one source (a led partition of `__staged`) for one target, in log order
    Piece     rows of a line that are read and sent together; a target has one under way at most

     target: idle -add-> ready -take-> under way -acknowledged, gone back-> ready or idle
                           ^------- waiting <-failed--'

Invariants: a line sends its parts one after the other; a part stays until its target has
acknowledged all of it, so that the publisher can go back to any row of it.
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
    """`at`: the item that is sent next of the first part, `sequence`: the number that its target
    expects."""

    __slots__ = ("at", "is_stopped", "parts", "sequence", "source")

    def __init__(self, source: Hashable) -> None:
        self.source = source
        self.parts: deque[tuple[Publish, Sequence[Item]]] = deque()
        self.at = self.sequence = 0
        self.is_stopped = False

    @property
    def rows_left(self) -> int:
        return sum(_next(items[-1]) for _, items in self.parts) - self.sequence


class Piece(NamedTuple):
    """`items`: all that may be sent; `sequence`: what the target expects first."""

    target: _Target
    line: Line
    publish: Publish
    first: int
    items: Sequence[Item]
    sequence: int

    @property
    def key(self) -> TargetKey:
        return self.target.key

    @property
    def source(self) -> Hashable:
        return self.line.source


class Waiting(NamedTuple):
    """A target that has not got all rows. `error`: why the last try failed, if it did."""

    key: TargetKey
    error: QuiverlogError | None
    since_us: int
    row_count: int


class _Target:
    """`since_us`: when it last got on."""

    __slots__ = ("error", "failures", "held_bytes", "key", "lines", "piece", "since_us")

    def __init__(self, key: TargetKey) -> None:
        self.key = key
        self.lines: dict[Hashable, Line] = {}
        self.piece: Piece | None = None
        self.held_bytes = 0
        self.failures = 0
        self.error: QuiverlogError | None = None
        self.since_us = 0


class Queues:
    """
    Attributes:
        byte_count: of the pieces under way; one that is not read yet counts as a full one.
        finished: publishes without a target left, for the caller to take.
    """

    __slots__ = ("_later", "_number", "_ready", "_targets", "byte_count", "finished")

    def __init__(self) -> None:
        self._targets: dict[TargetKey, _Target] = {}
        self._ready: deque[_Target] = deque()
        self._later: list[tuple[int, int, _Target]] = []
        self._number = 0
        self.byte_count = 0
        self.finished: list[Publish] = []

    def __bool__(self) -> bool:
        return bool(self._targets)

    def add(self, source: Hashable, publish: Publish, now_us: int) -> None:
        """Queue it behind the source's earlier ones."""
        for key, items in publish.targets.items():
            target = self._targets.get(key)
            if target is None:
                target = self._targets[key] = _Target(key)
                target.since_us = now_us
                self._ready.append(target)
            line = target.lines.get(source)
            if line is None:
                line = target.lines[source] = Line(source)
            line.parts.append((publish, items))

    def stop(self, source: Hashable) -> None:
        """Forget what the source has: another leader goes on with it."""
        for target in self._targets.values():
            line = target.lines.pop(source, None)
            if line is not None:
                line.is_stopped = True
                line.parts.clear()  # A target without lines goes when it is looked at next.

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
            self._ready.append(heapq.heappop(later)[2])
        while self._ready and self.has_room:
            target = self._ready.popleft()
            if not target.lines:
                del self._targets[target.key]
                continue
            # One source after the other: none waits for all that another has.
            source, line = next(iter(target.lines.items()))
            target.lines[source] = target.lines.pop(source)
            publish, items = line.parts[0]
            wanted = items[line.at : line.at + FORWARD_BATCHES_MAX]
            piece = Piece(target, line, publish, line.at, wanted, line.sequence)
            target.piece = piece
            # Its size is not known before it is read: the bound holds for the worst.
            self._hold(target, FORWARD_PIECE_BYTES)
            return piece
        return None

    def loaded(self, piece: Piece, byte_count: int) -> None:
        """Count what the piece really holds."""
        self._hold(piece.target, byte_count)

    def acknowledged(
        self, piece: Piece, count: int, end_offset: int, level: int | None, now_us: int
    ) -> None:
        """Go on behind the piece's first `count` items, which are safe at the target, or missing
        here. `end_offset`: of the target's rows; -1, and no level: none were sent."""
        target, line, publish = piece.target, piece.line, piece.publish
        assert 0 < count <= len(piece.items)
        self._end(piece)
        if line.is_stopped:
            self._go_on(target)
            return
        target.failures, target.error, target.since_us = 0, None, now_us
        if level is not None:
            publish.level = level if publish.level is None else min(publish.level, level)
        if end_offset >= 0:
            publish.ends[target.key] = max(end_offset, publish.ends.get(target.key, -1))
        items = line.parts[0][1]
        line.at = piece.first + count
        line.sequence = _next(items[line.at - 1])
        if line.at == len(items):
            line.parts.popleft()
            line.at = line.sequence = 0
            self._finish_part(publish)
            if not line.parts:
                del target.lines[line.source]
        self._go_on(target)

    def go_back(self, piece: Piece, expected: int, error: QuiverlogError, now_us: int) -> None:
        """Begin again at the row that the target expects: it has lost what it had acknowledged."""
        line = piece.line
        if not line.is_stopped:
            items = line.parts[0][1]
            at = bisect_left(items, expected, key=lambda item: item.base_sequence)
            # Only back: what a target has beyond what was sent it would have skipped itself.
            if expected < piece.sequence and items[at].base_sequence == expected:
                self._end(piece)
                line.at, line.sequence = at, expected
                self._go_on(piece.target)
                return
        # It expects what was sent, or the middle of a batch: nothing that was sent explains that.
        self.failed(piece, error, now_us)

    def failed(self, piece: Piece, error: QuiverlogError, now_us: int) -> None:
        """Try again later: for ever, as the rows are committed."""
        target = piece.target
        self._end(piece)
        if not target.lines:
            del self._targets[target.key]
            return
        target.error = error
        # Small at first: most often another leader is elected just then.
        delay_ms = min(FORWARD_BACKOFF_MS_MAX, FORWARD_BACKOFF_MS_MIN << min(target.failures, 16))
        target.failures += 1
        self._number += 1
        heapq.heappush(self._later, (now_us + delay_ms * 1000, self._number, target))

    def deleted(self, piece: Piece) -> int:
        """Drop all that waits for the target, which is no more; return the number of rows."""
        target = piece.target
        self._end(piece)
        row_count = 0
        for line in target.lines.values():
            skipped = line.sequence
            for publish, items in line.parts:
                dropped = _next(items[-1]) - skipped
                publish.dropped_count += dropped
                row_count += dropped
                skipped = 0
                self._finish_part(publish)
        target.lines.clear()
        del self._targets[target.key]
        return row_count

    # --- what waits ----------------------------------------------------------------------------
    def waiting(self, source: Hashable | None = None) -> Iterator[Waiting]:
        """Yield the targets that rows of the source wait for; None: of all."""
        for target in self._targets.values():
            lines = [line for line in target.lines.values() if source in (None, line.source)]
            row_count = sum(line.rows_left for line in lines)
            if row_count:
                yield Waiting(target.key, target.error, target.since_us, row_count)

    # --- within --------------------------------------------------------------------------------
    def _hold(self, target: _Target, byte_count: int) -> None:
        self.byte_count += byte_count - target.held_bytes
        target.held_bytes = byte_count
        assert self.byte_count >= 0

    def _end(self, piece: Piece) -> None:
        target = piece.target
        assert target.piece is piece, "a piece ends once"
        target.piece = None
        self._hold(target, 0)

    def _go_on(self, target: _Target) -> None:
        if target.lines:
            self._ready.append(target)
        else:
            del self._targets[target.key]

    def _finish_part(self, publish: Publish) -> None:
        publish.todo -= 1
        assert publish.todo >= 0
        if not publish.todo:
            self.finished.append(publish)


def _next(item: Item) -> int:
    return item.base_sequence + item.row_count
