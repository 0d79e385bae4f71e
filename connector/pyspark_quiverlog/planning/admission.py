"""The end of the next micro-batch, under the options' bounds.

Applies the pure functions of `ranges`; for a bound of bytes it requests sizes, once for all ranges,
and for each when it cuts short.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from quiverlog.types import TopicPartition

from .log_view import LogView
from .ranges import Backlog, admit_bytes, admit_rows, enough_rows, share_bytes

__all__ = ["admit"]


def admit(
    view: LogView,
    begins: Mapping[TopicPartition, int],
    stops: Mapping[TopicPartition, int],
    waited: float | None,
    *,
    minimum: bool,
) -> tuple[dict[TopicPartition, int], list[TopicPartition]]:
    """Return (the end offset per partition; all partitions with rows if one was cut short or has no
    known size, else none).

    Args:
        waited: seconds since the last batch; None: no bound applies.
        minimum: whether the option `minOffsetsPerTrigger` applies.
    """
    options = view.options
    backlogs = [Backlog(w, begin, stops[w]) for w, begin in begins.items()]
    ends = {b.key: max(b.start, b.end) for b in backlogs}
    rows = sum(b.rows for b in backlogs)
    if waited is None or not rows:
        return _by_partition(ends), []
    rows_min = options.min_rows_per_trigger if minimum else None
    if not enough_rows(rows, rows_min, waited, options.max_trigger_delay):
        # Unchanged: with another end Spark would run a batch.
        return dict(begins), []
    rows_max, bytes_max = options.max_rows_per_trigger, options.max_bytes_per_trigger
    if rows_max is not None:
        ends = admit_rows(backlogs, rows_max)
    unsized: set[tuple[str, int]] = set()
    if bytes_max is not None:
        short = [b._replace(end=ends[b.key]) for b in backlogs]
        ends, unsized = _admit_bytes(view, short, bytes_max)
    _check_ends(backlogs, ends, rows_max)
    cut_short = bool(unsized) or any(ends[b.key] < b.end for b in backlogs)
    waiting = [TopicPartition(*b.key) for b in backlogs if b.rows]
    return _by_partition(ends), waiting if cut_short else []


def _admit_bytes(
    view: LogView, backlogs: list[Backlog], bytes_max: int
) -> tuple[dict[tuple[str, int], int], set[tuple[str, int]]]:
    """Return end offsets for at most `bytes_max` stored bytes (at least one batch), and those of
    them that have no known size."""
    waiting = {TopicPartition(*b.key): (b.start, b.end) for b in backlogs if b.rows}
    sizes = view.range_sizes(waiting)
    counts: dict[tuple[str, int], int] = {w: size.byte_count for w, size in sizes.items()}
    # Trimmed or deleted: planned whole, as its task reports what is missing.
    unsized: dict[tuple[str, int], int] = {w: e for w, (_, e) in waiting.items() if w not in sizes}
    if sum(counts.values()) <= bytes_max:  # no request per partition
        return {b.key: max(b.start, b.end) for b in backlogs}, set(unsized)
    sized = [b for b in backlogs if not b.rows or b.key in counts]
    byte_counts = {b.key: counts.get(b.key, 0) for b in sized}
    reached: dict[tuple[str, int], tuple[int, int]] = {}
    for key, share in share_bytes(sized, byte_counts, bytes_max).items():
        where = TopicPartition(*key)
        size = view.range_sizes({where: waiting[where]}, bytes_max=share).get(where)
        if size is None:
            unsized[key] = waiting[where][1]
        else:
            reached[key] = (size.end_offset, size.byte_count)
    return admit_bytes(sized, reached, bytes_max) | unsized, set(unsized)


def _check_ends(
    backlogs: Sequence[Backlog], ends: Mapping[tuple[str, int], int], rows_max: int | None
) -> None:
    taken = 0
    for backlog in backlogs:
        rows = ends[backlog.key] - backlog.start
        assert 0 <= rows <= backlog.rows, f"{backlog} was given the end {ends[backlog.key]}"
        taken += rows
    assert rows_max is None or taken <= rows_max, f"{taken} rows pass the bound of {rows_max}"


def _by_partition(ends: Mapping[tuple[str, int], int]) -> dict[TopicPartition, int]:
    return {TopicPartition(*key): offset for key, offset in ends.items()}
