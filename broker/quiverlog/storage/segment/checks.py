"""Checksum verification of a segment's bytes, in any thread.

A walk that needs it raises `Unverified` or `Undiagnosed`, and a bounded one `LongWalk`; the caller
chooses the thread.
"""

from __future__ import annotations

from typing import NamedTuple

from quiverlog.errors import CorruptLog
from quiverlog.storage.disk.byte_source import FileBytes
from quiverlog.storage.disk.disk import File
from quiverlog.storage.segment.epochs import LeaderEpochs
from quiverlog.storage.segment.index import Boundaries
from quiverlog.storage.segment.scan import Damage, Found, Torn, damaged_stamp, scan
from quiverlog.storage.segment.segment_files import SEGMENT_HEADER_BYTES

__all__ = ["LongWalk", "Undiagnosed", "Unverified", "Verdict", "clip", "find_damages", "verify"]


class Unverified(Exception):
    def __init__(self, start: int, end: int, offset: int, end_offset: int) -> None:
        super().__init__(f"bytes {start} to {end} are not verified")
        assert SEGMENT_HEADER_BYTES <= start < end
        assert 0 <= offset < end_offset
        self.start = start
        self.end = end
        self.offset = offset
        self.end_offset = end_offset


class Undiagnosed(Exception):
    """A walk met no known damage and no batch: scan the segment, then walk again.

    `error`: the answer if the scan makes no difference.
    """

    def __init__(self, error: CorruptLog) -> None:
        super().__init__(error.message)
        self.error = error


class LongWalk(Exception):
    def __init__(self, position: int, offset: int) -> None:
        super().__init__(f"a walk to byte {position} and on")
        self.position = position
        self.offset = offset


class Verdict(NamedTuple):
    """`damages`: all later batches with wrong stamps; one at a time would cost a verification
    each."""

    good_end: int
    damages: tuple[Damage, ...] = ()


def verify(file: File, start: int, end: int, offset: int, epochs: LeaderEpochs) -> Verdict:
    """Verify the batches in [start, end), and by `epochs` their stamps, which no checksum
    covers."""
    assert SEGMENT_HEADER_BYTES <= start < end
    good_end = start
    damages: list[Damage] = []
    for entry in scan(FileBytes(file, end), start, offset, verify=True):
        if not isinstance(entry, Found):
            break
        header = entry.header
        if not epochs.agree(header.leader_epoch, header.base_offset):
            damages.append(damaged_stamp(entry))
        if not damages:
            good_end = entry.position + header.total_bytes
    assert start <= good_end <= end
    return Verdict(good_end, tuple(damages))


def find_damages(
    file: File, base_offset: int, size: int, end_offset: int, boundaries: Boundaries
) -> tuple[Damage, ...]:
    assert size <= file.size
    assert base_offset <= end_offset
    source = FileBytes(file, size)
    found: list[Damage] = []
    at = SEGMENT_HEADER_BYTES
    for entry in scan(source, at, base_offset, verify=True, boundaries=lambda: boundaries):
        if isinstance(entry, Torn):
            entry = Damage(entry.position, size, entry.offset, max(entry.offset, end_offset))
        damage = clip(entry, size, end_offset) if isinstance(entry, Damage) else None
        if damage is not None and damage.offset < damage.end_offset:
            found.append(damage)
    assert all(damage.end_offset <= end_offset for damage in found), "other rows are none of ours"
    return tuple(found)


def clip(damage: Damage, size: int, end_offset: int) -> Damage | None:
    """Return the damage within the segment: a damaged header may have wrong rows, but the segment's
    end is known."""
    if damage.offset > end_offset:
        return None
    at_end = damage.end_position >= size or damage.end_offset > end_offset
    return damage._replace(end_offset=end_offset) if at_end else damage
