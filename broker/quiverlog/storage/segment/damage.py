"""The extent of damage, and where good batches begin again after it.

*Extent*: a matching checksum decides; otherwise header and Arrow message must agree, or the extent
is unknown. *Resync*: after unknown extent a candidate counts only at a known boundary, or in a
chain that begins more than the largest batch further: a column may hold bytes that look like
batches, checksum included. *Tail*: a wrong checksum at the end of a file is a torn write if bytes
are missing or zero; other bytes were damaged later and are kept.

Invariant: a scan checks each candidate once; their checksums cover a bounded multiple of the bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from quiverlog.batch.header import CRC_START, BatchHeader, magic_positions
from quiverlog.batch.ipc_metadata import claimed_size
from quiverlog.limits import (
    BATCH_ALIGNMENT_BYTES,
    BATCH_BYTES_MAX,
    BATCH_HEADER_BYTES,
    BATCH_ROWS_MAX,
    KIB,
    MIB,
)
from quiverlog.storage.disk.byte_source import BufferBytes, ByteSource, checksum
from quiverlog.storage.segment.index import Boundary

__all__ = [
    "EPOCHS_ALL",
    "SECTOR_BYTES",
    "Candidate",
    "EpochBounds",
    "Extent",
    "FoundBehind",
    "Resync",
    "end_by_checksum",
    "extent_of",
    "header_at",
    "looks_unwritten",
]


_MESSAGE_PREFIX_BYTES: Final = 8
_CONTINUATION: Final = b"\xff\xff\xff\xff"


class Extent(NamedTuple):
    end: int
    next_offset: int


def header_at(source: ByteSource, at: int) -> BatchHeader | None:
    if source.size - at < BATCH_HEADER_BYTES:
        return None
    return BatchHeader.unpack(source.read(at, BATCH_HEADER_BYTES))


def extent_of(
    source: ByteSource, at: int, offset: int, header: BatchHeader, known: Boundary | None
) -> Extent | None:
    """Return the extent of the damaged batch at `at`.

    `known`: where a later batch is known to begin.
    """
    extent = _Witnesses(source, at, offset, header, known).weigh()
    assert extent is None or at < extent.end <= source.size
    assert extent is None or extent.next_offset >= offset
    assert extent is None or known is None or extent.end <= known.position, "a batch begins there"
    return extent


def end_by_checksum(source: ByteSource, at: int, header: BatchHeader) -> int:
    """Return the batch's end if only its size field is wrong; otherwise 0.

    The size is before the checksum's range.
    """
    crc, size = 0, min(source.size, at + BATCH_BYTES_MAX)
    start = at + CRC_START
    assert at + BATCH_HEADER_BYTES <= source.size, "the header is there"
    for end in range(at + BATCH_HEADER_BYTES, size + 1, BATCH_ALIGNMENT_BYTES):
        crc = checksum(source, start, end, crc)
        start = end
        if crc == header.crc32c:
            return end
    return 0


class _Witnesses:
    def __init__(
        self,
        source: ByteSource,
        at: int,
        offset: int,
        header: BatchHeader,
        known: Boundary | None,
    ) -> None:
        self._source = source
        self._at = at
        self._offset = offset
        self._header = header
        self._known = known

    def weigh(self) -> Extent | None:
        header = self._header
        by_header = self._possible(header.total_bytes, header.row_count)
        by_message = self._message()
        proven = {
            claim.end
            for claim in (by_header, by_message)
            if claim is not None and self._checksum_ends_at(claim.end)
        }
        assert len(proven) <= 2, "one of each claim"
        if proven:
            # Two ends for one checksum: a producer made the bytes in between match.
            return self._proven(proven.pop()) if len(proven) == 1 else None
        if by_message is not None:
            return self._of_two(by_header, by_message)
        return self._of_header(by_header)

    def _message(self) -> Extent | None:
        source, start = self._source, self._at + BATCH_HEADER_BYTES
        assert start <= source.size, "the header is there"
        prefix = source.read(start, min(_MESSAGE_PREFIX_BYTES, source.size - start))
        metadata_bytes = int.from_bytes(prefix[4:8], "little")
        room = min(source.size - start, BATCH_BYTES_MAX)
        if bytes(prefix[:4]) != _CONTINUATION or _MESSAGE_PREFIX_BYTES + metadata_bytes > room:
            return None
        claimed = claimed_size(source.read(start, _MESSAGE_PREFIX_BYTES + metadata_bytes))
        if claimed is None:
            return None
        size, rows = claimed
        return self._possible(BATCH_HEADER_BYTES + size + -size % BATCH_ALIGNMENT_BYTES, rows)

    def _possible(self, total_bytes: int, rows: int) -> Extent | None:
        if not BATCH_HEADER_BYTES <= total_bytes <= BATCH_BYTES_MAX:
            return None
        if total_bytes % BATCH_ALIGNMENT_BYTES or self._at + total_bytes > self._source.size:
            return None
        if not 0 < rows <= BATCH_ROWS_MAX:
            rows = 0  # The size may be right nevertheless.
        claim = Extent(self._at + total_bytes, self._offset + rows)
        assert claim.next_offset >= self._offset
        if self._known is not None:
            if claim.end > self._known.position:
                return None
            if claim.end == self._known.position:
                return Extent(*self._known)
            if claim.next_offset >= self._known.offset:
                return claim._replace(next_offset=self._offset)
        return claim

    def _checksum_ends_at(self, end: int) -> bool:
        return checksum(self._source, self._at + CRC_START, end) == self._header.crc32c

    def _proven(self, end: int) -> Extent | None:
        header = self._header
        assert self._at + BATCH_HEADER_BYTES <= end <= self._source.size
        if not 0 < header.row_count <= BATCH_ROWS_MAX:
            return None
        after = header_at(self._source, end)
        if (
            after is not None
            and self._offset < header.base_offset
            and after.base_offset == header.next_offset
            and self._follows(end, after)
        ):  # Two good headers agree on later rows: the rows before them are gone.
            return Extent(end, header.next_offset)
        return Extent(end, self._offset + header.row_count)

    @property
    def _fits(self) -> bool:
        header = self._header
        if header.base_offset != self._offset:
            return False
        return header.is_plausible or header._replace(row_count=1).is_plausible

    def _of_two(self, by_header: Extent | None, by_message: Extent) -> Extent | None:
        assert by_message.end <= self._source.size
        if by_header == by_message:
            return self._if_rows(by_message)
        if by_header is None:
            # A matching header reaches beyond the end: an append that was cut short.
            return None if self._fits else self._if_rows(by_message)
        confirmed = [claim for claim in (by_header, by_message) if self._confirmed(claim)]
        if len(confirmed) == 1:
            inside = confirmed[0] is by_message and by_message.end < by_header.end
            # Inside a batch whose header is right all bytes are a column's.
            return None if inside and self._fits else confirmed[0]
        if by_header.end != by_message.end:
            # Both numbers of a wrong header may be anything.
            return None if confirmed or self._fits else self._if_rows(by_message)
        if by_header.next_offset == self._offset:
            return self._if_rows(by_message)
        if by_message.end == self._source.size:
            return max(by_header, by_message)  # Nothing follows that would have another offset.
        return None

    def _of_header(self, claim: Extent | None) -> Extent | None:
        header = self._header
        assert claim is None or claim.end > self._at
        if claim is not None and self._confirmed(claim):
            return claim
        if header.base_offset != self._offset:
            return None
        if self._fits or claim is None:
            end = end_by_checksum(self._source, self._at, header)
            if end and (self._known is None or end <= self._known.position):
                return self._proven(end)
        if claim is None or not self._fits:
            return None
        after = header_at(self._source, claim.end)
        if after is not None and self._follows(claim.end, after):
            return claim._replace(next_offset=after.base_offset)  # The number of rows is wrong.
        return self._if_rows(claim)

    def _follows(self, at: int, after: BatchHeader) -> bool:
        assert at > self._at
        end = at + after.total_bytes
        return (
            after.is_plausible
            and self._offset < after.base_offset <= self._offset + BATCH_ROWS_MAX
            and end <= self._source.size
            and checksum(self._source, at + CRC_START, end) == after.crc32c
        )

    def _if_rows(self, claim: Extent) -> Extent | None:
        return claim if claim.next_offset > self._offset else None

    def _confirmed(self, claim: Extent) -> bool:
        if claim.next_offset <= self._offset:
            return False
        if self._known is not None and tuple(claim) == tuple(self._known):
            return True
        after = header_at(self._source, claim.end)
        return after is not None and after.is_plausible and after.base_offset == claim.next_offset


# Torn or damaged: the meaning of a wrong checksum at the end of a file.
SECTOR_BYTES: Final = 512
_UNWRITTEN_BYTES_MIN: Final = 128
"""More zeros than padding (63 bytes) can explain."""


def looks_unwritten(source: ByteSource | memoryview, start: int, end: int) -> bool:
    """Return whether [start, end) is zero, all or from its last sector boundary on."""
    if isinstance(source, memoryview):
        source = BufferBytes(source)
    assert 0 <= start < end, "no bytes look like anything"
    last = (end - 1) // SECTOR_BYTES * SECTOR_BYTES
    if end - last < _UNWRITTEN_BYTES_MIN:
        last -= SECTOR_BYTES
    start = max(start, last)
    return not any(source.read(start, end - start))


_CHUNK_BYTES_MIN: Final = 4 * KIB
_CHUNK_BYTES_MAX: Final = MIB
_OFFSETS_AHEAD_MAX: Final = 2**31
"""A segment holds fewer rows: a header with a larger offset is not one of its batches."""
_CHECKSUMS_FACTOR: Final = 8
"""Checksums of candidates may cover this many times the bytes; then the search fails."""


class EpochBounds(NamedTuple):
    oldest: int
    newest: int


EPOCHS_ALL: Final = EpochBounds(-1, 2**31 - 1)


class Candidate(NamedTuple):
    position: int
    base_offset: int


class FoundBehind(NamedTuple):
    """A chain of good batches up to the end, after damage.

    `batch`: its first batch that is inside of no other.
    """

    batch: Candidate | None
    end_offset: int


class _Chain(NamedTuple):
    reaches_end: bool
    end_position: int
    end_offset: int


class Resync:
    def __init__(self, source: ByteSource, epochs: EpochBounds) -> None:
        self._source = source
        self._epochs = epochs
        self._chains: dict[int, _Chain] = {}
        self._good: dict[int, bool] = {}
        self._checksum_bytes = 0
        # The first candidate whose chain reaches the end, from `_searched_from` on.
        self._anchor: Candidate | None = None
        self._searched_from = -1

    def look_behind(self, start: int, offset: int, epoch: int) -> FoundBehind | None:
        assert not start % BATCH_ALIGNMENT_BYTES, "batches lie at multiples of 64"
        anchor = self._find_anchor(start, offset, epoch)
        if anchor is None:
            return None
        assert anchor.position >= start
        assert anchor.base_offset >= offset
        end_offset = self._chain(anchor.position).end_offset
        return FoundBehind(self._far_behind(anchor.position), end_offset)

    def _far_behind(self, first: int) -> Candidate | None:
        """Return the chain's first batch that no damaged batch can reach."""
        at = first
        while at + BATCH_HEADER_BYTES <= self._source.size:
            header = self._header(at)
            if header is None or at >= self._chain(first).end_position:
                return None
            if not self._is_good(at):
                return None  # Its size may be wrong, and the chain continue inside of it.
            if at >= first + BATCH_BYTES_MAX:
                return Candidate(at, header.base_offset)
            assert header.total_bytes >= BATCH_HEADER_BYTES, "the chain has plausible headers only"
            at += header.total_bytes
        return None

    def _find_anchor(self, start: int, offset: int, epoch: int) -> Candidate | None:
        known = self._anchor
        # Rows beyond its first were found meanwhile: then it is none of the log's batches.
        fits = known is not None and offset <= known.base_offset
        if known is not None and fits and self._searched_from <= start <= known.position:
            return known
        self._searched_from = start
        self._anchor = None
        for candidate in self._candidates(start, offset, epoch, self._source.size):
            if self._chain(candidate.position).reaches_end and self._is_good(candidate.position):
                self._anchor = candidate
                break
        return self._anchor

    def _candidates(self, start: int, offset: int, epoch: int, stop: int) -> Iterator[Candidate]:
        assert 0 <= start <= self._source.size
        source = self._source
        stop = min(stop, source.size - BATCH_HEADER_BYTES + 1)
        chunk_at, chunk_bytes = start, _CHUNK_BYTES_MIN
        while chunk_at < stop:
            chunk = bytes(source.read(chunk_at, chunk_bytes + BATCH_HEADER_BYTES))
            for at in magic_positions(chunk):
                position = chunk_at + at
                if position >= stop or at >= chunk_bytes:
                    break
                header = BatchHeader.unpack(chunk, at)
                if (
                    offset < header.base_offset <= offset + _OFFSETS_AHEAD_MAX
                    and max(epoch, self._epochs.oldest) <= header.leader_epoch
                    and header.leader_epoch <= self._epochs.newest
                    and header.is_plausible
                    and position + header.total_bytes <= source.size
                ):
                    assert not position % BATCH_ALIGNMENT_BYTES
                    yield Candidate(position, header.base_offset)
            chunk_at += chunk_bytes
            chunk_bytes = min(2 * chunk_bytes, _CHUNK_BYTES_MAX)

    def _header(self, at: int) -> BatchHeader | None:
        if self._source.size - at < BATCH_HEADER_BYTES:
            return None
        return BatchHeader.unpack(self._source.read(at, BATCH_HEADER_BYTES))

    def _chain(self, start: int) -> _Chain:
        walked: list[int] = []
        at = start
        header = self._header(at)
        assert header is not None, "a candidate has a header"
        while True:
            known = self._chains.get(at)
            if known is not None:
                chain = known
                break
            walked.append(at)
            end = at + header.total_bytes
            after = self._header(end) if end < self._source.size else None
            if (
                after is not None
                and after.is_plausible
                and after.base_offset == header.next_offset
                and header.leader_epoch <= after.leader_epoch <= self._epochs.newest
                and end + after.total_bytes <= self._source.size
            ):
                at, header = end, after
                continue
            reaches = end == self._source.size or self._is_cut_short(end, header, after)
            chain = _Chain(reaches, end, header.next_offset)
            break
        assert chain.end_position > start
        for position in walked:
            self._chains[position] = chain
        return chain

    def _is_cut_short(self, end: int, last: BatchHeader, after: BatchHeader | None) -> bool:
        assert end < self._source.size
        if after is None:
            return True
        if after.is_plausible and after.base_offset == last.next_offset:
            return end + after.total_bytes > self._source.size
        return looks_unwritten(self._source, end, self._source.size)

    def _is_good(self, at: int) -> bool:
        good = self._good.get(at)
        if good is not None:
            return good
        header = self._header(at)
        assert header is not None, "a candidate has a header"
        self._checksum_bytes += header.total_bytes
        if self._checksum_bytes > _CHECKSUMS_FACTOR * self._source.size:
            return False
        end = at + header.total_bytes
        good = checksum(self._source, at + CRC_START, end) == header.crc32c
        self._good[at] = good
        return good
