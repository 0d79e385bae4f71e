"""What a log does with its directory at opening.

Owns the decision what is kept. Clean: the recovery point names the end, nothing is scanned. Not
clean: all from the recovery point on is scanned with checksums; a torn tail is cut, damage is
reported and stepped over, what is kept is flushed. Below the recovery point nothing is looked at,
let alone cut: damage there is found by the first read.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from quiverlog.errors import CorruptLog
from quiverlog.storage.checkpoint import RecoveryPoint
from quiverlog.storage.disk import Disk
from quiverlog.storage.epochs import LeaderEpochs
from quiverlog.storage.scan import Damage, Found, Torn, scan
from quiverlog.storage.segment import LOG_SUFFIX, SEGMENT_HEADER_BYTES, Segment, segment_path

__all__ = ["RecoveryReport", "find_segments", "recover_segments"]


@dataclass(slots=True)
class RecoveryReport:
    """What opening a log found. `damages`: as the messages of errors."""

    clean: bool = True
    bytes_scanned: int = 0
    bytes_truncated: int = 0
    damages: list[str] = field(default_factory=list)


def find_segments(disk: Disk, directory: str, names: list[str]) -> list[Segment]:
    """The segments of a directory in order; a segment ends where the next begins."""
    bases = sorted(
        int(name[: -len(LOG_SUFFIX)])
        for name in names
        if name.endswith(LOG_SUFFIX) and name[: -len(LOG_SUFFIX)].isdecimal()
    )
    segments: list[Segment] = []
    for base_offset in bases:
        path = segment_path(directory, base_offset)
        if segments:
            segments[-1].end_offset = base_offset
        segments.append(Segment(disk, path, disk.open(path, create=False), base_offset))
    return segments


def recover_segments(
    segments: list[Segment], point: RecoveryPoint, epochs: LeaderEpochs, now_us: int
) -> tuple[list[Segment], RecoveryReport]:
    """Scan after an unclean stop. Returns (the segments that hold unsynced-or-cut bytes, report).

    Takes the segments after a cut out of `segments` and marks them `dropped`.
    """
    report = RecoveryReport(clean=False)
    touched: list[Segment] = []
    for number, segment in enumerate(segments):
        if segment.base_offset < point.base_offset:
            continue
        whole = _recover_one(segment, point, epochs, now_us, report)
        touched.append(segment)
        following = segments[number + 1 :]
        if following and (not whole or segment.end_offset != following[0].base_offset):
            if segment.end_offset >= following[0].base_offset:
                continue
            # The end of this one never reached the disk, so nothing after it was acknowledged.
            for later in following:
                later.dropped = True
                report.bytes_truncated += later.file.size
            del segments[number + 1 :]
            break
    return touched, report


def _recover_one(
    segment: Segment,
    point: RecoveryPoint,
    epochs: LeaderEpochs,
    now_us: int,
    report: RecoveryReport,
) -> bool:
    """Scan one segment; False when its tail was cut."""
    file = segment.file
    at, offset = SEGMENT_HEADER_BYTES, segment.base_offset
    if point.base_offset == segment.base_offset:
        at, offset = point.position, point.offset
    if file.size < SEGMENT_HEADER_BYTES:
        if at == SEGMENT_HEADER_BYTES:
            _begin_anew(segment, now_us)
        return False
    try:
        segment.check_header()
    except CorruptLog as error:
        if _never_arrived(segment, at):
            report.bytes_truncated += file.size
            _begin_anew(segment, now_us)
            return False
        report.damages.append(error.message)
    if at > file.size:
        _note(segment, Damage(file.size, file.size, segment.base_offset, offset), report)
        segment.end_offset = offset
        return True
    view = file.read(at, file.size - at)
    report.bytes_scanned += len(view)
    segment.trust_from(at)
    for entry in scan(view, 0, offset, verify=True):
        if isinstance(entry, Torn):
            report.bytes_truncated += len(view) - entry.position
            segment.end_offset = offset
            file.truncate(at + entry.position)
            return False
        if isinstance(entry, Found):
            offset = entry.header.next_offset
            epochs.assign(entry.header.leader_epoch, entry.header.base_offset)
        else:
            moved = entry._replace(
                position=at + entry.position, end_position=at + entry.end_position
            )
            _note(segment, moved, report)
            offset = entry.end_offset
    segment.end_offset = offset
    return True


def _begin_anew(segment: Segment, now_us: int) -> None:
    """Nothing of the file was on the disk: it ends where it begins, whatever comes after it."""
    segment.file.truncate(0)
    segment.write_header(now_us)
    segment.end_offset = segment.base_offset


def _never_arrived(segment: Segment, at: int) -> bool:
    """Is this a new segment of which the disk got the length, but not the bytes?"""
    file = segment.file
    if at != SEGMENT_HEADER_BYTES or any(file.read(0, SEGMENT_HEADER_BYTES)):
        return False
    view = file.read(at, file.size - at)
    entries = scan(view, 0, segment.base_offset, verify=True)
    return all(isinstance(entry, Torn) for entry in entries)


def _note(segment: Segment, damage: Damage, report: RecoveryReport) -> None:
    segment.note_damage(damage)
    report.damages.append(
        f"{segment.path}: bytes {damage.position} to {damage.end_position}, rows"
        f" {damage.offset} to {damage.end_offset}, are damaged."
    )
