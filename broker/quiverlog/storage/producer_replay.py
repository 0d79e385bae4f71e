"""What a partition knows of its producers, read again from its files.

Owns the order: the newest good snapshot that is not ahead of the log, then the headers behind it.
And which snapshot is not believed, because it is another log's (docs/adr/0072). The rows tell:

- the last batch in front of the snapshot's offset is the newest that it can have of any producer;
- where that one has no producer, the newest batch that it names lies where it says;
- a producer's first batch behind it goes on where the snapshot says that the producer was. That is
  all there is to compare where the rows in front were given up.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

from quiverlog.batch.header import BatchHeader
from quiverlog.errors import (
    CorruptLog,
    InvalidProducerEpoch,
    OutOfOrderSequence,
    QuiverlogError,
    UnsupportedFormat,
)
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
) -> list[str]:
    """The newest snapshot that is whole, this log's and not ahead of it; then the headers after it.

    Also those below the log start: a batch that was given up may be sent again. Snapshots that are
    no good are removed, from the disk and from `snapshots`; those of another log are moved aside,
    and the notes of it returned. One at an offset inside of a batch does not tell of this batch: it
    is that of a copy whose rows begin there (docs/adr/0050).

    Raises OSError, StorageFault: the disk failed.
    """
    assert 0 <= log_start_offset <= log_end_offset
    assert snapshots == sorted(snapshots, reverse=True), "the newest is tried first"
    rows = _Rows(segments, given_up, log_start_offset, log_end_offset, damages)
    notes: list[str] = []
    for offset in list(snapshots):
        if offset <= log_end_offset and _restore_one(disk, directory, producers, offset):
            if rows.confirm(producers, offset) and rows.replay(producers, offset):
                break
            if producers.newest_offset >= 0:
                notes.append(checkpoint.move_snapshot_aside(disk, directory, offset))
        snapshots.remove(offset)
        checkpoint.drop_snapshot(disk, directory, offset)
        # One that is ahead must not come back once other rows have taken its offsets.
        disk.sync_dir(directory)
    else:
        producers.restore(b"")
        rows.replay(producers, 0)
    assert all(offset <= log_end_offset for offset in snapshots), "no other one is on the disk"
    return notes


class _Rows:
    """The headers of a log's batches, and what they say of a snapshot."""

    def __init__(
        self,
        segments: Segments,
        given_up: Sequence[Segment],
        log_start_offset: int,
        log_end_offset: int,
        damages: list[str],
    ) -> None:
        self._segments = segments
        self._given_up = given_up
        self._start = log_start_offset
        self._end = log_end_offset
        self._damages = damages

    def replay(self, producers: Producers, start: int) -> bool:
        """Take in the batches behind the snapshot of `start`; 0: there is none.

        False, half way, where one of them cannot have followed what the snapshot tells.
        """
        assert 0 <= start <= self._end
        seen = joined = start
        met: set[int] = set()
        for header in self._headers(start):
            if header.next_offset <= seen:
                continue
            assert header.next_offset <= self._end, "rows that the log does not have"
            # Behind rows that are missing a producer may have gone on from these.
            if start and header.base_offset <= joined and header.producer_id not in met:
                met.add(header.producer_id)
                if not _may_follow(producers, header) and self._is_sound(header):
                    return False
            joined = header.next_offset if header.base_offset <= joined else -1
            producers.replay(header)
            seen = header.next_offset
        self._report_damages(max(start, self._start))
        return True

    def _headers(self, start: int) -> Iterator[BatchHeader]:
        """Of those below the log start as many as can be read: damage is nobody's loss there."""
        seen = start
        for segment in self._given_up:
            with contextlib.suppress(CorruptLog, UnsupportedFormat):
                for _, header in header_walk.all_headers(segment, start):
                    seen = max(seen, header.next_offset)
                    yield header
        if start < self._start:
            for header in self._segments.headers(start, []):
                if header.base_offset >= self._start:
                    break
                seen = max(seen, header.next_offset)
                yield header
        yield from self._segments.headers(max(seen, self._start), self._damages)

    def _report_damages(self, first: int) -> None:
        """Also of what the walk has stepped over itself: less is known now than there was."""
        assert self._start <= first <= self._end
        met = [(one, place) for one in self._segments.holding(first) for place in one.damages]
        for segment, place in met:
            message = segment.corrupt(place).message
            holds_rows = place.end_offset > max(place.offset, first)
            if holds_rows and message not in self._damages:
                self._damages.append(message)

    def confirm(self, producers: Producers, offset: int) -> bool:
        """False where the rows in front of `offset` say that these producers are another log's.

        Also for no producers where the rows have one: it may have been silent for a day, and then
        nothing is lost by asking the rows.
        """
        assert 0 <= offset <= self._end
        before = self._batch_with(offset - 1)
        if before is None or before.next_offset > offset or before.producer_id < 0:
            newest = producers.newest_offset
            before = self._batch_with(newest)
            if before is None:
                return True
            if before.base_offset != newest or before.producer_id < 0:
                return not self._is_sound(before)
        with contextlib.suppress(QuiverlogError):
            if producers.check(before) == before.base_offset:
                return True
        return not self._is_sound(before)

    def _batch_with(self, offset: int) -> BatchHeader | None:
        found = self._find(offset)
        return None if found is None else found[2]

    def _is_sound(self, header: BatchHeader) -> bool:
        """True where the checksum vouches for what the header says of its producer."""
        found = self._find(header.base_offset)
        assert found is None or found[2].base_offset <= header.base_offset
        return found is not None and header_walk.is_sound(*found)

    def _find(self, offset: int) -> tuple[Segment, int, BatchHeader] | None:
        """The batch with this row, where that can be told from the headers."""
        for segment in (*self._given_up, *self._segments.holding(offset)[:1]):
            if segment.base_offset <= offset < segment.end_offset:
                with contextlib.suppress(CorruptLog, UnsupportedFormat, header_walk.Undiagnosed):
                    found = header_walk.batch_with(segment, offset)
                    return None if found is None else (segment, *found)
        return None


def _may_follow(producers: Producers, header: BatchHeader) -> bool:
    """False for a batch that no leader has stored behind what is known of its producer.

    One that was forgotten in between, after a day of silence, has begun anew.
    """
    if header.producer_id < 0 or header.base_sequence == 0:
        return True
    try:
        return producers.check(header) is None
    except QuiverlogError as error:
        return not isinstance(error, InvalidProducerEpoch | OutOfOrderSequence)


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
