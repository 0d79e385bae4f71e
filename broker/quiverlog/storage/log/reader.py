"""The read side of a log: rows, headers, times and sizes by offset.

Unless `cold_ok`, a read that would wait for the disk, or for checksums of many bytes, raises
NotResident with the job to run first.

Invariants: log_start_offset <= log_end_offset; a read begins between them, in a batch that may
begin below the start.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Final, TypeVar

from quiverlog.batch.header import BatchHeader
from quiverlog.errors import CorruptLog, OffsetOutOfRange, QuiverlogError
from quiverlog.storage.log.recovery import RecoveryReport
from quiverlog.storage.segment import reading
from quiverlog.storage.segment.checks import LongWalk, Undiagnosed, Unverified
from quiverlog.storage.segment.epochs import LeaderEpochs
from quiverlog.storage.segment.index import NO_TIME
from quiverlog.storage.segment.reading_jobs import (
    JustRead,
    LoadIndexJob,
    NotResident,
    ReadingJob,
    ReadJob,
    check_for,
    cursor_of,
    is_at_hand,
    is_done_at_once,
    look_at_headers,
    skip_for,
    take_result,
)
from quiverlog.storage.segment.segment import Segment
from quiverlog.storage.segment.segment_files import LoadedIndex
from quiverlog.storage.segment.segments import IndexCache, Segments

__all__ = ["LogReader"]

_CHECKS_MAX: Final = 6
"""Checks of one read in one segment: rows are verified, the damage behind them diagnosed, the rows
behind that verified; each verification twice where stamps are wrong."""
_Answer = TypeVar("_Answer")


class LogReader:
    """`indexes` bounds the memory of indexes, together with other logs."""

    __slots__ = (
        "_oldest_us",
        "directory",
        "epochs",
        "files",
        "indexes",
        "log_end_offset",
        "log_start_offset",
        "recovery",
    )

    def __init__(self, directory: str, indexes: IndexCache | None) -> None:
        self.directory = directory
        self.files = Segments()
        self.indexes = IndexCache() if indexes is None else indexes
        self._oldest_us: int | None = None
        self.log_start_offset = 0
        self.log_end_offset = 0
        self.epochs = LeaderEpochs(lambda: self.log_end_offset)
        self.recovery = RecoveryReport()

    @property
    def segments(self) -> list[Segment]:
        return self.files.items

    @property
    def segment_count(self) -> int:
        return len(self.files)

    @property
    def size_bytes(self) -> int:
        return self.files.byte_count

    # --- what the log changes ------------------------------------------------------------------
    def opened(
        self, segments: Iterable[Segment], start_offset: int, end_offset: int, found: RecoveryReport
    ) -> None:
        assert not self.files, "a log is opened once"
        assert start_offset <= end_offset
        for segment in segments:
            self.files.add(segment)
        self.log_start_offset, self.log_end_offset = start_offset, end_offset
        self.recovery = found

    def start_at(self, offset: int) -> None:
        assert self.log_start_offset <= offset <= self.log_end_offset
        self.log_start_offset = offset
        self._oldest_us = None

    def cut_at(self, offset: int) -> None:
        assert self.log_start_offset <= offset <= self.log_end_offset
        self.log_end_offset = offset
        self._oldest_us = None
        self.epochs.truncate_to(offset)

    # --- reading -------------------------------------------------------------------------------
    def headers(self, offset: int) -> Iterator[BatchHeader]:
        return self.files.headers(offset, self.recovery.damages)

    def read(
        self,
        offset: int,
        *,
        bytes_max: int,
        end_offset: int,
        cold_ok: bool = True,
        just_read: JustRead = (),
    ) -> list[memoryview]:
        answers = self.read_answers(
            offset, bytes_max=bytes_max, end_offset=end_offset, cold_ok=cold_ok, just_read=just_read
        )
        return reading.views_of(answers)

    def read_answers(
        self,
        offset: int,
        *,
        bytes_max: int,
        end_offset: int,
        cold_ok: bool = True,
        just_read: JustRead = (),
        in_files: bool = False,
    ) -> list[reading.Answer]:
        """Return whole batches from the one that holds `offset` on, none that begins at
        `end_offset` or later.

        At least one batch, more while they fit `bytes_max`; an answer per segment. Empty at the
        end.

        Unless `cold_ok`, raises NotResident instead of waiting for the disk for anything that no
        job in `just_read` has read. `in_files`: answers have no views, but perhaps the newest
        append's, and their rows need not be in memory.

        Raises OffsetOutOfRange; CorruptLog, with `offset` (first bad row) and `end_offset`.
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
            segments = self.files.items
            # Nearly every reader at the end wants the newest append: it needs no index.
            if segments and (newest := reading.read_newest(segments[-1], offset, bytes_max)):
                return [newest]
        if offset >= end_offset:
            return []
        ask = partial(self._ask, cold_ok=cold_ok, just_read=just_read)
        look = partial(look_at_headers, self.directory, cold_ok, just_read) if in_files else None
        return self._walk(offset, bytes_max, end_offset, ask, look)

    def _walk(
        self,
        offset: int,
        bytes_max: int,
        end_offset: int,
        ask: Callable[..., reading.Answer],
        look: Callable[..., None] | None,
    ) -> list[reading.Answer]:
        assert offset < end_offset <= self.log_end_offset
        bounds = (self.directory, self.log_start_offset, self.log_end_offset)
        number = self.files.number_of(offset)
        answers: list[reading.Answer] = []
        while number < len(self.segments) and offset < end_offset:
            segment = self.segments[number] if number >= 0 else None
            if segment is None or not segment.base_offset <= offset < segment.end_offset:
                if answers:
                    break
                raise self.files.missing(number, *bounds)
            try:
                asked = (segment, offset, bytes_max, end_offset)
                read = partial(reading.read, *asked)
                if look is None:
                    more = ask(segment, read, partial(reading.spans, *asked))
                else:
                    more = ask(segment, partial(read, before_headers=partial(look, segment)))
            # What was read already is sent; the next read meets the rest.
            except (NotResident, CorruptLog):
                if answers:
                    break
                raise
            # Each segment gives one batch at least; behind other answers the bound holds for it,
            # too.
            if answers and more.byte_count > bytes_max:
                break
            answers.append(more)
            bytes_max -= more.byte_count
            if more.is_full or bytes_max <= 0:
                break
            assert offset < more.next_offset <= segment.end_offset
            offset = more.next_offset
            number += offset >= segment.end_offset  # A short answer may end within the segment.
        if not answers:
            raise self.files.missing(len(self.segments) - 1, *bounds)
        return answers

    def _load(self, segment: Segment, cold_ok: bool) -> None:
        if segment.index is None:
            if not cold_ok:
                raise NotResident(LoadIndexJob(self.directory, segment))
            segment.load()
        self.indexes.finished(segment)

    def _ask(
        self,
        segment: Segment,
        question: Callable[[], _Answer],
        spans: Callable[[], Iterable[tuple[int, int]]] = tuple,
        *,
        cold_ok: bool,
        just_read: JustRead,
    ) -> _Answer:
        """Return the answer of one segment after the checks of its index and bytes."""
        self._load(segment, cold_ok)
        done = [job for job in just_read if job.segment is segment]
        checks_max = len(done) + _CHECKS_MAX
        while True:
            try:
                if not cold_ok:
                    for position, size in spans():
                        if not is_at_hand(segment, position, size, done):
                            job = ReadJob(self.directory, segment, segment.file, position, size)
                            raise NotResident(job)
                return question()
            except (Unverified, Undiagnosed) as missing:
                check = check_for(self.directory, segment, self.epochs, missing, done)
            if not (cold_ok or is_done_at_once(check, done)):
                raise NotResident(check)
            self.complete_read(check, check.run())
            done.append(check)
            assert len(done) < checks_max, "a check is asked for once"

    def begin_load(self, offset: int | None = None) -> LoadIndexJob | None:
        if not self.segments or (offset is None and self.segments[-1].finished):
            return None
        segment = self.segments[-1] if offset is None else self.files.holding(offset)[0]
        return LoadIndexJob(self.directory, segment) if segment.index is None else None

    def complete_load(self, job: LoadIndexJob, result: LoadedIndex) -> None:
        if not job.segment.dropped:
            job.segment.take_index(result)
            self.indexes.finished(job.segment)  # The request may be gone.
            if result.header_damage and result.header_damage not in self.recovery.damages:
                self.recovery.damages.append(result.header_damage)
            if result.note and result.note not in self.recovery.notes:
                self.recovery.notes.append(result.note)

    def complete_read(self, job: ReadingJob, result: object) -> None:
        segment = job.segment
        if segment.dropped:
            segment.file.close()  # The job may have opened it again: that would keep its room.
        elif isinstance(result, LoadedIndex):
            assert isinstance(job, LoadIndexJob)
            self.complete_load(job, result)
        else:
            take_result(job, result)

    def offset_for_timestamp(
        self,
        at_us: int,
        *,
        from_offset: int = 0,
        cold_ok: bool = True,
        just_read: JustRead = (),
    ) -> tuple[int, int] | None:
        """Return (offset, time) of the first row whose time is `at_us` or later, if any. A row's
        time is the newest of its batch.

        `from_offset`: `NotResident.offset` of the last try. Otherwise as `read_answers`. Raises
        CorruptLog: damage lies in the way.
        """
        start = max(self.log_start_offset, from_offset)
        for segment in self.files.holding(start):
            if segment.is_older(at_us):
                continue  # The indexes of all of them may be more than memory holds.
            asked = (segment, at_us, start, cursor_of(just_read, segment, at_us))
            find = partial(reading.first_at_or_after, *asked, bounded=not cold_ok)
            spans = partial(reading.time_spans, *asked)
            try:
                header = self._ask(segment, find, spans, cold_ok=cold_ok, just_read=just_read)
            except LongWalk as walk:
                cold = NotResident(skip_for(self.directory, segment, at_us, walk))
                cold.offset = max(start, segment.base_offset)
                raise cold from None
            except NotResident as cold:
                cold.offset = max(start, segment.base_offset)
                raise
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
        first_us: int = -1,
        cold_ok: bool = True,
        just_read: JustRead = (),
    ) -> tuple[int, int, int]:
        """Return (end offset, bytes, time of the first row or -1) of the batches that hold the rows
        [start, end).

        `bytes_max`: stop at the batch end that it reaches, after one batch at least. `counted`,
        `first_us`: of what is before `start`, from `NotResident`. Otherwise as `read_answers`.
        """
        if not self.log_start_offset <= start <= end <= self.log_end_offset:
            raise OffsetOutOfRange(
                f"{start} to {end} is not in {self.log_start_offset} to {self.log_end_offset}."
            )
        total = counted
        for segment in self.files.holding(start):
            if start >= end:
                break
            if start >= segment.end_offset:
                continue
            try:
                stop, offset, done, time_us = self._ask(
                    segment,
                    partial(reading.measure, segment, start, end, bytes_max, total),
                    partial(reading.measure_spans, segment, start, end, bytes_max - total),
                    cold_ok=cold_ok,
                    just_read=just_read,
                )
            except NotResident as cold:
                cold.offset, cold.counted, cold.first_us = start, total, first_us
                raise
            assert done or start < offset, "a walk goes on"
            total += stop
            first_us = time_us if first_us < 0 else first_us
            if done:
                return offset, total, first_us
            start = offset
        return end, total, first_us

    def arrived_us(self, offset: int, end_offset: int) -> int:
        """Return when late rows of the segments that hold [offset, end_offset) arrived; 0: none is
        late.

        Their headers must be loaded, as after a read of their rows.
        """
        assert offset <= end_offset
        latest_us = 0
        for segment in self.files.holding(offset):
            if segment.base_offset >= end_offset:
                break
            if segment.arrived_from < end_offset:
                latest_us = max(latest_us, segment.arrived_us)
        return latest_us

    def load_newest_time(self) -> None:
        """Make `newest_us` known, in a job. What cannot be read stays unknown."""
        newest = self._newest_segment()
        if newest is not None and newest.index is None:
            with contextlib.suppress(OSError, QuiverlogError):
                newest.load()
                if newest.index_note and newest.index_note not in self.recovery.notes:
                    self.recovery.notes.append(newest.index_note)
                newest.release_index()  # A finished segment that no reader has used yet.

    def newest_us(self) -> int | None:
        newest = self._newest_segment()
        return None if newest is None or newest.newest_us == NO_TIME else newest.newest_us

    def _newest_segment(self) -> Segment | None:
        """Return the last one with rows: an append that failed leaves an empty one behind it."""
        return next((s for s in reversed(self.segments) if not s.empty), None)

    def oldest_us(self, *, cold_ok: bool = True, just_read: JustRead = ()) -> int | None:
        if self._oldest_us is None:
            start = self.log_start_offset
            for segment in self.files.holding(start):
                find = partial(reading.first_header, segment, start)
                spans = partial(reading.first_header_spans, segment, start)
                try:
                    header = self._ask(segment, find, spans, cold_ok=cold_ok, just_read=just_read)
                except CorruptLog as error:
                    if error.message not in self.recovery.damages:  # Asked for every round.
                        self.recovery.damages.append(error.message)
                    continue
                if header is not None:
                    self._oldest_us = header.timestamp_max_us
                    break
        return self._oldest_us
