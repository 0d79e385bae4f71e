"""Jobs that a read must run first, and their results.

Afterwards the caller reads again, with the job among `just_read`: its result is not requested
again, and a read ends after a bounded number of jobs, however short memory is.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import ClassVar, Final, NamedTuple

from quiverlog.limits import INDEX_INTERVAL_BYTES_MAX
from quiverlog.storage.disk.byte_source import is_unreadable
from quiverlog.storage.disk.disk import File
from quiverlog.storage.segment import checks, reading
from quiverlog.storage.segment.checks import LongWalk, Undiagnosed, Unverified, Verdict
from quiverlog.storage.segment.epochs import LeaderEpochs
from quiverlog.storage.segment.index import Boundaries
from quiverlog.storage.segment.reading import Cursor
from quiverlog.storage.segment.scan import Damage
from quiverlog.storage.segment.segment import Segment
from quiverlog.storage.segment.segment_files import LoadedIndex, SegmentFiles

__all__ = [
    "DiagnoseJob",
    "JustRead",
    "LoadIndexJob",
    "NotResident",
    "ReadJob",
    "ReadResult",
    "ReadingJob",
    "SkipOlderJob",
    "VerifyJob",
    "check_for",
    "cursor_of",
    "is_at_hand",
    "is_done_at_once",
    "look_at_headers",
    "skip_for",
    "take_result",
]

_READ_BYTES: Final = 256 * 1024
_HEADERS_BYTES: Final = INDEX_INTERVAL_BYTES_MAX + 8 * 1024
_VERIFIED_AT_ONCE_BYTES: Final = 64 * 1024
"""Up to here, computing checksums takes less than a job for it."""


class NotResident(Exception):
    """Run `job`, pass its result to `complete_read`, ask again with it among `just_read`.

    `offset`, `counted`, `first_us`: where a walk over many segments may continue, the bytes counted
    before, and the time of the walk's first row.
    """

    def __init__(self, job: ReadingJob) -> None:
        super().__init__(job.kind)
        self.job = job
        self.offset = 0
        self.counted = 0
        self.first_us = -1


@dataclass(frozen=True, slots=True, eq=False)
class LoadIndexJob:
    kind: ClassVar[str] = "load index"
    key: str
    segment: Segment
    files: SegmentFiles = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "files", self.segment.files)

    def run(self) -> LoadedIndex:
        return self.files.read_index()


class ReadResult(NamedTuple):
    """`unreadable_from`: the disk does not give the bytes from this position on; -1: none."""

    unreadable_from: int = -1


@dataclass(frozen=True, slots=True, eq=False)
class ReadJob:
    kind: ClassVar[str] = "cold read"
    key: str
    segment: Segment
    file: File
    position: int
    size: int

    def holds(self, position: int, size: int) -> bool:
        return self.position <= position and position + size <= self.position + self.size

    def run(self) -> ReadResult:
        assert self.position >= 0
        end = min(self.position + self.size, self.file.size)
        for at in range(self.position, end, _READ_BYTES):
            size = min(_READ_BYTES, end - at)
            try:
                count = len(self.file.read_copy(at, size))
            except OSError as error:
                if not is_unreadable(error):
                    raise
                return ReadResult(at)
            if count < size:  # The file was cut.
                return ReadResult(at + count)
        return ReadResult()


@dataclass(frozen=True, slots=True, eq=False)
class VerifyJob:
    kind: ClassVar[str] = "verify"
    key: str
    segment: Segment
    file: File
    position: int
    size: int
    offset: int
    epochs: LeaderEpochs

    def run(self) -> Verdict:
        end = self.position + self.size
        return checks.verify(self.file, self.position, end, self.offset, self.epochs)


@dataclass(frozen=True, slots=True, eq=False)
class DiagnoseJob:
    kind: ClassVar[str] = "diagnose"
    key: str
    segment: Segment
    file: File
    base_offset: int
    size: int
    end_offset: int
    boundaries: Boundaries

    def run(self) -> tuple[Damage, ...]:
        return checks.find_damages(
            self.file, self.base_offset, self.size, self.end_offset, self.boundaries
        )


@dataclass(slots=True, eq=False)
class SkipOlderJob:
    """Walk on over batches older than `at_us`.

    `cursor` is moved by `complete_read`, on the loop.
    """

    kind: ClassVar[str] = "look up time"
    key: str
    segment: Segment
    file: File
    size: int
    at_us: int
    cursor: Cursor
    damages: tuple[Damage, ...]

    def is_for(self, segment: Segment, at_us: int) -> bool:
        return self.segment is segment and self.at_us == at_us

    def run(self) -> Cursor:
        return reading.skip_older(self.file, self.size, self.cursor, self.at_us, self.damages)


ReadingJob = LoadIndexJob | ReadJob | VerifyJob | DiagnoseJob | SkipOlderJob
JustRead = Collection[ReadingJob]


def is_at_hand(segment: Segment, position: int, size: int, just_read: JustRead) -> bool:
    return segment.file.resident(position, size) or any(
        isinstance(job, ReadJob) and job.segment is segment and job.holds(position, size)
        for job in just_read
    )


def look_at_headers(
    key: str, cold_ok: bool, just_read: JustRead, segment: Segment, position: int, size: int
) -> None:
    """Prepare to read headers there: a walk learns its next position only from the header
    before."""
    assert size <= _HEADERS_BYTES
    if not cold_ok and not is_at_hand(segment, position, size, just_read):
        raise NotResident(ReadJob(key, segment, segment.file, position, _HEADERS_BYTES))


def is_done_at_once(check: VerifyJob | DiagnoseJob, just_read: JustRead) -> bool:
    if not isinstance(check, VerifyJob) or check.size > _VERIFIED_AT_ONCE_BYTES:
        return False
    return is_at_hand(check.segment, check.position, check.size, just_read)


def cursor_of(just_read: JustRead, segment: Segment, at_us: int) -> Cursor | None:
    found = [j for j in just_read if isinstance(j, SkipOlderJob) and j.is_for(segment, at_us)]
    return found[-1].cursor if found else None


def skip_for(key: str, segment: Segment, at_us: int, walk: LongWalk) -> SkipOlderJob:
    file = segment.file
    assert walk.position < file.size, "a walk ends at the end"
    at, damages = (walk.position, walk.offset), tuple(segment.damages)
    return SkipOlderJob(key, segment, file, file.size, at_us, at, damages)


def take_result(job: ReadingJob, result: object) -> None:
    segment = job.segment
    assert not segment.dropped
    if isinstance(result, ReadResult):
        assert isinstance(job, ReadJob)
        assert result.unreadable_from <= job.position + job.size
        if result.unreadable_from >= 0:
            segment.distrust()  # Verify it before it is served.
    elif isinstance(result, Verdict):
        assert isinstance(job, VerifyJob)
        assert result.good_end <= job.position + job.size
        if result.good_end > job.position:
            segment.verified(job.position, result.good_end)
        segment.note_damages(result.damages)
    elif isinstance(job, SkipOlderJob):
        assert isinstance(result, tuple)
        assert job.cursor[0] <= result[0] <= job.size, "a walk goes on"
        job.cursor = result
    else:
        assert isinstance(job, DiagnoseJob)
        assert isinstance(result, tuple)
        segment.note_damages(result)


def check_for(
    key: str,
    segment: Segment,
    epochs: LeaderEpochs,
    missing: Unverified | Undiagnosed,
    done: JustRead,
) -> VerifyJob | DiagnoseJob:
    """Return the job that finds out what a walk is `missing`.

    Raises CorruptLog: that job is among the `done` ones, and has made no difference.
    """
    assert not segment.dropped
    assert all(job.segment is segment for job in done), "jobs of another segment prove nothing"
    file = segment.file
    if isinstance(missing, Unverified):
        start, end, offset = missing.start, missing.end, missing.offset
        assert end <= file.size
        if not any(isinstance(job, VerifyJob) and job.position == start for job in done):
            return VerifyJob(key, segment, file, start, end - start, offset, epochs.copy())
        # Its first batch is damaged; only a scan of the file shows how far.
        error = segment.corrupt(Damage(start, end, offset, missing.end_offset))
    else:
        error = missing.error
    if any(isinstance(job, DiagnoseJob) for job in done):
        raise error
    bounds = (segment.base_offset, file.size, segment.end_offset)
    return DiagnoseJob(key, segment, file, *bounds, segment.boundaries)
