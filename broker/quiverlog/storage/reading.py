"""Finding batches in a segment and handing them out.

Owns the walk from an index entry to a row, the jump over batches that surely go out, what is served
as a copy and what as a view of the mapped file, and the verification of bytes that this process has
not seen before. A walk that meets anything but the next batch has the whole segment scanned once:
from then on the damaged rows are known, and reads in front of and behind them go on.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from quiverlog.batch.header import BatchHeader, link
from quiverlog.errors import CorruptLog
from quiverlog.limits import BATCH_HEADER_BYTES
from quiverlog.storage.byte_source import ByteSource, FileBytes, is_unreadable
from quiverlog.storage.epochs import LeaderEpochs
from quiverlog.storage.scan import Damage, Found, damaged_stamp, scan
from quiverlog.storage.segment import Segment
from quiverlog.storage.segment_index import SEGMENT_HEADER_BYTES

__all__ = [
    "first_at_or_after",
    "header_span",
    "headers",
    "measure",
    "measure_spans",
    "read",
    "read_newest",
    "span",
    "time_span",
]

_COPY_BYTES_MAX: Final = 64 * 1024
"""Up to here one pread serves the walk and the answer."""
_WALK_BYTES: Final = 8 * 1024
"""A window for walking only: what lies between two index entries, usually."""
_HEADERS_BYTES: Final = 16 * 1024
_ROWS_SHIFT: Final = 32
_BYTES_MASK: Final = 2**32 - 1


def read(
    segment: Segment, offset: int, bytes_max: int, end_offset: int, epochs: LeaderEpochs
) -> list[memoryview]:
    """As `Log.read`, within one segment. `epochs`: stamps, which no checksum covers, must agree."""
    assert segment.base_offset <= offset < segment.end_offset
    segment.load()
    try:
        return _read(segment, offset, bytes_max, end_offset, epochs)
    except CorruptLog:
        # Find out how far the damage reaches: what lies behind it can still be read.
        if any(d.offset <= offset < d.end_offset for d in segment.damages):
            raise
        if not segment.diagnose():
            raise
        return _read(segment, offset, bytes_max, end_offset, epochs)


def read_newest(segment: Segment, offset: int, bytes_max: int) -> list[memoryview]:
    """The batches from `offset` to the segment's end, if the newest append holds them all.

    What nearly every reader at the tail asks for, in one call of the system. Empty where anything
    is less simple than that (bytes not in memory, too many, not verified, another row than
    expected): `read` finds out.
    """
    start, expected = segment.tail
    size = segment.file.size - start
    if not 0 <= expected <= offset < segment.end_offset or segment.damages:
        return []
    if not 0 < size <= min(bytes_max, _COPY_BYTES_MAX) or start < segment.trusted_from:
        return []
    data = segment.file.read_cached(start, size)
    if data is None:
        return []
    at = first = last = 0
    while at < size:
        step = link(data, at, expected, size - at)
        if not step:
            return []
        if expected <= offset:
            first = at
        last = at
        at += step & _BYTES_MASK
        expected += step >> _ROWS_SHIFT
    window = memoryview(data)
    if first == last:
        return [window[first:] if first else window]
    return [window[first:last], window[last:]]


def _read(
    segment: Segment, offset: int, bytes_max: int, end_offset: int, epochs: LeaderEpochs
) -> list[memoryview]:
    """One cursor, (position, expected): the next batch's first byte and first row.

    It goes from the index entry to the batch that holds `offset` (`start`), then to where the
    answer ends; `last` is the last batch that goes out, which gets a view of its own.
    """
    end_offset = _end_before_damage(segment, offset, end_offset)
    position, expected = _floor(segment, offset)
    size = segment.file.size
    near = bytes_max + 2 * BATCH_HEADER_BYTES + 4096
    source = FileBytes(
        segment.file, size, window_bytes=near if near <= _COPY_BYTES_MAX else _WALK_BYTES
    )
    while True:
        step = _step(segment, source, position, expected)
        if expected + (step >> _ROWS_SHIFT) > offset:
            break
        position += step & _BYTES_MASK
        expected += step >> _ROWS_SHIFT
    start = last = position
    position += step & _BYTES_MASK
    expected += step >> _ROWS_SHIFT
    if expected < end_offset and position - start < bytes_max:
        position, expected = _jump(segment, position, expected, start + bytes_max, end_offset)
        while expected < end_offset and position < size:
            try:
                step = _step(segment, source, position, expected)
            except CorruptLog:
                break  # What is good in front of it goes out; the next read tells.
            if position + (step & _BYTES_MASK) - start > bytes_max:
                break
            last = position
            position += step & _BYTES_MASK
            expected += step >> _ROWS_SHIFT
    end = position
    if not segment.is_verified(start, end):
        last, end = _verify(segment, start, last, end, epochs)
    assert start <= last <= end <= size
    window = _bytes_of(segment, source, start, end)
    if last in (start, end):
        return [window]
    return [window[: last - start], window[last - start :]]


def _floor(segment: Segment, offset: int) -> tuple[int, int]:
    """(position, first row) of a batch at or before `offset`, no damage in between."""
    index = segment.load()
    if not len(index):
        bad = Damage(SEGMENT_HEADER_BYTES, segment.file.size, offset, segment.end_offset)
        raise segment.corrupt(bad)
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
    index = segment.load()
    entry = -1 + min(
        index.floor_position(end_position),
        index.floor_offset(end_offset - 1 - segment.base_offset),
    )
    if entry > 0 and index.positions[entry] > position and not segment.damages:
        return index.positions[entry], segment.base_offset + index.relative_offsets[entry]
    return position, expected


def _step(segment: Segment, source: ByteSource, position: int, expected: int) -> int:
    """`batch.header.link` of the batch at `position`. Raises CorruptLog if none is there."""
    view = source.read(position, BATCH_HEADER_BYTES)
    room = source.size - position
    step = link(view, 0, expected, room) if len(view) == BATCH_HEADER_BYTES else 0
    if not step:
        raise segment.corrupt(Damage(position, source.size, expected, segment.end_offset))
    return step


def _verify(
    segment: Segment, start: int, last: int, end: int, epochs: LeaderEpochs
) -> tuple[int, int]:
    """Check the bytes [start, end); (last batch, end) of what is good.

    Raises CorruptLog when the very first batch is damaged.
    """
    source = FileBytes(segment.file, end)
    offset = BatchHeader.unpack(source.read(start, BATCH_HEADER_BYTES)).base_offset
    good_last = good_end = start
    for entry in scan(source, start, offset, verify=True):
        if not isinstance(entry, Found):
            break
        if not epochs.agree(entry.header.leader_epoch, entry.header.base_offset):
            segment.note_damage(damaged_stamp(entry))
            if entry.position == start:
                raise segment.corrupt(damaged_stamp(entry))
            break
        good_last, good_end = entry.position, entry.position + entry.header.total_bytes
    if good_end == start:
        # How far it reaches is for `diagnose`, which sees the whole file.
        raise segment.corrupt(Damage(start, end, offset, segment.end_offset))
    segment.verified(start, good_end)
    return (last, end) if good_end == end else (good_last, good_end)


def _bytes_of(segment: Segment, source: FileBytes, start: int, end: int) -> memoryview:
    if end - start <= _COPY_BYTES_MAX and source.holds(start, end):
        return source.read(start, end - start)
    try:
        return segment.file.read(start, end - start)
    except OSError as error:
        if not is_unreadable(error):
            raise
        segment.distrust()
        raise segment.corrupt(Damage(start, end, segment.base_offset, segment.end_offset)) from None


def span(segment: Segment, offset: int, bytes_max: int, end_offset: int) -> tuple[int, int]:
    """(position, size) of what `read` looks at, a little more rather than less."""
    index = segment.load()
    if not len(index):
        return SEGMENT_HEADER_BYTES, 0
    size = segment.file.size
    tail_at, tail_offset = segment.tail
    if 0 <= tail_offset <= offset:
        return tail_at, min(size - tail_at, max(bytes_max, BATCH_HEADER_BYTES))
    entry = index.floor_offset(offset - segment.base_offset)
    position = index.positions[entry]
    first_end = index.positions[entry + 1] if entry + 1 < len(index) else size
    after = index.floor_offset(max(0, end_offset - 1 - segment.base_offset)) + 1
    end = index.positions[after] if after < len(index) else size
    return position, min(end, max(first_end, position + bytes_max)) - position


# --- headers ----------------------------------------------------------------------------------
def header_span(segment: Segment, offset: int) -> tuple[int, int]:
    """(position, size) of what finding the batch that holds `offset` looks at."""
    index = segment.load()
    if not len(index):
        return SEGMENT_HEADER_BYTES, 0
    return _entry_span(segment, index.floor_offset(max(0, offset - segment.base_offset)))


def _entry_span(segment: Segment, entry: int, last: int | None = None) -> tuple[int, int]:
    """(position, size) of the batches from index entry `entry` to the one behind `last`."""
    index, size = segment.load(), segment.file.size
    position = index.positions[entry]
    after = (entry if last is None else last) + 1
    end = index.positions[after] if after < len(index) else size
    return position, min(size, end + _HEADERS_BYTES) - position


def headers(segment: Segment, offset: int) -> Iterator[tuple[int, BatchHeader]]:
    """(position, header) of the batches from the one that holds `offset` on.

    Batches that are damaged are left out.
    """
    if segment.empty or offset >= segment.end_offset:
        return
    index = segment.load()
    entry = index.floor_offset(max(0, offset - segment.base_offset))
    yield from _headers_from(segment, entry, offset)


def _headers_from(segment: Segment, entry: int, offset: int) -> Iterator[tuple[int, BatchHeader]]:
    index = segment.load()
    if not len(index):
        return
    position = index.positions[entry]
    expected = segment.base_offset + index.relative_offsets[entry]
    for damage in segment.damages:
        if damage.position < position < damage.end_position:
            # The entry lies inside: what is good begins behind, what is asked for maybe before.
            position, expected = damage.position, damage.offset
    size = segment.file.size
    source = FileBytes(segment.file, size, window_bytes=_HEADERS_BYTES)
    known = {damage.position: damage for damage in segment.damages}
    while position < size:
        damage_here = known.get(position)
        if damage_here is not None:
            position, expected = damage_here.end_position, damage_here.end_offset
            continue
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
        if not segment.diagnose():
            raise bad
        known = {damage.position: damage for damage in segment.damages}
        if position not in known:
            # The culprit may be the batch just passed, which lied about its rows, or its size.
            inside = [d for d in segment.damages if d.position < position <= d.end_position]
            if not inside:
                raise bad
            position, expected = inside[0].end_position, inside[0].end_offset


def time_span(segment: Segment, at_us: int, offset: int) -> tuple[int, int]:
    """(position, size) of what `first_at_or_after` looks at, nearly always."""
    index = segment.load()
    if segment.newest_us < at_us or not len(index):
        return SEGMENT_HEADER_BYTES, 0
    by_offset = index.floor_offset(max(0, offset - segment.base_offset))
    return _entry_span(segment, max(index.floor_time(at_us), by_offset))


def first_at_or_after(segment: Segment, at_us: int, offset: int) -> BatchHeader | None:
    """The first batch with rows at or after `offset` whose time is `at_us` or later."""
    index = segment.load()
    if segment.newest_us < at_us or segment.empty:
        return None
    by_offset = index.floor_offset(max(0, offset - segment.base_offset))
    for _, header in _headers_from(segment, max(index.floor_time(at_us), by_offset), offset):
        if header.timestamp_max_us >= at_us:
            return header
    return None


def measure_spans(
    segment: Segment, start: int, end: int, bytes_left: int
) -> Iterator[tuple[int, int]]:
    """(position, size) of each place that `measure` looks at; `bytes_left` < 0: any number."""
    index = segment.load()
    if not len(index):
        return
    first = header_span(segment, start)
    yield first
    if end < segment.end_offset:
        yield header_span(segment, end - 1)
    if bytes_left >= 0:
        # Where the bound is met: as far behind the first batch, wherever that begins.
        at, size = first
        near = index.floor_position(at + bytes_left)
        yield _entry_span(segment, near, index.floor_position(at + size + bytes_left))


def measure(
    segment: Segment, start: int, end: int, bytes_max: int, total: int
) -> tuple[int, int, bool]:
    """(bytes, offset they reach, bound met) of the batches that hold [start, end) in here.

    Args:
        bytes_max: with the `total` bytes before them, at most so many; one batch at least. -1: any.
    """
    first = next(headers(segment, start), None)
    if first is None:
        return 0, segment.end_offset, False
    position, header = first
    stop = segment.file.size
    if end < segment.end_offset:
        last_at, last = next(headers(segment, end - 1), first)
        stop = last_at + last.total_bytes
    if bytes_max < 0 or total + stop - position <= bytes_max:
        return stop - position, segment.end_offset, False
    limit = position + bytes_max - total
    if limit < position + header.total_bytes:
        if total:
            return 0, header.base_offset, True
        return header.total_bytes, min(end, header.next_offset), True
    at, offset = last_boundary(segment, limit, header.base_offset)
    return at - position, min(end, offset), True


def last_boundary(segment: Segment, position: int, offset: int) -> tuple[int, int]:
    """(position, offset) of the last batch end at or before `position`.

    Never before `offset`, where a batch ends that lies before `position`.
    """
    assert position >= SEGMENT_HEADER_BYTES
    index = segment.load()
    entry = index.floor_position(position)
    best = (index.positions[entry], segment.base_offset + index.relative_offsets[entry])
    for at, header in _headers_from(segment, entry, 0):
        if at + header.total_bytes > position:
            break
        best = (at + header.total_bytes, header.next_offset)
    assert best[1] >= offset
    return best
