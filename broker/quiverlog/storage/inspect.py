"""Looking into a segment file from outside a broker: what `quiverlog dump-log` shows.

Owns nothing and changes nothing; works on a file of a running broker too.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from quiverlog.batch.header import BatchHeader
from quiverlog.errors import CorruptLog
from quiverlog.storage.disk import Disk
from quiverlog.storage.index import IndexSummary, SparseIndex
from quiverlog.storage.scan import Damage, Found, checksum_matches, scan
from quiverlog.storage.segment import LOG_SUFFIX, SEGMENT_HEADER_BYTES, Segment

__all__ = ["IndexEntry", "SegmentInfo", "StoredBatch", "inspect_index", "inspect_segment"]


class SegmentInfo(NamedTuple):
    """A segment file's own header. `created_us`: UTC since the epoch."""

    path: str
    base_offset: int
    created_us: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class StoredBatch:
    """What lies at `position`. `header` is None where no header fits: `problem` says why."""

    position: int
    size_bytes: int
    header: BatchHeader | None
    crc_ok: bool
    data: memoryview
    problem: str = ""


class IndexEntry(NamedTuple):
    """One entry of an index file."""

    offset: int
    position: int
    newest_before_us: int


def inspect_segment(
    disk: Disk, path: str, *, verify: bool = True
) -> tuple[SegmentInfo, Iterator[StoredBatch]]:
    """A segment file's header and its batches, damage included.

    Args:
        verify: compute checksums; without, `crc_ok` is always True for a header that fits.

    Raises:
        CorruptLog: not a segment file, or its own header is damaged.
        UnsupportedFormat: a newer quiverlog wrote it.
        OSError: it cannot be read.
    """
    stem = path.rpartition("/")[2].removesuffix(LOG_SUFFIX)
    if not (path.endswith(LOG_SUFFIX) and stem.isdecimal()):
        raise CorruptLog(f"{path} is not named like a segment (20 digits and .log).", file=path)
    file = disk.open(path, create=False)
    segment = Segment(disk, path, file, int(stem))
    segment.check_header()
    info = SegmentInfo(path, segment.base_offset, segment.created_us, file.size)
    view = file.read(0, file.size)
    return info, _batches(view, segment.base_offset, verify)


def _batches(view: memoryview, base_offset: int, verify: bool) -> Iterator[StoredBatch]:
    for entry in scan(view, SEGMENT_HEADER_BYTES, base_offset, verify=verify):
        at = entry.position
        if isinstance(entry, Found):
            end = at + entry.header.total_bytes
            yield StoredBatch(at, end - at, entry.header, True, view[at:end])
        elif isinstance(entry, Damage):
            data = view[at : entry.end_position]
            header = BatchHeader.unpack(data) if len(data) >= SEGMENT_HEADER_BYTES else None
            fits = header is not None and header.total_bytes == len(data)
            ok = fits and header is not None and checksum_matches(data, 0, header)
            problem = f"damaged: rows {entry.offset} to {entry.end_offset}"
            yield StoredBatch(at, len(data), header if fits else None, ok, data, problem)
        else:
            data = view[at:]
            yield StoredBatch(at, len(data), None, False, data, "an append that never finished")


def inspect_index(disk: Disk, path: str) -> tuple[IndexSummary, list[IndexEntry]]:
    """An index file's summary and entries.

    Raises:
        CorruptLog, UnsupportedFormat, OSError
    """
    summary, index = SparseIndex.load(path, disk.read_file(path))
    columns = zip(index.relative_offsets, index.positions, index.times, strict=True)
    entries = [
        IndexEntry(summary.base_offset + relative, position, newest)
        for relative, position, newest in columns
    ]
    return summary, entries
