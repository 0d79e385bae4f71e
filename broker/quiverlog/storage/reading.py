"""Finding batches in a segment and handing them out.

Owns the walk from an index entry to a row, the jump over batches that surely go out, and what is
served as a copy and what as a view of the mapped file. Bytes that this process has not seen before
are verified before they are served, and a walk that meets anything but the next batch has the whole
segment scanned once (checks.py): from then on the damaged rows are known, and reads in front of
and behind them go on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final, NamedTuple

from quiverlog.batch.header import link
from quiverlog.limits import BATCH_BYTES_MAX, BATCH_HEADER_BYTES
from quiverlog.storage.byte_source import ByteSource, FileBytes, is_unreadable
from quiverlog.storage.checks import Undiagnosed, Unverified
from quiverlog.storage.scan import Damage
from quiverlog.storage.segment import Segment
from quiverlog.storage.segment_index import SEGMENT_HEADER_BYTES

__all__ = ["Answer", "read", "read_newest", "spans", "views_of"]

_COPY_BYTES_MAX: Final = 64 * 1024
"""Up to here one pread serves the walk and the answer."""
_WALK_BYTES: Final = 8 * 1024
"""A window for walking only: what lies between two index entries, usually."""
_ROWS_SHIFT: Final = 32
_BYTES_MASK: Final = 2**32 - 1


class Answer(NamedTuple):
    """Whole batches in order, `byte_count` bytes of the file from `position` on.

    `views`: them, the last one in a view of its own; or none, and `last_header` is that one's: who
    has asked reads the file. `next_offset` follows the last row. `is_full`: one more would have
    been too many bytes.
    """

    segment: Segment
    position: int
    byte_count: int
    next_offset: int
    views: list[memoryview]
    last_header: bytes = b""
    is_full: bool = False


def views_of(answers: Iterable[Answer]) -> list[memoryview]:
    """All their batches, in order; the last one is in a view of its own."""
    return [view for answer in answers for view in answer.views]


class _Batch(NamedTuple):
    """A batch that was walked over: its bytes [start, end), and the row behind it."""

    start: int
    end: int
    next_offset: int


def read(
    segment: Segment,
    offset: int,
    bytes_max: int,
    end_offset: int,
    *,
    before_headers: Callable[[int, int], None] | None = None,
) -> Answer:
    """As `Log.read`, within one segment.

    Args:
        before_headers: told of (position, size) in front of each look at headers. With it the
            answer has no views: nothing else is looked at.

    Raises:
        CorruptLog: the batch at `offset` is known to be damaged.
        Unverified, Undiagnosed: find out first (checks.py).
    """
    assert segment.base_offset <= offset < segment.end_offset
    end_offset = _end_before_damage(segment, offset, end_offset)
    position, expected = _floor(segment, offset)
    size = segment.file.size
    in_file = before_headers is not None
    window_bytes = _WALK_BYTES if in_file else _window_bytes(bytes_max)
    source = FileBytes(segment.file, size, window_bytes=window_bytes, before=before_headers)
    # The first batch of the answer holds `offset`; the walk to it begins at an index entry.
    first_row = expected
    first = _pass(segment, source, position, expected)
    while first.next_offset <= offset:
        first_row = first.next_offset
        first = _pass(segment, source, first.end, first_row)
    start = first.start
    last, is_full = _last(segment, source, first, bytes_max, end_offset, walks_far=not in_file)
    # What was passed on the way counts, too: a size that lies leads into a column's bytes.
    good_end = segment.verified_end(position)
    if good_end < last.end:
        if good_end - start not in range(1, bytes_max):
            raise Unverified(position, last.end, expected, last.next_offset)
        # Only so much is known to be good: no more goes out.
        good_bytes = good_end - start
        last, _ = _last(segment, source, first, good_bytes, end_offset, walks_far=not in_file)
        is_full = False
        if last.end > good_end:
            raise Unverified(position, last.end, expected, last.next_offset)
    assert start <= last.start < last.end <= size
    assert offset < last.next_offset <= segment.end_offset
    told = segment, start, last.end - start, last.next_offset
    if in_file:
        header = bytes(source.read(last.start, BATCH_HEADER_BYTES))
        assert len(header) == BATCH_HEADER_BYTES, "the walk has passed it"
        return Answer(*told, [], header, is_full)
    window = _bytes_of(segment, source, Damage(start, last.end, first_row, last.next_offset))
    at = last.start - start
    views = [window[:at], window[at:]] if at else [window]
    return Answer(*told, views, is_full=is_full)


def _window_bytes(bytes_max: int) -> int:
    """What a walk reads at once: all of a small answer."""
    near = bytes_max + 2 * BATCH_HEADER_BYTES + 4096
    return near if near <= _COPY_BYTES_MAX else _WALK_BYTES


def _last(
    segment: Segment,
    source: ByteSource,
    first: _Batch,
    bytes_max: int,
    end_offset: int,
    *,
    walks_far: bool,
) -> tuple[_Batch, bool]:
    """The last batch of an answer that begins with `first`, which goes out in any case.

    And whether the next one is there, and would be too many bytes.

    Args:
        walks_far: where the index leads astray, all batches are walked over. Else only `first` goes
            out: so many headers are in memory only where the rows between them have to be.

    Only a batch that was walked over can be the last one: where the index leads is believed when a
    batch begins there that joins up, and when it goes out, too.
    """
    last, limit = first, first.start + bytes_max
    if last.next_offset >= end_offset or last.end >= limit:
        return last, False
    is_full = False
    position, expected = _jump(segment, last.end, last.next_offset, limit, end_offset)
    while expected < end_offset and position < source.size:
        try:
            batch = _pass(segment, source, position, expected)
        except Undiagnosed:
            batch = None
        if batch is not None and batch.end <= limit:
            last = batch
        elif position == last.end or not walks_far:
            is_full = batch is not None and position == last.end
            break  # What is good in front of it goes out; the next read tells.
        position, expected = last.end, last.next_offset
    assert first.end <= last.end
    assert last is first or last.end <= limit, "one batch may be too large, the first"
    return last, is_full


def read_newest(segment: Segment, offset: int, bytes_max: int) -> Answer | None:
    """The batches from `offset` to the segment's end, if the newest append holds them all.

    What nearly every reader at the tail asks for, in one call of the system. None where anything
    is less simple than that (bytes not in memory, too many, not verified, another row than
    expected): `read` finds out.
    """
    start, expected = segment.tail
    size = segment.file.size - start
    if not 0 <= expected <= offset < segment.end_offset or segment.damages:
        return None
    if not 0 < size <= min(bytes_max, _COPY_BYTES_MAX) or start < segment.trusted_from:
        return None
    data = segment.file.read_cached(start, size)
    if data is None:
        return None
    at = first = last = 0
    while at < size:
        step = link(data, at, expected, size - at)
        if not step:
            return None
        if expected <= offset:
            first = at
        last = at
        at += step & _BYTES_MASK
        expected += step >> _ROWS_SHIFT
    window = memoryview(data)
    views = [window[first:last], window[last:]] if first < last else [window[first:]]
    return Answer(segment, start + first, size - first, expected, views)


def _floor(segment: Segment, offset: int) -> tuple[int, int]:
    """(position, first row) of a batch at or before `offset`, no damage in between."""
    index = segment.load()
    if not len(index):
        bad = Damage(SEGMENT_HEADER_BYTES, segment.file.size, offset, segment.end_offset)
        raise Undiagnosed(segment.corrupt(bad))
    if 0 <= segment.tail[1] <= offset and not segment.damages:
        return segment.tail
    entry = index.floor_offset(offset - segment.base_offset)
    position = index.positions[entry]
    expected = segment.base_offset + index.relative_offsets[entry]
    if expected > offset:  # An index made again leaves out damage that a segment begins with.
        position, expected = SEGMENT_HEADER_BYTES, segment.base_offset
    for damage in segment.damages:  # An entry inside of damage may be wrong, too.
        if damage.end_offset <= offset and damage.end_position > position:
            position, expected = damage.end_position, damage.end_offset
    assert expected <= offset, "a walk goes forward only"
    return position, expected


def _end_before_damage(segment: Segment, offset: int, end_offset: int) -> int:
    """The offset at which a read from `offset` must end. Raises CorruptLog if that is damaged."""
    for damage in segment.damages:
        if damage.offset <= offset < damage.end_offset:
            raise segment.corrupt(damage)
        if offset < damage.offset < end_offset:
            return damage.offset
    return end_offset


def _jump(
    segment: Segment, position: int, expected: int, end_position: int, end_offset: int
) -> tuple[int, int]:
    """Find where the walk to the answer's end may begin: an index entry further on, or right here.

    One entry less than what surely fits, because the walk must pass the last batch's header: that
    batch gets a view of its own. Not over damage, because entries there may be wrong.
    """
    assert expected < end_offset, "there is more to hand out"
    assert position < end_position
    damage_at = min((d.position for d in segment.damages if d.position >= position), default=2**32)
    index = segment.load()
    entry = -1 + min(
        index.floor_position(end_position),
        index.floor_offset(end_offset - 1 - segment.base_offset),
    )
    if entry > 0 and position < index.positions[entry] < damage_at:
        return index.positions[entry], segment.base_offset + index.relative_offsets[entry]
    return position, expected


def _pass(segment: Segment, source: ByteSource, position: int, expected: int) -> _Batch:
    """The batch at `position`, if it begins with row `expected`. Raises Undiagnosed otherwise."""
    view = source.read(position, BATCH_HEADER_BYTES)
    room = source.size - position
    step = link(view, 0, expected, room) if len(view) == BATCH_HEADER_BYTES else 0
    end, next_offset = position + (step & _BYTES_MASK), expected + (step >> _ROWS_SHIFT)
    if not step or next_offset > segment.end_offset:
        bad = Damage(position, source.size, expected, segment.end_offset)
        raise Undiagnosed(segment.corrupt(bad))
    return _Batch(position, end, next_offset)


def _bytes_of(segment: Segment, source: FileBytes, wanted: Damage) -> memoryview:
    """The bytes of a range. Raises Undiagnosed with just that range when they cannot be read."""
    start, end = wanted.position, wanted.end_position
    assert SEGMENT_HEADER_BYTES <= start < end <= source.size
    if end - start <= _COPY_BYTES_MAX and source.holds(start, end):
        return source.read(start, end - start)
    try:
        window = segment.file.read(start, end - start)
        if len(window) == end - start:
            return window
    except OSError as error:
        if not is_unreadable(error):
            raise
    segment.distrust()
    raise Undiagnosed(segment.corrupt(wanted))


def spans(
    segment: Segment, offset: int, bytes_max: int, end_offset: int
) -> Iterator[tuple[int, int]]:
    """(position, size) of what `read` looks at, a little more rather than less.

    Raises as `read`.
    """
    index = segment.load()
    if not len(index):
        return
    size = segment.file.size
    tail_at, tail_offset = segment.tail
    if 0 <= tail_offset <= offset:
        # Its first batch goes out in any case, however large.
        yield tail_at, min(size - tail_at, max(bytes_max, BATCH_BYTES_MAX))
        return
    _end_before_damage(segment, offset, end_offset)
    position, _ = _floor(segment, offset)
    near = index.floor_position(position) + 1
    first_end = index.positions[near] if near < len(index) else size
    after = index.floor_offset(max(0, end_offset - 1 - segment.base_offset)) + 1
    end = index.positions[after] if after < len(index) else size
    end = min(max(first_end, end), first_end + bytes_max) + _window_bytes(bytes_max)
    yield position, min(size, end) - position
