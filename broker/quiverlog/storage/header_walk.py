"""Walking the headers of a segment's batches: by offset, by time, by bytes.

Owns the walk from an index entry on, stepping over damage that is known, and the questions that
headers answer. A walk that meets anything but the next batch raises `Undiagnosed` (checks.py), or
has the segment scanned where it may wait for the disk.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from quiverlog.batch.header import CRC_START, BatchHeader, link
from quiverlog.errors import CorruptLog
from quiverlog.limits import BATCH_HEADER_BYTES
from quiverlog.storage.byte_source import FileBytes, checksum
from quiverlog.storage.checks import LongWalk, Undiagnosed
from quiverlog.storage.disk import File
from quiverlog.storage.scan import Damage
from quiverlog.storage.segment import Segment
from quiverlog.storage.segment_index import SEGMENT_HEADER_BYTES

__all__ = [
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
    "skip_older",
    "time_spans",
]

_WINDOW_BYTES: Final = 16 * 1024
_NO_LIMIT: Final = 2**63
Cursor = tuple[int, int]
"""A batch's first byte and first row."""


def _header_span(segment: Segment, offset: int) -> tuple[int, int]:
    """(position, size) of what finding the batch that holds `offset` looks at."""
    index = segment.load()
    if not len(index):
        return SEGMENT_HEADER_BYTES, 0
    return _entry_span(segment, index.floor_offset(max(0, offset - segment.base_offset)))


def _entry_span(segment: Segment, entry: int, last: int | None = None) -> tuple[int, int]:
    """(position, size) of the batches from index entry `entry` to the one behind `last`."""
    index, size = segment.load(), segment.file.size
    position = index.positions[entry]
    assert 0 <= entry < len(index)
    assert last is None or entry <= last
    after = (entry if last is None else last) + 1
    end = index.positions[after] if after < len(index) else size
    return position, min(size, end + _WINDOW_BYTES) - position


def _headers(segment: Segment, offset: int) -> Iterator[tuple[int, BatchHeader]]:
    """(position, header) of the batches from the one that holds `offset` on.

    Batches that are damaged are left out. Raises Undiagnosed.
    """
    if segment.empty or offset >= segment.end_offset:
        return iter(())
    entry = segment.load().floor_offset(max(0, offset - segment.base_offset))
    return _headers_from(segment, entry, offset)


def all_headers(segment: Segment, offset: int) -> Iterator[tuple[int, BatchHeader]]:
    """As `_headers`, for whoever may wait for the disk: damage is diagnosed where it is met.

    A header is vouched for by the next one, so each is given out when the walk has passed it.

    Raises CorruptLog where a diagnosis finds nothing.
    """
    if segment.empty or offset >= segment.end_offset:
        return
    entry = segment.load().floor_offset(max(0, offset - segment.base_offset))
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
    """True for a header that is plausible, and says other rows than its batch has."""
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
            # The entry lies inside: what is good begins behind, what is asked for maybe before.
            position, expected = damage.position, damage.offset
    size = segment.file.size
    source = FileBytes(segment.file, size, window_bytes=_WINDOW_BYTES)
    known = {damage.position: damage for damage in segment.damages}
    while position < size:
        # Each is stepped over once: missing rows take no bytes, also between two batches.
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
            # The culprit may be the batch just passed, which lied about its rows, or its size.
            inside = [d for d in segment.damages if d.position < position <= d.end_position]
            if not inside:
                raise bad
            position, expected = inside[0].end_position, inside[0].end_offset


def first_header(segment: Segment, offset: int) -> BatchHeader | None:
    """The header of the batch that holds `offset`, or of the next good one. Raises Undiagnosed."""
    found = next(_headers(segment, offset), None)
    return None if found is None else found[1]


def batch_with(segment: Segment, offset: int) -> tuple[int, BatchHeader] | None:
    """(position, header) of the batch that holds `offset`, if one does. Raises Undiagnosed."""
    found = next(_headers(segment, offset), None)
    assert found is None or found[1].next_offset > offset
    return None if found is None or found[1].base_offset > offset else found


def is_sound(segment: Segment, position: int, header: BatchHeader) -> bool:
    """True when the batch matches its checksum. For whoever may wait for the disk."""
    end = position + header.total_bytes
    assert SEGMENT_HEADER_BYTES <= position < end <= segment.file.size
    return checksum(FileBytes(segment.file, end), position + CRC_START, end) == header.crc32c


def first_header_spans(segment: Segment, offset: int) -> Iterator[tuple[int, int]]:
    """(position, size) of what `first_header` looks at, nearly always."""
    yield _header_span(segment, offset)


def time_spans(
    segment: Segment, at_us: int, offset: int, cursor: Cursor | None = None
) -> Iterator[tuple[int, int]]:
    """(position, size) of what `first_at_or_after` looks at, nearly always."""
    index = segment.load()
    if segment.newest_us < at_us or not len(index):
        return
    if cursor is not None:
        position, size = cursor[0], segment.file.size
        yield position, min(size - position, _WINDOW_BYTES)
        return
    by_offset = index.floor_offset(max(0, offset - segment.base_offset))
    yield _entry_span(segment, max(index.floor_time(at_us), by_offset))


def first_at_or_after(
    segment: Segment,
    at_us: int,
    offset: int,
    cursor: Cursor | None = None,
    *,
    bounded: bool = False,
) -> BatchHeader | None:
    """The first batch with rows at or after `offset` whose time is `at_us` or later.

    Nearly always it is one of a few: the index tells where older ones end. Not where a younger one
    lies in front of `offset`: then there may be a segment of older ones in between.

    Args:
        cursor: where an earlier try goes on (`skip_older`).
        bounded: look at nothing but `time_spans`.

    Raises:
        Undiagnosed: as every walk.
        LongWalk: it is not among those; only when `bounded`.
    """
    index = segment.load()
    if segment.newest_us < at_us or segment.empty or not len(index):
        return None
    if cursor is None:
        by_offset = index.floor_offset(max(0, offset - segment.base_offset))
        entry = max(index.floor_time(at_us), by_offset)
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
    """Go on to the first batch whose time is `at_us` or later, to anything else, or to the end."""
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
    """(position, size) of each place that `measure` looks at; `bytes_left` < 0: any number."""
    index = segment.load()
    if not len(index):
        return
    first = _header_span(segment, start)
    yield first
    if end < segment.end_offset:
        yield _header_span(segment, end - 1)
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
    assert start < end
    assert total >= 0
    first = next(_headers(segment, start), None)
    if first is None:
        return 0, segment.end_offset, False
    position, header = first
    stop = segment.file.size
    if end < segment.end_offset:
        last_at, last = next(_headers(segment, end - 1), first)
        stop = last_at + last.total_bytes
    if bytes_max < 0 or total + stop - position <= bytes_max:
        return stop - position, segment.end_offset, False
    limit = position + bytes_max - total
    if limit < position + header.total_bytes:
        if total:
            return 0, header.base_offset, True
        return header.total_bytes, min(end, header.next_offset), True
    at, offset = _last_boundary(segment, limit, header.base_offset)
    assert at <= limit, "no more than was asked for"
    return at - position, min(end, offset), True


def _last_boundary(segment: Segment, position: int, offset: int) -> tuple[int, int]:
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
