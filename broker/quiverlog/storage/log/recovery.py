"""What a log does with its segments after an unclean stop: all from the recovery point on is
scanned with checksums; below it the first read finds damage.

What is *known* to be flushed, by the recovery point or a segment's mark, was on the disk: what does
not fit there is damage, reported and stepped over, and rows without a file are missing. Above, the
log is cut at the first hole; a batch that is complete and wrong is damage there too.
"""

from __future__ import annotations

import contextlib
import enum
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from quiverlog.errors import CorruptLog
from quiverlog.storage.disk.byte_source import FileBytes
from quiverlog.storage.log.checkpoint import RecoveryPoint
from quiverlog.storage.segment.damage import EPOCHS_ALL, SECTOR_BYTES, EpochBounds
from quiverlog.storage.segment.epochs import LeaderEpochs
from quiverlog.storage.segment.index import Boundaries
from quiverlog.storage.segment.scan import Damage, Found, Torn, damaged_stamp, scan
from quiverlog.storage.segment.segment import Segment
from quiverlog.storage.segment.segment_files import SEGMENT_HEADER_BYTES

__all__ = ["RecoveryReport", "assign_epochs", "recover_segments"]


@dataclass(slots=True)
class RecoveryReport:
    clean: bool = True
    bytes_scanned: int = 0
    bytes_truncated: int = 0
    damages: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def recover_segments(
    segments: list[Segment],
    point: RecoveryPoint,
    epochs: LeaderEpochs,
    now_us: int,
    epoch_newest: int = EPOCHS_ALL.newest,
    flushed_offset: int = 0,
) -> tuple[list[Segment], RecoveryReport]:
    """Cut `segments`, marking those after the cut `dropped`. Rows below `flushed_offset` are on the
    disk by other files."""
    report = RecoveryReport(clean=False)
    touched: list[Segment] = []
    stamps: list[tuple[Segment, Found]] = []
    known_offset = max(
        [flushed_offset, point.offset, *(s.mark.offset for s in _with_marks(segments, point))]
    )
    for number, segment in enumerate(segments):
        # Flushed as a whole before the recovery point: damage there is found by the first read.
        if segment.base_offset < point.base_offset:
            continue
        following = segments[number + 1 :]
        known = _known_of(segment, following, point, known_offset)
        recovery = _Recovery(segment, point, known, stamps, now_us, epoch_newest, report)
        scanned = recovery.run()
        assert segment.end_offset >= segment.base_offset
        if scanned is not _Scanned.NOTHING:
            touched.append(segment)
        if not following:
            break
        if segment.end_offset < min(known_offset, following[0].base_offset):
            _note_gap(segment, following[0].base_offset, report)
        if scanned is _Scanned.CUT or segment.end_offset < following[0].base_offset:
            # The end of this one never reached the disk: no flush that covers later ones has
            # succeeded, or its mark or its recovery point would be known.
            for later in following:
                later.dropped = True
                report.bytes_truncated += later.file.size
            del segments[number + 1 :]
            segment.finished = scanned is _Scanned.SHORT
            break
    found = [(entry.header.leader_epoch, entry.header.base_offset) for _, entry in stamps]
    # Only now: a stamp is judged by those of all other batches.
    assign_epochs(epochs, found, epoch_newest)
    assert not any(segment.dropped for segment in segments)
    for segment, entry in stamps:
        if not epochs.agree(entry.header.leader_epoch, entry.header.base_offset):
            _note(segment, damaged_stamp(entry), report)
    return touched, report


def _note_gap(segment: Segment, end_offset: int, report: RecoveryReport) -> None:
    assert segment.end_offset < end_offset, "a gap has rows"
    size = segment.file.size
    _note(segment, Damage(size, size, segment.end_offset, end_offset), report)
    segment.end_offset = end_offset
    segment.finished = True


def _note(segment: Segment, damage: Damage, report: RecoveryReport) -> None:
    segment.note_damage(damage)
    report.damages.append(segment.corrupt(damage).message)


class _Known(NamedTuple):
    """A bound below which all rows are on the disk: `offset`.

    Those of this segment that end at byte `position` are the rows below `position_offset`, which is
    less than `offset` if only a later segment's mark has it.
    """

    offset: int
    position: int
    position_offset: int


def _with_marks(segments: Sequence[Segment], point: RecoveryPoint) -> list[Segment]:
    found: list[Segment] = []
    for segment in segments:
        if segment.base_offset >= point.base_offset:
            with contextlib.suppress(CorruptLog):
                segment.check_header()
                found.append(segment)
    return found


def _known_of(
    segment: Segment, following: Sequence[Segment], point: RecoveryPoint, known_offset: int
) -> _Known:
    assert all(later.base_offset > segment.base_offset for later in following[:1])
    size, mark = segment.file.size, segment.mark
    if following and following[0].base_offset <= known_offset:
        # Flushed as a whole. Where a file between the two is gone, its rows count as this one's.
        end = following[0].base_offset
        return _Known(end, max(size, SEGMENT_HEADER_BYTES), end)
    best = _Known(known_offset, SEGMENT_HEADER_BYTES, segment.base_offset)
    if point.base_offset == segment.base_offset and point.position > SEGMENT_HEADER_BYTES:
        best = _Known(known_offset, point.position, point.offset)
    if mark.position > best.position and mark.offset >= best.position_offset:
        best = _Known(known_offset, mark.position, mark.offset)
    assert best.position >= SEGMENT_HEADER_BYTES
    assert best.position_offset >= segment.base_offset
    return best


def assign_epochs(epochs: LeaderEpochs, stamps: list[tuple[int, int]], newest: int) -> None:
    """Take in the epochs of batches: (epoch, base offset) in the order of the log.

    Epochs lie outside the checksum and never fall along a log: the largest set in which none falls
    counts.
    """
    # A flipped bit may make an epoch that no leader ever had.
    possible = [stamp for stamp in stamps if epochs.newest <= stamp[0] <= newest]
    for epoch, base_offset in _never_falling(possible):
        epochs.assign(epoch, base_offset)
    assert not possible or epochs.newest <= newest, "no leader would be accepted any more"


def _never_falling(stamps: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the longest subsequence of epochs in which none falls (patience sorting)."""
    tails: list[int] = []  # Of the subsequences of each length, the one with the smallest last.
    numbers: list[int] = []
    before: list[int] = []
    for number, (epoch, _) in enumerate(stamps):
        length = bisect_right(tails, epoch)
        before.append(numbers[length - 1] if length else -1)
        if length == len(tails):
            tails.append(epoch)
            numbers.append(number)
        else:
            tails[length] = epoch
            numbers[length] = number
    chosen: list[tuple[int, int]] = []
    number = numbers[-1] if numbers else -1
    while number >= 0:
        chosen.append(stamps[number])
        number = before[number]
    assert len(chosen) == len(tails)
    chosen.reverse()
    assert all(one[0] <= after[0] for one, after in pairwise(chosen))
    return chosen


class _Scanned(enum.Enum):
    """SHORT: bytes that were on the disk are gone."""

    WHOLE = enum.auto()
    CUT = enum.auto()
    SHORT = enum.auto()
    NOTHING = enum.auto()


class _Recovery:
    def __init__(
        self,
        segment: Segment,
        point: RecoveryPoint,
        known: _Known,
        stamps: list[tuple[Segment, Found]],
        now_us: int,
        epoch_newest: int,
        report: RecoveryReport,
    ) -> None:
        self._segment = segment
        self._known = known
        self._stamps = stamps
        self._now_us = now_us
        self._epochs = EpochBounds(EPOCHS_ALL.oldest, epoch_newest)
        self._report = report
        # The header was on the disk and is damaged now. Its mark would have shown more:
        # a hole behind such damage is taken for damage too, so that no acknowledged row is cut.
        self._mark_lost = False
        # Everything before it is on the disk, and is not looked at.
        self._floor = (SEGMENT_HEADER_BYTES, segment.base_offset)
        if point.base_offset == segment.base_offset and point.position > SEGMENT_HEADER_BYTES:
            self._floor = (point.position, point.offset)

    def run(self) -> _Scanned:
        segment, file = self._segment, self._segment.file
        at, offset = self._floor
        known = self._known
        assert at >= SEGMENT_HEADER_BYTES
        flushed = known.position_offset > segment.base_offset
        if file.size < max(at, known.position) and flushed:
            self._keep_what_is_left(known.position_offset)
            return _Scanned.SHORT
        if file.size < SEGMENT_HEADER_BYTES:
            self._begin_anew()
            return _Scanned.CUT
        try:
            segment.check_header()
        except CorruptLog as error:
            if not flushed and (file.size == SEGMENT_HEADER_BYTES or self._never_arrived()):
                self._report.bytes_truncated += file.size
                self._begin_anew()
                return _Scanned.CUT
            segment.created_us = 0
            self._report.damages.append(error.message)
            self._mark_lost = flushed
        if at > SEGMENT_HEADER_BYTES and file.size == at == known.position:
            segment.end_offset = offset
            return _Scanned.NOTHING
        self._report.bytes_scanned += file.size - at
        segment.trust_from(at)
        if flushed:
            self._scan_known(at, offset)
            at, offset = known.position, known.position_offset
        return self._scan_unknown(at, offset)

    def _scan_known(self, at: int, offset: int) -> None:
        end, end_offset = self._known.position, self._known.position_offset
        assert end <= self._segment.file.size, "a shorter file is another case"
        source = FileBytes(self._segment.file, end)
        for entry in scan(
            source, at, offset, verify=True, epochs=self._epochs, boundaries=self._boundaries
        ):
            if isinstance(entry, Found):
                offset = entry.header.next_offset
                self._stamps.append((self._segment, entry))
                continue
            # A flush has covered it, so it was whole once: not torn, but damaged.
            if isinstance(entry, Torn) or entry.end_position == end:
                entry = Damage(entry.position, end, offset, end_offset)
            # A batch in front of it may claim more rows than the file can have.
            first, offset = min(entry.offset, end_offset), min(entry.end_offset, end_offset)
            self._note(entry._replace(offset=first, end_offset=offset))
        if offset < end_offset:  # The last rows of the range are gone without a trace.
            self._note(Damage(end, end, offset, end_offset))
        self._segment.end_offset = end_offset

    def _scan_unknown(self, at: int, offset: int) -> _Scanned:
        segment, file = self._segment, self._segment.file
        source = FileBytes(file, file.size)
        for entry in scan(
            source,
            at,
            offset,
            verify=True,
            epochs=self._epochs,
            unflushed_from=None if self._mark_lost else self._known.offset,
            boundaries=self._boundaries,
        ):
            if isinstance(entry, Torn):
                return self._cut(entry)
            if isinstance(entry, Found):
                # Its flush would have written into the header whether it was late.
                segment.note_arrival(self._now_us, offset)
                offset = entry.header.next_offset
                self._stamps.append((self._segment, entry))
            else:
                self._note(entry)
                offset = entry.end_offset
        segment.end_offset = offset
        return _Scanned.WHOLE

    def _boundaries(self) -> Boundaries:
        return self._segment.files.boundaries()

    def _cut(self, torn: Torn) -> _Scanned:
        segment, file = self._segment, self._segment.file
        # A flush has covered rows behind the hole: they are missing, and keep their offsets.
        if torn.offset < self._known.offset:
            segment.end_offset = self._known.offset
            segment.finished = True
            self._note(Damage(torn.position, file.size, torn.offset, segment.end_offset))
            return _Scanned.SHORT
        assert SEGMENT_HEADER_BYTES <= torn.position <= file.size
        assert segment.base_offset <= torn.offset
        self._report.bytes_truncated += file.size - torn.position
        segment.end_offset = torn.offset
        file.truncate(torn.position)
        assert file.size == torn.position
        return _Scanned.CUT

    def _keep_what_is_left(self, end_offset: int) -> None:
        segment = self._segment
        assert segment.base_offset < end_offset, "some of its rows were on the disk"
        segment.end_offset = end_offset
        segment.finished = True
        segment.drop_index()  # It covers bytes that are gone.
        loaded = segment.files.read_index()
        segment.take_index(loaded)
        if loaded.header_damage:
            self._report.damages.append(loaded.header_damage)
        for damage in loaded.damages:
            self._report.damages.append(segment.corrupt(damage).message)

    def _begin_anew(self) -> None:
        """Empty the file: nothing of it was on the disk, whatever comes after it."""
        segment = self._segment
        segment.file.truncate(0)
        segment.write_header(self._now_us)
        assert segment.empty
        segment.end_offset = segment.base_offset

    def _never_arrived(self) -> bool:
        """A hole where a log's rows begin ends it there, whatever of the later ones has arrived."""
        file = self._segment.file
        if any(file.read_copy(0, SEGMENT_HEADER_BYTES)):
            return False
        # The whole sector is zero, with the header: it never arrived.
        if not any(file.read_copy(0, SECTOR_BYTES)):
            return True
        source = FileBytes(file, file.size)
        start, base_offset = SEGMENT_HEADER_BYTES, self._segment.base_offset
        entries = scan(source, start, base_offset, verify=True, epochs=self._epochs)
        return all(isinstance(entry, Torn) for entry in entries)

    def _note(self, damage: Damage) -> None:
        _note(self._segment, damage, self._report)
