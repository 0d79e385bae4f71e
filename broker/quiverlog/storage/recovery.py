"""What a log does with its segments after an unclean stop.

Owns the decision what is kept: all from the recovery point on is scanned with checksums; a torn
tail is cut, damage is reported and stepped over. Below the recovery point nothing is looked at, let
alone cut: damage there is found by the first read.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from quiverlog.errors import CorruptLog
from quiverlog.storage.byte_source import FileBytes
from quiverlog.storage.checkpoint import RecoveryPoint
from quiverlog.storage.epochs import LeaderEpochs
from quiverlog.storage.resync import EPOCHS_ALL, EpochBounds
from quiverlog.storage.scan import Damage, Found, Torn, scan
from quiverlog.storage.segment import Segment
from quiverlog.storage.segment_index import SEGMENT_HEADER_BYTES

__all__ = ["RecoveryReport", "assign_epochs", "recover_segments"]


@dataclass(slots=True)
class RecoveryReport:
    """What opening a log found. `damages`: as the messages of errors."""

    clean: bool = True
    bytes_scanned: int = 0
    bytes_truncated: int = 0
    damages: list[str] = field(default_factory=list)


def recover_segments(
    segments: list[Segment],
    point: RecoveryPoint,
    epochs: LeaderEpochs,
    now_us: int,
    epoch_newest: int = EPOCHS_ALL.newest,
) -> tuple[list[Segment], RecoveryReport]:
    """Scan after an unclean stop. Returns (the segments that hold unsynced-or-cut bytes, report).

    Takes the segments after a cut out of `segments` and marks them `dropped`.

    Args:
        epoch_newest: no batch can have been written under a newer epoch.
    """
    report = RecoveryReport(clean=False)
    touched: list[Segment] = []
    stamps: list[tuple[int, int]] = []
    for number, segment in enumerate(segments):
        if segment.base_offset < point.base_offset:
            continue
        scanned = _Recovery(segment, point, stamps, now_us, epoch_newest, report).run()
        if scanned is not _Scanned.NOTHING:
            touched.append(segment)
        following = segments[number + 1 :]
        if following and (scanned is _Scanned.CUT or segment.end_offset < following[0].base_offset):
            # The end of this one never reached the disk, so nothing after it was acknowledged.
            for later in following:
                later.dropped = True
                report.bytes_truncated += later.file.size
            del segments[number + 1 :]
            segment.finished = scanned is _Scanned.SHORT
            break
    assign_epochs(epochs, stamps, epoch_newest)
    return touched, report


def assign_epochs(epochs: LeaderEpochs, stamps: list[tuple[int, int]], newest: int) -> None:
    """Take the epochs of the batches in.

    Epochs lie outside the checksum and never fall along a log: where a later batch has an older
    one, the earlier stamp is what is wrong.
    """
    believed: list[tuple[int, int]] = []
    for epoch, base_offset in reversed(stamps):
        newest = min(newest, epoch)
        believed.append((newest, base_offset))
    for epoch, base_offset in reversed(believed):
        epochs.assign(epoch, base_offset)


class _Scanned(enum.Enum):
    """What came of a segment: SHORT: bytes that were on the disk are gone."""

    WHOLE = enum.auto()
    CUT = enum.auto()
    SHORT = enum.auto()
    NOTHING = enum.auto()


class _Recovery:
    """The scan of one segment."""

    def __init__(
        self,
        segment: Segment,
        point: RecoveryPoint,
        stamps: list[tuple[int, int]],
        now_us: int,
        epoch_newest: int,
        report: RecoveryReport,
    ) -> None:
        self._segment = segment
        self._stamps = stamps
        self._now_us = now_us
        self._epochs = EpochBounds(EPOCHS_ALL.oldest, epoch_newest)
        self._report = report
        # From here on nothing is known to be on the disk; everything before is.
        self._floor = (SEGMENT_HEADER_BYTES, segment.base_offset)
        if point.base_offset == segment.base_offset and point.position > SEGMENT_HEADER_BYTES:
            self._floor = (point.position, point.offset)

    def run(self) -> _Scanned:
        segment, file = self._segment, self._segment.file
        at, offset = self._floor
        flushed = at > SEGMENT_HEADER_BYTES
        if file.size < at and flushed:
            self._keep_what_is_left(offset)
            return _Scanned.SHORT
        if file.size < SEGMENT_HEADER_BYTES:
            self._begin_anew()
            return _Scanned.CUT
        try:
            segment.check_header()
        except CorruptLog as error:
            if not flushed and self._never_arrived():
                self._report.bytes_truncated += file.size
                self._begin_anew()
                return _Scanned.CUT
            segment.created_us = 0
            self._report.damages.append(error.message)
        if flushed and file.size == at:
            segment.end_offset = offset
            return _Scanned.NOTHING
        self._report.bytes_scanned += file.size - at
        segment.trust_from(at)
        return self._scan(at, offset)

    def _scan(self, at: int, offset: int) -> _Scanned:
        segment, file = self._segment, self._segment.file
        source = FileBytes(file, file.size)
        for entry in scan(source, at, offset, verify=True, epochs=self._epochs):
            if isinstance(entry, Torn):
                self._report.bytes_truncated += file.size - entry.position
                segment.end_offset = offset
                file.truncate(entry.position)
                return _Scanned.CUT
            if isinstance(entry, Found):
                offset = entry.header.next_offset
                self._stamps.append((entry.header.leader_epoch, entry.header.base_offset))
            else:
                self._note(entry)
                offset = entry.end_offset
        segment.end_offset = offset
        return _Scanned.WHOLE

    def _keep_what_is_left(self, end_offset: int) -> None:
        """Bytes that were on the disk are gone: what is left of them is kept, the rest damage."""
        segment = self._segment
        segment.end_offset = end_offset
        segment.finished = True
        segment.drop_index()
        loaded = segment.files.read_index()
        segment.take_index(loaded)
        if loaded.header_damage:
            self._report.damages.append(loaded.header_damage)
        for damage in loaded.damages:
            self._report.damages.append(segment.corrupt(damage).message)

    def _begin_anew(self) -> None:
        """Nothing of the file was on the disk: it ends where it begins, whatever comes after it."""
        segment = self._segment
        segment.file.truncate(0)
        segment.write_header(self._now_us)
        segment.end_offset = segment.base_offset

    def _never_arrived(self) -> bool:
        """True for a new segment of which the disk got the length, but not the bytes."""
        file = self._segment.file
        if any(file.read_copy(0, SEGMENT_HEADER_BYTES)):
            return False
        source = FileBytes(file, file.size)
        start, base_offset = SEGMENT_HEADER_BYTES, self._segment.base_offset
        entries = scan(source, start, base_offset, verify=True, epochs=self._epochs)
        return all(isinstance(entry, Torn) for entry in entries)

    def _note(self, damage: Damage) -> None:
        self._segment.note_damage(damage)
        self._report.damages.append(self._segment.corrupt(damage).message)
