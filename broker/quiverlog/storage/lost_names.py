"""A log whose first file has lost its name, while files behind it are there.

Owns the decision whether a power failure did that before any flush had succeeded. Then nothing was
promised, and the log ends in front of these files, as at any hole above what was flushed
(adr/0017): an idempotent producer whose lost batches are followed by later ones could never send
them again. Where anything says that rows were flushed, or may have said so, the files stay and the
rows without a file are missing.
"""

from __future__ import annotations

from collections.abc import Sequence

from quiverlog.errors import CorruptLog
from quiverlog.storage.byte_source import FileBytes
from quiverlog.storage.log_files import own_offset
from quiverlog.storage.segment import Segment
from quiverlog.storage.segment_index import LOG_SUFFIX, SEGMENT_HEADER_BYTES, read_header

__all__ = ["lost_unflushed"]


def lost_unflushed(
    segments: Sequence[Segment],
    start_offset: int,
    known_offset: int,
    names: Sequence[str],
    moved: Sequence[str],
) -> bool:
    """True when the log should end at its start, in front of all its files.

    Indexes and snapshots count, because they are written when a flush has succeeded, and so does
    what had the name of a segment and was no file: somebody has put it there.

    Args:
        known_offset: what the log's small files and the last stop know.
        names: what is in the directory.
        moved: names of what was moved aside, because it was no file.

    Raises:
        UnsupportedFormat: a newer version wrote one of the segments.
    """
    assert start_offset >= 0
    assert known_offset >= 0
    if not segments or segments[0].base_offset <= start_offset:
        return False
    if known_offset > start_offset or any(name.endswith(LOG_SUFFIX) for name in moved):
        return False
    for name in names:
        index, snapshot = own_offset(name, "index"), own_offset(name, "snapshot")
        if index is not None and index >= start_offset:
            return False
        if snapshot is not None and snapshot > start_offset:
            return False
    return not any(_knows_more(segment, start_offset) for segment in segments)


def _knows_more(segment: Segment, offset: int) -> bool:
    """A damaged header may know of rows above `offset`; zeros or half of it never arrived."""
    file = segment.file
    if file.size < SEGMENT_HEADER_BYTES:
        return False
    try:
        header = read_header(file, segment.base_offset)
    except CorruptLog:
        source = FileBytes(file, SEGMENT_HEADER_BYTES)
        return any(source.read(0, source.size)) or not source.holds(0, source.size)
    return max(header.mark.offset, header.start_offset) > offset
