"""What a partition knows of its producers, read again from its files.

Owns the order: the newest good snapshot that is not ahead of the log, then the headers behind it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

from quiverlog.batch.header import BatchHeader
from quiverlog.errors import CorruptLog, QuiverlogError, UnsupportedFormat
from quiverlog.storage import checkpoint, header_walk
from quiverlog.storage.checkpoint import Producers
from quiverlog.storage.disk import Disk
from quiverlog.storage.segment import Segment
from quiverlog.storage.segments import Segments

__all__ = ["restore_producers"]


def restore_producers(
    disk: Disk,
    directory: str,
    producers: Producers,
    snapshots: list[int],
    segments: Segments,
    log_start_offset: int,
    log_end_offset: int,
    damages: list[str],
    given_up: Sequence[Segment] = (),
) -> None:
    """The newest snapshot that is whole and not ahead of the log; then the headers after it.

    Also those below the log start: a batch that was given up may be sent again. Snapshots that are
    no good are removed, from the disk and from `snapshots`. One at an offset inside of a batch does
    not tell of this batch: it is that of a copy whose rows begin there (docs/adr/0050).
    """
    assert 0 <= log_start_offset <= log_end_offset
    assert snapshots == sorted(snapshots, reverse=True), "the newest is tried first"
    start = 0
    for offset in list(snapshots):
        if offset <= log_end_offset and _restore_one(disk, directory, producers, offset):
            start = offset
            break
        snapshots.remove(offset)
        checkpoint.drop_snapshot(disk, directory, offset)
        # One that is ahead must not come back once other rows have taken its offsets.
        disk.sync_dir(directory)
    else:
        producers.restore(b"")
    assert all(offset <= log_end_offset for offset in snapshots), "no other one is on the disk"
    assert 0 <= start <= log_end_offset
    seen = start
    for header in _headers_given_up(segments, given_up, start, log_start_offset):
        if header.next_offset > seen:
            producers.replay(header)
            seen = header.next_offset
    first = max(seen, log_start_offset)
    for header in segments.headers(first, damages):
        if header.next_offset > seen:
            assert header.next_offset <= log_end_offset, "rows that the log does not have"
            producers.replay(header)
    # Also what the walk has found itself and stepped over: less is known now than there was.
    met = [(one, place) for one in segments.holding(first) for place in one.damages]
    for segment, place in met:
        message = segment.corrupt(place).message
        holds_rows = place.end_offset > max(place.offset, first)
        if holds_rows and message not in damages:
            damages.append(message)


def _headers_given_up(
    segments: Segments, given_up: Sequence[Segment], start: int, log_start_offset: int
) -> Iterator[BatchHeader]:
    """Headers of batches below the log start, as far as they can be read.

    Damage is nobody's loss there, so it is not reported.
    """
    for segment in given_up:
        with contextlib.suppress(CorruptLog, UnsupportedFormat):
            for _, header in header_walk.all_headers(segment, start):
                yield header
    ignored: list[str] = []
    if start < log_start_offset:
        for header in segments.headers(start, ignored):
            if header.base_offset >= log_start_offset:
                return
            yield header


def _restore_one(disk: Disk, directory: str, producers: Producers, offset: int) -> bool:
    blob = checkpoint.load_snapshot(disk, directory, offset)
    if blob is None:
        return False
    try:
        producers.restore(blob)
    except QuiverlogError:
        producers.restore(b"")
        return False
    return True
