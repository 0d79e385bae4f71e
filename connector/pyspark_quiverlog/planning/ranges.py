"""The rows of a micro-batch, and their split into Spark tasks: pure functions over numbers.

Invariants, each a property in tests/model/test_planning.py:

- what is admitted is a prefix of what waits, in each partition, and within the bound, but that one
  partition's part may have more bytes;
- a partition with rows waiting is not starved;
- a split neither loses, repeats nor reorders a row, and no task has an empty range.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Mapping, Sequence
from typing import NamedTuple

__all__ = [
    "Backlog",
    "Range",
    "admit_bytes",
    "admit_rows",
    "enough_rows",
    "share_bytes",
    "split_ranges",
]

Key = tuple[str, int]
"""Topic and partition."""


class Backlog(NamedTuple):
    """Rows that wait in one partition: [start, end)."""

    key: Key
    start: int
    end: int

    @property
    def rows(self) -> int:
        return max(0, self.end - self.start)


class Range(NamedTuple):
    """Rows [start, end) of one partition, as an executor reads them.

    `epoch` is the leader epoch of the row before `start`, `end_epoch` of the last one (-1:
    unknown): rows with a newer one replaced truncated rows after planning.
    """

    topic: str
    topic_id: str
    partition: int
    start: int
    end: int
    epoch: int
    end_epoch: int = -1

    @property
    def rows(self) -> int:
        """An upper bound: lost and skipped rows have offsets, too."""
        return self.end - self.start


def enough_rows(rows: int, rows_min: int | None, waited: float, delay_max: float) -> bool:
    """Return whether `rows_min` rows wait, or some do and the time is up."""
    if rows_min is None or rows >= rows_min:
        return True
    return rows > 0 and waited >= delay_max


def admit_rows(backlogs: Sequence[Backlog], rows_max: int | None) -> dict[Key, int]:
    """Return end offsets for at most `rows_max` rows in all.

    Each partition with rows gets at least one; when `rows_max` is too small for that, they take
    turns.
    """
    if rows_max is None or sum(b.rows for b in backlogs) <= rows_max:
        return {b.key: max(b.start, b.end) for b in backlogs}
    # In proportion, all partitions reach their ends together: watermarks do not run ahead.
    shares = _shares([b.rows for b in backlogs], rows_max, _rotation(backlogs))
    return {b.key: b.start + share for b, share in zip(backlogs, shares, strict=True)}


def share_bytes(
    backlogs: Sequence[Backlog], byte_counts: Mapping[Key, int], bytes_max: int
) -> dict[Key, int]:
    """Return shares of `bytes_max`, in proportion to the waiting bytes."""
    sizes = [byte_counts[b.key] if b.rows else 0 for b in backlogs]
    if sum(sizes) <= bytes_max:
        return {b.key: size for b, size in zip(backlogs, sizes, strict=True) if size}
    shares = _shares(sizes, bytes_max, _rotation(backlogs))
    assert sum(shares) == bytes_max
    return {b.key: share for b, share in zip(backlogs, shares, strict=True) if share}


def admit_bytes(
    backlogs: Sequence[Backlog], reached: Mapping[Key, tuple[int, int]], bytes_max: int
) -> dict[Key, int]:
    """Return end offsets for at most `bytes_max` in all, or one partition's part.

    `reached`: partition -> (end offset on a batch boundary, stored bytes up to there).
    """
    ends = {b.key: b.start for b in backlogs}
    waiting = [b for b in backlogs if b.rows and b.key in reached]
    turn = _rotation(waiting)
    taken = 0
    for backlog in waiting[turn:] + waiting[:turn]:
        end, size = reached[backlog.key]
        # The first passes whatever its size: a part is at least one whole batch.
        if taken and taken + size > bytes_max:
            continue
        ends[backlog.key] = min(end, backlog.end)
        taken += size
    assert all(ends[b.key] >= b.start for b in backlogs), "no partition goes back"
    moved = sum(ends[b.key] > b.start for b in backlogs)
    assert taken <= bytes_max or moved == 1, "only a single batch may be above the bound"
    return ends


def _rotation(backlogs: Sequence[Backlog]) -> int:
    """Return the index of the partition served first."""
    # From the offsets, so that it moves on without state. Knuth's multiplier: without it, some step
    # widths would always miss the same partition.
    mixed = (sum(b.start for b in backlogs) * 2_654_435_761) & 0xFFFF_FFFF
    return (mixed * len(backlogs)) >> 32


def _shares(amounts: Sequence[int], total: int, turn: int) -> list[int]:
    """Split `total` in proportion; exact, and at least 1 for each while it lasts."""
    available = sum(amounts)
    assert 0 < total < available
    count = len(amounts)
    line = [i for i in [*range(turn, count), *range(turn)] if amounts[i]]
    shares = [amount * total // available for amount in amounts]
    rest = total - sum(shares)
    empty = [i for i in line if shares[i] == 0][:rest]
    for i in empty:
        shares[i] = 1
    rest -= len(empty)
    # The remainder goes one by one to the largest fractions, ties by turn (`sorted` is stable).
    fractions = sorted(line, key=lambda i: -(amounts[i] * total % available))
    served = set(empty)
    for i in [i for i in fractions if i not in served and shares[i] < amounts[i]][:rest]:
        shares[i] += 1
    assert sum(shares) == total
    assert all(0 <= share <= amount for share, amount in zip(shares, amounts, strict=True))
    return _share_with_empty(shares, line)


def _share_with_empty(shares: list[int], line: list[int]) -> list[int]:
    """Give each partition without a share one of the partition with the most."""
    empty = [i for i in line if shares[i] == 0]
    givers = [(-shares[i], i) for i in line if shares[i] > 1]
    heapq.heapify(givers)
    for i in empty:
        if not givers:
            break
        minus, giver = heapq.heappop(givers)
        shares[giver] -= 1
        shares[i] = 1
        if minus + 1 < -1:
            heapq.heappush(givers, (minus + 1, giver))
    return shares


def split_ranges(
    ranges: Sequence[Range],
    *,
    tasks_min: int | None = None,
    rows_max: int | None = None,
    rows_min: int = 0,
) -> list[list[Range]]:
    """Turn ranges into Spark tasks: each inner list is read by one task, in order.

    Without bounds, one task per range that is not empty. `rows_max`: per task. `tasks_min`: large
    ranges are split into about this many tasks. `rows_min`: smaller ranges share a task, while
    `tasks_min` remain.
    """
    todo = [r for r in ranges if r.rows > 0]
    if not todo:
        return []
    pieces = todo
    if rows_max is not None:
        pieces = [p for r in pieces for p in _cut(r, -(-r.rows // rows_max))]
    if tasks_min is not None and len(pieces) < tasks_min:
        pieces = _cut_to_count(pieces, tasks_min)
    assert sum(piece.rows for piece in pieces) == sum(r.rows for r in todo), "no row twice"
    limit = rows_min if rows_max is None else min(rows_min, rows_max)
    return _merge_small(pieces, limit, tasks_min or 1)


def _cut(whole: Range, parts: int) -> list[Range]:
    parts = max(1, min(parts, whole.rows))
    edges = [whole.start + whole.rows * i // parts for i in range(parts + 1)]
    assert (edges[0], edges[-1]) == (whole.start, whole.end)
    # Only the first piece follows the row whose epoch is known.
    return [
        whole._replace(start=a, end=b, epoch=whole.epoch if i == 0 else -1)
        for i, (a, b) in enumerate(itertools.pairwise(edges))
    ]


def _cut_to_count(pieces: Sequence[Range], count: int) -> list[Range]:
    """Cut the pieces into about `count`, always dividing the largest."""
    parts = [1] * len(pieces)
    queue = [(-piece.rows, i) for i, piece in enumerate(pieces)]
    heapq.heapify(queue)
    for _ in range(count - len(pieces)):
        minus, i = queue[0]
        if minus > -2:  # one row each
            break
        parts[i] += 1
        heapq.heapreplace(queue, (-pieces[i].rows // parts[i], i))
    return [p for piece, n in zip(pieces, parts, strict=True) for p in _cut(piece, n)]


def _merge_small(pieces: Sequence[Range], limit: int, tasks_min: int) -> list[list[Range]]:
    """Gather small neighbours into tasks of at most `limit` rows."""
    tasks: list[list[Range]] = []
    spare = len(pieces) - tasks_min
    open_rows = 0
    for piece in pieces:
        fits = bool(tasks) and open_rows and open_rows + piece.rows <= limit
        if fits and spare > 0:
            tasks[-1].append(piece)
            open_rows += piece.rows
            spare -= 1
        else:
            tasks.append([piece])
            open_rows = piece.rows if piece.rows < limit else 0
    assert sum(map(len, tasks)) == len(pieces)
    assert len(tasks) >= min(tasks_min, len(pieces))
    return tasks
