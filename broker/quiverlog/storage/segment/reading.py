"""Reading a segment: from an index entry to the batch with an offset, a time or a byte count.

A walk over batch headers steps over known damage. Where it meets anything but the next batch it
raises `Undiagnosed`, or has the segment scanned once; then reads around the damage go on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from quiverlog.batch.header import CRC_START, BatchHeader, link
from quiverlog.errors import CorruptLog
from quiverlog.limits import BATCH_BYTES_MAX, BATCH_HEADER_BYTES
from quiverlog.storage.disk.byte_source import ByteSource, FileBytes, checksum, is_unreadable
from quiverlog.storage.disk.disk import File
from quiverlog.storage.segment.checks import LongWalk, Undiagnosed, Unverified
from quiverlog.storage.segment.scan import Damage
from quiverlog.storage.segment.segment import Segment
from quiverlog.storage.segment.segment_files import SEGMENT_HEADER_BYTES

__all__ = [
    "Answer",
    "Cursor",
    "Undiagnosed",
    "all_headers",
    "batch_with",
    "first_at_or_after",
    "first_header",
    "first_header_spans",
    "is_sound",
    "measure",
    "measure_spans",
    "read",
    "read_newest",
    "skip_older",
    "spans",
    "time_spans",
    "views_of",
]


_COPY_BYTES_MAX: Final = 64 * 1024
_WALK_BYTES: Final = 8 * 1024
_ROWS_SHIFT: Final = 32
_BYTES_MASK: Final = 2**32 - 1


class Answer(NamedTuple):
    """`views`: the batches, the last one in a view of its own; or none, and `last_header` is that
    batch's header, for a caller that reads the file itself. `is_full`: the next batch would have
    exceeded the bound."""

    segment: Segment
    position: int
    byte_count: int
    next_offset: int
    views: list[memoryview]
    last_header: bytes = b""
    is_full: bool = False


def views_of(answers: Iterable[Answer]) -> list[memoryview]:
    return [view for answer in answers for view in answer.views]


class _Batch(NamedTuple):
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
    """Read like `LogReader.read_answers`, within one segment.

    `before_headers` is called with (position, size) before each look at headers; with it the answer
    has no views.
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
    # Batches passed on the way count, too: a wrong size leads into a column's bytes.
    good_end = segment.verified_end(position)
    if good_end < last.end:
        if good_end - start not in range(1, bytes_max):
            raise Unverified(position, last.end, expected, last.next_offset)
        # No more is sent than is known to be good.
        good_bytes = good_end - start
        last, _ = _last(segment, source, first, good_bytes, end_offset, walks_far=not in_file)
        is_full = False
        if last.end > good_end:
            raise Unverified(position, last.end, expected, last.next_offset)
    assert start <= last.start < last.end <= size
    assert offset < last.next_offset <= segment.end_offset
    answer = segment, start, last.end - start, last.next_offset
    if in_file:
        header = bytes(source.read(last.start, BATCH_HEADER_BYTES))
        assert len(header) == BATCH_HEADER_BYTES, "the walk has passed it"
        return Answer(*answer, [], header, is_full)
    window = _bytes_of(segment, source, Damage(start, last.end, first_row, last.next_offset))
    at = last.start - start
    views = [window[:at], window[at:]] if at else [window]
    return Answer(*answer, views, is_full=is_full)


def _window_bytes(bytes_max: int) -> int:
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
    """Return the last batch of an answer that begins with `first`, and whether the next one is
    there and exceeds the bound.

    Only a batch that was walked over can be the last one: an index entry counts when a batch there
    joins up. `walks_far`: if the index is wrong, walk over all batches; otherwise send only
    `first`: the headers may not be in memory.
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
            break  # Good batches before it are sent; the next read reports it.
        position, expected = last.end, last.next_offset
    assert first.end <= last.end
    assert last is first or last.end <= limit, "one batch may be too large, the first"
    return last, is_full


def read_newest(segment: Segment, offset: int, bytes_max: int) -> Answer | None:
    """Return the batches from `offset` to the end, if the newest append holds them all."""
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
    index = segment.load()
    if not len(index):
        bad = Damage(SEGMENT_HEADER_BYTES, segment.file.size, offset, segment.end_offset)
        raise Undiagnosed(segment.corrupt(bad))
    if 0 <= segment.tail[1] <= offset and not segment.damages:
        return segment.tail
    entry = index.entry_at_offset(offset - segment.base_offset)
    position = index.positions[entry]
    expected = segment.base_offset + index.relative_offsets[entry]
    if expected > offset:  # A rebuilt index leaves out damage at the segment's beginning.
        position, expected = SEGMENT_HEADER_BYTES, segment.base_offset
    for damage in segment.damages:  # An entry inside of damage may be wrong, too.
        if damage.end_offset <= offset and damage.end_position > position:
            position, expected = damage.end_position, damage.end_offset
    assert expected <= offset, "a walk goes forward only"
    return position, expected


def _end_before_damage(segment: Segment, offset: int, end_offset: int) -> int:
    for damage in segment.damages:
        if damage.offset <= offset < damage.end_offset:
            raise segment.corrupt(damage)
        if offset < damage.offset < end_offset:
            return damage.offset
    return end_offset


def _jump(
    segment: Segment, position: int, expected: int, end_position: int, end_offset: int
) -> tuple[int, int]:
    """Return where the walk to the answer's end may begin: a later index entry, or right here.

    One entry before the last that surely fits, as the walk must pass the last batch's header. Not
    over damage: entries there may be wrong.
    """
    assert expected < end_offset, "there is more to send"
    assert position < end_position
    damage_at = min((d.position for d in segment.damages if d.position >= position), default=2**32)
    index = segment.load()
    entry = -1 + min(
        index.entry_at_position(end_position),
        index.entry_at_offset(end_offset - 1 - segment.base_offset),
    )
    if entry > 0 and position < index.positions[entry] < damage_at:
        return index.positions[entry], segment.base_offset + index.relative_offsets[entry]
    return position, expected


def _pass(segment: Segment, source: ByteSource, position: int, expected: int) -> _Batch:
    view = source.read(position, BATCH_HEADER_BYTES)
    room = source.size - position
    step = link(view, 0, expected, room) if len(view) == BATCH_HEADER_BYTES else 0
    end, next_offset = position + (step & _BYTES_MASK), expected + (step >> _ROWS_SHIFT)
    if not step or next_offset > segment.end_offset:
        bad = Damage(position, source.size, expected, segment.end_offset)
        raise Undiagnosed(segment.corrupt(bad))
    return _Batch(position, end, next_offset)


def _bytes_of(segment: Segment, source: FileBytes, wanted: Damage) -> memoryview:
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
    index = segment.load()
    if not len(index):
        return
    size = segment.file.size
    tail_at, tail_offset = segment.tail
    if 0 <= tail_offset <= offset:
        # Its first batch is sent in any case, however large.
        yield tail_at, min(size - tail_at, max(bytes_max, BATCH_BYTES_MAX))
        return
    _end_before_damage(segment, offset, end_offset)
    position, _ = _floor(segment, offset)
    near = index.entry_at_position(position) + 1
    first_end = index.positions[near] if near < len(index) else size
    after = index.entry_at_offset(max(0, end_offset - 1 - segment.base_offset)) + 1
    end = index.positions[after] if after < len(index) else size
    end = min(max(first_end, end), first_end + bytes_max) + _window_bytes(bytes_max)
    yield position, min(size, end) - position


_WINDOW_BYTES: Final = 16 * 1024
_NO_LIMIT: Final = 2**63
Cursor = tuple[int, int]


def _header_span(segment: Segment, offset: int) -> tuple[int, int]:
    index = segment.load()
    if not len(index):
        return SEGMENT_HEADER_BYTES, 0
    return _entry_span(segment, index.entry_at_offset(max(0, offset - segment.base_offset)))


def _entry_span(segment: Segment, entry: int, last: int | None = None) -> tuple[int, int]:
    index, size = segment.load(), segment.file.size
    position = index.positions[entry]
    assert 0 <= entry < len(index)
    assert last is None or entry <= last
    after = (entry if last is None else last) + 1
    end = index.positions[after] if after < len(index) else size
    return position, min(size, end + _WINDOW_BYTES) - position


def _headers(segment: Segment, offset: int) -> Iterator[tuple[int, BatchHeader]]:
    if segment.empty or offset >= segment.end_offset:
        return iter(())
    entry = segment.load().entry_at_offset(max(0, offset - segment.base_offset))
    return _headers_from(segment, entry, offset)


def all_headers(segment: Segment, offset: int) -> Iterator[tuple[int, BatchHeader]]:
    """Yield like `_headers`, for callers that may wait for the disk: damage is diagnosed on the
    way.

    The next header confirms a header, so each is yielded when the walk has passed it.
    """
    if segment.empty or offset >= segment.end_offset:
        return
    entry = segment.load().entry_at_offset(max(0, offset - segment.base_offset))
    walk = _headers_from(segment, entry, offset, may_wait=True)
    passed: tuple[int, BatchHeader] | None = None
    bad: CorruptLog | None = None
    while True:
        try:
            following = next(walk, None)
        except CorruptLog as error:
            following, bad = None, error
        if passed is not None and not _claims_too_much(segment, *passed):
            yield passed
        if following is None:
            break
        assert passed is None or passed[0] < following[0], "a walk goes on"
        passed = following
    if bad is not None:
        raise bad


def _claims_too_much(segment: Segment, position: int, header: BatchHeader) -> bool:
    if header.next_offset > segment.end_offset:
        return True
    return any(one.position <= position < one.end_position for one in segment.damages)


def _headers_from(
    segment: Segment, entry: int, offset: int, *, may_wait: bool = False
) -> Iterator[tuple[int, BatchHeader]]:
    if not len(segment.load()):
        return iter(())
    return _headers_at(segment, _entry_cursor(segment, entry), offset, may_wait=may_wait)


def _entry_cursor(segment: Segment, entry: int) -> Cursor:
    index = segment.load()
    return index.positions[entry], segment.base_offset + index.relative_offsets[entry]


def _headers_at(
    segment: Segment,
    cursor: Cursor,
    offset: int,
    *,
    may_wait: bool = False,
    limit: int = _NO_LIMIT,
) -> Iterator[tuple[int, BatchHeader]]:
    position, expected = cursor
    for damage in segment.damages:
        if damage.position < position < damage.end_position:
            # The entry is inside of damage: good batches begin after it, the requested one maybe
            # before.
            position, expected = damage.position, damage.offset
    size = segment.file.size
    source = FileBytes(segment.file, size, window_bytes=_WINDOW_BYTES)
    known = {damage.position: damage for damage in segment.damages}
    while position < size:
        # Each once: missing rows take no bytes, also between two batches.
        damage_here = known.pop(position, None)
        if damage_here is not None:
            position, expected = damage_here.end_position, damage_here.end_offset
            continue
        if position >= limit:
            raise LongWalk(position, expected)
        view = source.read(position, BATCH_HEADER_BYTES)
        whole = len(view) == BATCH_HEADER_BYTES and link(view, 0, expected, size - position)
        if whole:
            header = BatchHeader.unpack(view)
            if header.next_offset > offset:
                yield position, header
            position += header.total_bytes
            expected = header.next_offset
            continue
        bad = segment.corrupt(Damage(position, size, expected, segment.end_offset))
        if not may_wait:
            raise Undiagnosed(bad)
        if not segment.diagnose():
            raise bad
        known = {damage.position: damage for damage in segment.damages}
        if position not in known:
            # The batch just passed may be the wrong one, in its rows or its size.
            inside = [d for d in segment.damages if d.position < position <= d.end_position]
            if not inside:
                raise bad
            position, expected = inside[0].end_position, inside[0].end_offset


def first_header(segment: Segment, offset: int) -> BatchHeader | None:
    found = next(_headers(segment, offset), None)
    return None if found is None else found[1]


def batch_with(segment: Segment, offset: int) -> tuple[int, BatchHeader] | None:
    found = next(_headers(segment, offset), None)
    assert found is None or found[1].next_offset > offset
    return None if found is None or found[1].base_offset > offset else found


def is_sound(segment: Segment, position: int, header: BatchHeader) -> bool:
    """Compare the checksum; may wait for the disk."""
    end = position + header.total_bytes
    assert SEGMENT_HEADER_BYTES <= position < end <= segment.file.size
    return checksum(FileBytes(segment.file, end), position + CRC_START, end) == header.crc32c


def first_header_spans(segment: Segment, offset: int) -> Iterator[tuple[int, int]]:
    yield _header_span(segment, offset)


def time_spans(
    segment: Segment, at_us: int, offset: int, cursor: Cursor | None = None
) -> Iterator[tuple[int, int]]:
    """Yield (position, size) of what `first_at_or_after` reads, nearly always."""
    index = segment.load()
    if segment.newest_us < at_us or not len(index):
        return
    if cursor is not None:
        position, size = cursor[0], segment.file.size
        yield position, min(size - position, _WINDOW_BYTES)
        return
    by_offset = index.entry_at_offset(max(0, offset - segment.base_offset))
    yield _entry_span(segment, max(index.entry_at_time(at_us), by_offset))


def first_at_or_after(
    segment: Segment,
    at_us: int,
    offset: int,
    cursor: Cursor | None = None,
    *,
    bounded: bool = False,
) -> BatchHeader | None:
    """Return the first batch with rows at or after `offset` whose time is `at_us` or later.

    `bounded`: read nothing but `time_spans`, and raise LongWalk if it is not among those.

    Raises Undiagnosed.
    """
    index = segment.load()
    if segment.newest_us < at_us or segment.empty or not len(index):
        return None
    if cursor is None:
        by_offset = index.entry_at_offset(max(0, offset - segment.base_offset))
        entry = max(index.entry_at_time(at_us), by_offset)
        cursor = _entry_cursor(segment, entry)
        end = sum(_entry_span(segment, entry))
        limit = end if end == segment.file.size else end - _WINDOW_BYTES
    else:
        limit = cursor[0] + 1
    walk = _headers_at(segment, cursor, offset, limit=limit if bounded else _NO_LIMIT)
    return next((header for _, header in walk if header.timestamp_max_us >= at_us), None)


def skip_older(
    file: File, size: int, cursor: Cursor, at_us: int, damages: Sequence[Damage]
) -> Cursor:
    position, expected = cursor
    assert SEGMENT_HEADER_BYTES <= position <= size <= file.size
    known = {damage.position: damage for damage in damages}
    source = FileBytes(file, size)
    while position < size:
        damage = known.pop(position, None)
        if damage is not None:
            position, expected = damage.end_position, damage.end_offset
            continue
        view = source.read(position, BATCH_HEADER_BYTES)
        if len(view) < BATCH_HEADER_BYTES or not link(view, 0, expected, size - position):
            break
        header = BatchHeader.unpack(view)
        if header.timestamp_max_us >= at_us:
            break
        position += header.total_bytes
        expected = header.next_offset
    assert cursor[0] <= position <= size
    return position, expected


def measure_spans(
    segment: Segment, start: int, end: int, bytes_left: int
) -> Iterator[tuple[int, int]]:
    index = segment.load()
    if not len(index):
        return
    first = _header_span(segment, start)
    yield first
    if end < segment.end_offset:
        yield _header_span(segment, end - 1)
    if bytes_left >= 0:
        # The bound counts from the first batch.
        at, size = first
        near = index.entry_at_position(at + bytes_left)
        yield _entry_span(segment, near, index.entry_at_position(at + size + bytes_left))


def measure(
    segment: Segment, start: int, end: int, bytes_max: int, total: int
) -> tuple[int, int, bool, int]:
    """Return (bytes, offset they reach, bound met, time of the first batch or -1) of this segment's
    batches that hold [start, end).

    `bytes_max`: bound, including the `total` bytes before; one batch at least. -1: none.
    """
    assert start < end
    assert total >= 0
    first = next(_headers(segment, start), None)
    if first is None:
        return 0, segment.end_offset, False, -1
    position, header = first
    first_us = header.timestamp_max_us
    stop = segment.file.size
    if end < segment.end_offset:
        last_at, last = next(_headers(segment, end - 1), first)
        stop = last_at + last.total_bytes
    if bytes_max < 0 or total + stop - position <= bytes_max:
        return stop - position, segment.end_offset, False, first_us
    limit = position + bytes_max - total
    if limit < position + header.total_bytes:
        if total:
            return 0, header.base_offset, True, first_us
        return header.total_bytes, min(end, header.next_offset), True, first_us
    at, offset = _last_boundary(segment, limit, header.base_offset)
    assert at <= limit, "no more than was asked for"
    return at - position, min(end, offset), True, first_us


def _last_boundary(segment: Segment, position: int, offset: int) -> tuple[int, int]:
    assert position >= SEGMENT_HEADER_BYTES
    index = segment.load()
    entry = index.entry_at_position(position)
    best = (index.positions[entry], segment.base_offset + index.relative_offsets[entry])
    for at, header in _headers_from(segment, entry, 0):
        if at + header.total_bytes > position:
            break
        best = (at + header.total_bytes, header.next_offset)
    assert best[1] >= offset
    return best
