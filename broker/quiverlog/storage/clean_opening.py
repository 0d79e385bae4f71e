"""The short way through an opening: the files are exactly as a clean stop leaves them.

Owns the recognition of that picture, and nothing else: every file that opening.py would read is
read and checked here, too, and at the first thing that is otherwise in any way (a name, a length, a
checksum, two files that differ) the answer is None, and opening.py begins from the front. Nothing
is written, moved or removed here. So what a log knows after the short way is what it would know
after the long one; a test compares the two over everything that damage does to a directory
(unit/test_storage_clean_opening.py).

The picture: the log's own files and no others; segments in a row, the oldest with rows from the log
start on; each but the first with an index and at least one batch header's worth of bytes; the
newest ends where the recovery point says. `recovery-point` and its copy are equal, and their bounds
are the log's; `log-start` says the same, or is not there and the log starts at 0; the epochs are
good, and none is newer than the cluster's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from quiverlog.errors import QuiverlogError
from quiverlog.limits import BATCH_ALIGNMENT_BYTES, BATCH_HEADER_BYTES
from quiverlog.storage import checkpoint
from quiverlog.storage.boundaries import Boundary
from quiverlog.storage.checkpoint import (
    LOG_START_FILES,
    RECOVERY_COPY_FILE,
    RECOVERY_FILE,
    Bounds,
    StoredPoint,
)
from quiverlog.storage.contradictions import agree_with_rows
from quiverlog.storage.disk import Disk
from quiverlog.storage.epochs import EPOCHS_FILE, LeaderEpochs
from quiverlog.storage.log_files import own_offset
from quiverlog.storage.marks import Marks
from quiverlog.storage.opened_files import OpenedFiles
from quiverlog.storage.partition_files import PARTITION_FILE
from quiverlog.storage.segment import Segment, segment_path
from quiverlog.storage.segment_index import SEGMENT_HEADER_BYTES

__all__ = ["open_as_left"]

_NAMED: Final = frozenset(
    (PARTITION_FILE, EPOCHS_FILE, RECOVERY_FILE, RECOVERY_COPY_FILE, *LOG_START_FILES)
)
_REQUIRED: Final = (EPOCHS_FILE, RECOVERY_FILE, RECOVERY_COPY_FILE)
_SEGMENT_BYTES_MIN: Final = SEGMENT_HEADER_BYTES + BATCH_HEADER_BYTES


def open_as_left(
    disk: Disk,
    directory: str,
    entries: Mapping[str, bool],
    epochs: LeaderEpochs,
    *,
    epoch_newest: int,
    known: Bounds | None,
) -> OpenedFiles | None:
    """See the module docstring. Never raises. Fills `epochs`, unless the answer is None.

    Args:
        entries: what is in the directory, in order: names, and which of them are files.
        known: the bounds that were written down elsewhere.
    """
    try:
        return _open(disk, directory, entries, epochs, epoch_newest, known)
    except (OSError, QuiverlogError):
        return None


def _open(
    disk: Disk,
    directory: str,
    entries: Mapping[str, bool],
    epochs: LeaderEpochs,
    epoch_newest: int,
    known: Bounds | None,
) -> OpenedFiles | None:
    bases: list[int] = []
    indexed: set[int] = set()
    snapshots: list[int] = []
    for name, is_file in entries.items():
        if not is_file:
            return None
        if name in _NAMED:
            continue
        if (offset := own_offset(name, "log")) is not None:
            bases.append(offset)
        elif (offset := own_offset(name, "index")) is not None:
            indexed.add(offset)
        elif (offset := own_offset(name, "snapshot")) is not None:
            snapshots.append(offset)
        else:
            return None
    if not bases or any(name not in entries for name in _REQUIRED):
        return None
    stored = checkpoint.load_recovery_point(disk, directory, _REQUIRED[1:])
    point, (start, end) = stored.point, stored.bounds
    if not stored.agree or point.offset != end:
        return None
    if known is not None and (known.start_offset > start or known.end_offset > end):
        return None
    starts = _starts_of(entries)
    told = checkpoint.load_log_starts(disk, directory, starts)
    if len(told) < len(starts) or any(one != start for one in told or [0]):
        return None
    segments = _segments(disk, directory, bases, indexed, start, stored)
    if segments is None:
        return None
    path = f"{directory}/{EPOCHS_FILE}"
    epochs.load(path, disk.read_file(path))
    if epochs.newest > epoch_newest or not agree_with_rows(epochs, segments, start, end):
        epochs.truncate_to(0)  # The list is read again, or the rows are.
        return None
    epochs.trim(start)
    snapshots.reverse()
    assert end == segments[-1].end_offset, "the picture is whole"
    assert snapshots == sorted(snapshots, reverse=True)
    return OpenedFiles(
        segments,
        Marks(disk, directory, stored),
        log_start_offset=start,
        log_end_offset=end,
        start_saved=start,
        writable=True,
        point=point,
        snapshots=snapshots,
    )


def _starts_of(entries: Mapping[str, bool]) -> Sequence[str]:
    return [name for name in LOG_START_FILES if name in entries]


def _segments(
    disk: Disk,
    directory: str,
    bases: Sequence[int],
    indexed: set[int],
    start: int,
    stored: StoredPoint,
) -> list[Segment] | None:
    """The segments of these bases, in order; None unless they are as the point says."""
    point = stored.point
    if bases[-1] != point.base_offset or not bases[0] <= start:
        return None
    if point.offset <= point.base_offset or (bases[1:] or [point.offset])[0] <= start:
        return None  # Nothing follows, or files wait for their removal.
    segments: list[Segment] = []
    for base_offset in bases:
        path = segment_path(directory, base_offset)
        segment = Segment(disk, path, disk.open(path, create=False), base_offset)
        if segment.file.size < _SEGMENT_BYTES_MIN or base_offset not in indexed:
            return None
        if segments:
            segments[-1].end_offset = base_offset
            segments[-1].finished = True
        segments.append(segment)
    last = segments[-1]
    if last.file.size != point.position or point.position % BATCH_ALIGNMENT_BYTES:
        return None
    last.end_offset = point.offset
    last.recovered_from = Boundary(point.position, point.offset)
    return segments
