"""Files that have a segment's name and hold nothing of its rows, while their neighbour has them.

Owns the rule that content decides, not a name: where the file in front holds a whole batch of the
rows that such a file would begin with, it is none of the log's, and is moved aside. A file that
was emptied is no stray: the one in front ends where its rows began, so that they are missing.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from quiverlog.batch.header import link
from quiverlog.errors import CorruptLog, UnsupportedFormat
from quiverlog.limits import BATCH_HEADER_BYTES
from quiverlog.storage.byte_source import FileBytes
from quiverlog.storage.disk import Disk, short_name
from quiverlog.storage.log_files import rename_aside
from quiverlog.storage.scan import Found, scan
from quiverlog.storage.segment import Segment
from quiverlog.storage.segment_index import SEGMENT_HEADER_BYTES, read_header

__all__ = ["set_aside_strays"]


def set_aside_strays(
    disk: Disk, directory: str, segments: list[Segment], names: Sequence[str]
) -> list[str]:
    """Take strays out of `segments`, which are in order, and move them aside; notes on them.

    Args:
        names: what is in the directory.

    Raises:
        StorageFault: one cannot be moved.
    """
    kept: list[Segment] = []
    notes: list[str] = []
    for segment in segments:
        name = short_name(segment.path)
        own = segment.path.rpartition("/")[2]
        indexed = segment.index_path.rpartition("/")[2] in names
        if not kept or not _is_void(segment, indexed) or not _reaches(kept[-1], segment):
            kept.append(segment)
            continue
        new = rename_aside(disk, directory, own, names)
        segment.dropped = True
        segment.file.close()
        owner = short_name(kept[-1].path)
        notes.append(f"{name} holds no batch, its rows are in {owner}: moved to {new}.")
    assert len(kept) + len(notes) == len(segments), "each is kept or told"
    assert kept[:1] == segments[:1], "the first one has no neighbour in front of it"
    if notes:
        for segment, following in pairwise(kept):
            segment.end_offset = following.base_offset
        kept[-1].end_offset = kept[-1].base_offset
        kept[-1].finished = False
        segments[:] = kept
    return notes


def _is_void(segment: Segment, indexed: bool) -> bool:
    """True when no batch of its rows begins the file.

    Args:
        indexed: it has an index file, so that it had rows when it was finished.
    """
    file = segment.file
    if file.size < SEGMENT_HEADER_BYTES + BATCH_HEADER_BYTES:
        return True
    if indexed:
        return False
    try:
        read_header(file, segment.base_offset)
    except UnsupportedFormat:
        return False
    except CorruptLog:
        pass
    head = FileBytes(file, file.size, window_bytes=BATCH_HEADER_BYTES)
    view = head.read(SEGMENT_HEADER_BYTES, BATCH_HEADER_BYTES)
    return not link(view, 0, segment.base_offset, file.size - SEGMENT_HEADER_BYTES)


def _reaches(segment: Segment, following: Segment) -> bool:
    """True when a good batch of `segment` holds rows that `following` would begin with."""
    file, offset = segment.file, following.base_offset
    if file.size <= SEGMENT_HEADER_BYTES or segment.files.ends_by_index(offset):
        return False
    source = FileBytes(file, file.size)
    for entry in scan(source, SEGMENT_HEADER_BYTES, segment.base_offset, verify=False):
        if not isinstance(entry, Found) or entry.header.next_offset <= offset:
            continue
        batch = scan(source, entry.position, entry.header.base_offset, verify=True)
        return isinstance(next(batch, None), Found)
    return False
