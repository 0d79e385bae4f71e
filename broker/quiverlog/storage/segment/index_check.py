"""Whether an index file belongs to the segment beside it, or was copied from another one.

Compares a few headers at the front, in the middle and at the end, and the times of the batches
between two entries. Only a suspicion: a damaged header looks the same. With another segment's
index, rows would look older to retention than they are.
"""

from __future__ import annotations

from typing import Final

from quiverlog.batch.header import BatchHeader, link
from quiverlog.limits import BATCH_HEADER_BYTES
from quiverlog.storage.disk.disk import File
from quiverlog.storage.segment.index import IndexSummary, SparseIndex

__all__ = ["is_contradicted"]

_WALK_HEADERS_MAX: Final = 64


def is_contradicted(file: File, size: int, summary: IndexSummary, entries: SparseIndex) -> bool:
    """Return whether batches contradict the index. False where the disk does not give the bytes."""
    assert summary.covered_bytes == size <= file.size
    count = len(entries)
    if not count:
        return False
    try:
        return (
            any(
                _header(file, size, summary, entries, n) is None for n in {0, count // 2, count - 1}
            )
            or not _times_agree(file, size, summary, entries, 0)
            or not _times_agree(file, size, summary, entries, count - 1)
        )
    except OSError:
        return False


def _header(
    file: File, size: int, summary: IndexSummary, entries: SparseIndex, entry: int
) -> BatchHeader | None:
    assert 0 <= entry < len(entries)
    at = entries.positions[entry]
    return _read(file, size, at, summary.base_offset + entries.relative_offsets[entry])


def _read(file: File, size: int, at: int, offset: int) -> BatchHeader | None:
    assert offset >= 0
    if at + BATCH_HEADER_BYTES > size:
        return None
    head = file.read_copy(at, BATCH_HEADER_BYTES)
    if len(head) < BATCH_HEADER_BYTES or not link(head, 0, offset, size - at):
        return None
    return BatchHeader.unpack(head)


def _times_agree(
    file: File, size: int, summary: IndexSummary, entries: SparseIndex, entry: int
) -> bool:
    assert 0 <= entry < len(entries)
    is_last = entry + 1 == len(entries)
    end = size if is_last else entries.positions[entry + 1]
    expected_us = summary.newest_us if is_last else entries.times[entry + 1]
    newest_us = entries.times[entry]
    at = entries.positions[entry]
    offset = summary.base_offset + entries.relative_offsets[entry]
    for _ in range(_WALK_HEADERS_MAX):
        header = _read(file, size, at, offset)
        if header is None or header.timestamp_max_us > expected_us:
            return False
        newest_us = max(newest_us, header.timestamp_max_us)
        assert header.total_bytes > 0, "a walk goes on"
        at += header.total_bytes
        offset = header.next_offset
        if at >= end:
            end_offset = summary.end_offset
            if not is_last:
                end_offset = summary.base_offset + entries.relative_offsets[entry + 1]
            return (at, offset, newest_us) == (end, end_offset, expected_us)
    return True
