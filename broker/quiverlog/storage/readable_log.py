"""The read side of a log: rows, headers, times and sizes by offset.

Owns the walk over segments, the answer about rows whose file is lost, and the question whether a
read would wait for the disk: then it raises NotResident with the job to run first. What a reader
gets of one segment is in reading.py.

Invariants: log_start_offset <= log_end_offset; only rows between them are served.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator

from quiverlog.batch.header import BatchHeader
from quiverlog.errors import CorruptLog, OffsetOutOfRange, QuiverlogError
from quiverlog.storage import reading
from quiverlog.storage.disk import short_name
from quiverlog.storage.epochs import LeaderEpochs
from quiverlog.storage.index import NO_TIME
from quiverlog.storage.index_cache import IndexCache
from quiverlog.storage.jobs import LoadIndexJob, NotResident, ReadJob, ReadResult
from quiverlog.storage.log_config import LogConfig
from quiverlog.storage.recovery import RecoveryReport
from quiverlog.storage.segment import Segment
from quiverlog.storage.segment_index import LoadedIndex
from quiverlog.storage.segments import Segments

__all__ = ["ReadableLog"]


class ReadableLog:
    """See the module docstring."""

    __slots__ = (
        "_indexes",
        "_oldest_us",
        "_segments",
        "config",
        "directory",
        "epochs",
        "log_end_offset",
        "log_start_offset",
        "recovery",
    )

    def __init__(self, directory: str, config: LogConfig, indexes: IndexCache | None) -> None:
        self.directory = directory
        self.config = config
        self._segments = Segments()
        self._indexes = IndexCache() if indexes is None else indexes
        self._oldest_us: int | None = None
        self.log_start_offset = 0
        self.log_end_offset = 0
        self.epochs = LeaderEpochs(lambda: self.log_end_offset)
        self.recovery = RecoveryReport()

    @property
    def segments(self) -> list[Segment]:
        """Oldest first; for reading."""
        return self._segments.items

    @property
    def segment_count(self) -> int:
        """Files that hold rows."""
        return len(self._segments)

    @property
    def size_bytes(self) -> int:
        """Bytes of these files."""
        return self._segments.byte_count

    def headers(self, offset: int) -> Iterator[BatchHeader]:
        """Headers of the batches from the one that holds `offset` on; damaged ones left out."""
        return self._segments.headers(offset, self.recovery.damages)

    def read(
        self,
        offset: int,
        *,
        bytes_max: int,
        end_offset: int,
        cold_ok: bool = True,
        just_read: Collection[ReadJob] = (),
    ) -> list[memoryview]:
        """Whole batches from the one that holds `offset` on, none that begins at `end_offset`.

        At least one batch, more while they fit `bytes_max`. Views hold whole batches in order; the
        last view holds exactly one. Empty when `offset` is the end.

        Args:
            cold_ok: the disk may be waited for.
            just_read: jobs that are back. Their ranges are taken even if they have left memory
                again: a machine with little of it gets an answer, too.

        Raises:
            OffsetOutOfRange: not between log start and log end.
            CorruptLog: the batch at `offset` is damaged or missing. `offset` in its details is the
                first bad row, `end_offset` the next good one.
            NotResident: only when not `cold_ok`.
        """
        if not self.log_start_offset <= offset <= self.log_end_offset:
            raise OffsetOutOfRange(
                f"offset {offset} is not in {self.log_start_offset} to {self.log_end_offset}.",
                log_start_offset=self.log_start_offset,
                high_watermark=self.log_end_offset,
            )
        if end_offset >= self.log_end_offset:
            end_offset = self.log_end_offset
            if offset == end_offset:
                return []
            segments = self._segments.items
            if segments and (newest := reading.read_newest(segments[-1], offset, bytes_max)):
                return newest
        if offset >= end_offset:
            return []
        number = self._segments.number_of(offset)
        views: list[memoryview] = []
        while number < len(self.segments) and offset < end_offset:
            if number < 0 or offset >= self.segments[number].end_offset:
                if views:
                    break
                raise self._missing(number)
            segment = self.segments[number]
            try:
                self._load(segment, cold_ok)
                if not cold_ok:
                    span = reading.span(segment, offset, bytes_max, end_offset)
                    self._check_resident(segment, span, just_read)
                more = reading.read(segment, offset, bytes_max, end_offset, self.epochs)
            except (NotResident, CorruptLog):
                if views:
                    break
                raise
            byte_count = sum(map(len, more))
            if views and byte_count > bytes_max:
                break
            views += more
            bytes_max -= byte_count
            if bytes_max <= 0:
                break
            offset = BatchHeader.unpack(views[-1]).next_offset
            number += offset >= segment.end_offset
        if not views:
            raise self._missing(len(self.segments) - 1)
        return views

    def _load(self, segment: Segment, cold_ok: bool) -> None:
        """Have the segment's index in memory. Raises NotResident when that would wait."""
        if segment.index is None:
            if not cold_ok:
                raise NotResident(LoadIndexJob(self.directory, segment))
            segment.load()
        if segment.finished and not segment.cached:
            self._indexes.finished(segment)

    def _check_resident(
        self, segment: Segment, span: tuple[int, int], just_read: Collection[ReadJob]
    ) -> None:
        """Raises NotResident when reading `span`, (position, size), would wait."""
        position, size = span
        if not segment.file.resident(position, size) and not any(
            job.segment is segment and job.holds(position, size) for job in just_read
        ):
            raise NotResident(ReadJob(self.directory, segment, segment.file, position, size))

    def begin_load(self, offset: int | None = None) -> LoadIndexJob | None:
        """The load that an append (or a read at `offset`) would wait for; None: none."""
        if not self.segments or (offset is None and self.segments[-1].finished):
            return None
        segment = self.segments[-1] if offset is None else self._segments.holding(offset)[0]
        return LoadIndexJob(self.directory, segment) if segment.index is None else None

    def complete_load(self, job: LoadIndexJob, result: LoadedIndex) -> None:
        """An index was loaded."""
        if not job.segment.dropped:
            job.segment.take_index(result)
            if result.header_damage and result.header_damage not in self.recovery.damages:
                self.recovery.damages.append(result.header_damage)

    def complete_read(self, job: ReadJob, result: ReadResult) -> None:
        """A cold range was read. What the disk refused is verified before it is served."""
        if result.unreadable_from >= 0:
            job.segment.distrust()

    def _missing(self, number: int) -> CorruptLog:
        """The error for rows between segment `number` and the next one: their file is lost."""
        first, end = self.log_start_offset, self.log_end_offset
        if number >= 0:
            first = max(first, self.segments[number].end_offset)
        if number + 1 < len(self.segments):
            end = self.segments[number + 1].base_offset
        name = short_name(self.directory)
        return CorruptLog(
            f"{name}: rows {first} to {end} are missing.", file=name, offset=first, end_offset=end
        )

    def offset_for_timestamp(
        self,
        at_us: int,
        *,
        from_offset: int = 0,
        cold_ok: bool = True,
        just_read: Collection[ReadJob] = (),
    ) -> tuple[int, int] | None:
        """(offset, time) of the first row whose time is `at_us` or later, None when there is none.

        Args:
            from_offset: rows before it are not looked at; `NotResident.offset` of the last try.
            cold_ok, just_read: as `read`.

        Raises:
            CorruptLog: damage lies in the way.
            NotResident: only when not `cold_ok`.
        """
        start = max(self.log_start_offset, from_offset)
        for segment in self._segments.holding(start):
            try:
                self._load(segment, cold_ok)
                if not cold_ok:
                    span = reading.time_span(segment, at_us, start)
                    self._check_resident(segment, span, just_read)
            except NotResident as cold:
                cold.offset = max(start, segment.base_offset)
                raise
            header = reading.first_at_or_after(segment, at_us, start)
            if header is not None:
                return max(header.base_offset, start), header.timestamp_max_us
        return None

    def bytes_between(
        self,
        start: int,
        end: int,
        bytes_max: int = -1,
        *,
        counted: int = 0,
        cold_ok: bool = True,
        just_read: Collection[ReadJob] = (),
    ) -> tuple[int, int]:
        """(end offset, bytes) of the whole batches that hold the rows [start, end).

        Args:
            bytes_max: stop at the batch end that so many bytes reach, after one batch at least.
            counted: bytes of the rows before `start`, which an earlier try has counted:
                `NotResident.counted`, up to `NotResident.offset`.
            cold_ok, just_read: as `read`.

        Raises:
            OffsetOutOfRange, CorruptLog, NotResident: as `read`.
        """
        if not self.log_start_offset <= start <= end <= self.log_end_offset:
            raise OffsetOutOfRange(
                f"{start} to {end} is not in {self.log_start_offset} to {self.log_end_offset}."
            )
        total = counted
        for segment in self._segments.holding(start):
            if start >= end:
                break
            if start >= segment.end_offset:
                continue
            try:
                self._load(segment, cold_ok)
                if not cold_ok:
                    for span in reading.measure_spans(segment, start, end, bytes_max - total):
                        self._check_resident(segment, span, just_read)
            except NotResident as cold:
                cold.offset, cold.counted = start, total
                raise
            stop, offset, done = reading.measure(segment, start, end, bytes_max, total)
            total += stop
            if done:
                return offset, total
            start = offset
        return end, total

    def load_newest_time(self) -> None:
        """Make `newest_us` known, in a job. What cannot be read stays unknown."""
        newest = self._newest_segment()
        if newest is not None and newest.index is None:
            with contextlib.suppress(OSError, QuiverlogError):
                newest.load()
                newest.release_index()  # A finished one: nobody has asked for its rows yet.

    def newest_us(self) -> int | None:
        """Newest time of the last rows; None when there are none, or when it is not known."""
        newest = self._newest_segment()
        return None if newest is None or newest.newest_us == NO_TIME else newest.newest_us

    def _newest_segment(self) -> Segment | None:
        """The last one with rows: an append that failed leaves an empty one behind it."""
        return next((s for s in reversed(self.segments) if not s.empty), None)

    def oldest_us(self, *, cold_ok: bool = True, just_read: Collection[ReadJob] = ()) -> int | None:
        """Time of the first row kept; None when the log is empty. Arguments and errors: `read`."""
        if self._oldest_us is None:
            if self.segments:
                first = self._segments.holding(self.log_start_offset)[0]
                self._load(first, cold_ok)
                if not cold_ok:
                    span = reading.header_span(first, self.log_start_offset)
                    self._check_resident(first, span, just_read)
            header = next(self.headers(self.log_start_offset), None)
            self._oldest_us = None if header is None else header.timestamp_max_us
        return self._oldest_us
