"""How far a damaged batch reaches, as its own bytes tell.

Owns the weighing of three witnesses, because a scan that goes on at the wrong byte may land in a
column that looks like a batch:

- the *header*: size and number of rows,
- the *Arrow message* behind it, whose metadata tells the same two numbers once more,
- the *checksum*: where it matches the bytes up to a place, the batch ends there, and its number of
  rows, which the checksum covers, is right.

What the checksum proves counts. Otherwise header and message must agree, or the next header must
confirm one of them; not a message that ends inside of a batch whose header is right, where a column
may hold such a header. Where nothing does, the extent is unknown: None, not a guess.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from quiverlog.batch.header import CRC_START, BatchHeader
from quiverlog.batch.ipc_metadata import claimed_size
from quiverlog.limits import (
    BATCH_ALIGNMENT_BYTES,
    BATCH_BYTES_MAX,
    BATCH_HEADER_BYTES,
    BATCH_ROWS_MAX,
)
from quiverlog.storage.boundaries import Boundary
from quiverlog.storage.byte_source import ByteSource, checksum

__all__ = ["Extent", "end_by_checksum", "extent_of", "header_at"]

_MESSAGE_PREFIX_BYTES: Final = 8
_CONTINUATION: Final = b"\xff\xff\xff\xff"


class Extent(NamedTuple):
    """The batch ends at byte `end`; the next one begins there, with row `next_offset`."""

    end: int
    next_offset: int


def header_at(source: ByteSource, at: int) -> BatchHeader | None:
    """The 64 bytes at `at`; None when there are fewer."""
    if source.size - at < BATCH_HEADER_BYTES:
        return None
    return BatchHeader.unpack(source.read(at, BATCH_HEADER_BYTES))


def extent_of(
    source: ByteSource, at: int, offset: int, header: BatchHeader, known: Boundary | None
) -> Extent | None:
    """The extent of the batch at `at`, which begins with row `offset` and is damaged.

    Args:
        header: the bytes there, right or wrong.
        known: where a later batch is known to begin.
    """
    extent = _Witnesses(source, at, offset, header, known).weigh()
    assert extent is None or at < extent.end <= source.size
    assert extent is None or extent.next_offset >= offset
    assert extent is None or known is None or extent.end <= known.position, "a batch begins there"
    return extent


def end_by_checksum(source: ByteSource, at: int, header: BatchHeader) -> int:
    """Find where the batch really ends if only its size field is wrong; 0 when more is wrong.

    The size lies in front of the checksum, so the checksum of the right bytes matches.
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
        assert len(proven) <= 2, "one of each witness"
        if proven:
            # Two ends for one checksum: somebody has computed the bytes in between for that.
            return self._proven(proven.pop()) if len(proven) == 1 else None
        if by_message is not None:
            return self._of_two(by_header, by_message)
        return self._of_header(by_header)

    def _message(self) -> Extent | None:
        """What the Arrow message says of itself."""
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
        """A claim, unless it contradicts what is known."""
        if not BATCH_HEADER_BYTES <= total_bytes <= BATCH_BYTES_MAX:
            return None
        if total_bytes % BATCH_ALIGNMENT_BYTES or self._at + total_bytes > self._source.size:
            return None
        if not 0 < rows <= BATCH_ROWS_MAX:
            rows = 0  # The size may be right all the same.
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
        ):  # Two good headers agree on later rows: those in front of them are gone.
            return Extent(end, header.next_offset)
        return Extent(end, self._offset + header.row_count)

    @property
    def _fits(self) -> bool:
        """True for the header of this batch, whatever its number of rows."""
        header = self._header
        if header.base_offset != self._offset:
            return False
        return header.is_plausible or header._replace(row_count=1).is_plausible

    def _of_two(self, by_header: Extent | None, by_message: Extent) -> Extent | None:
        assert by_message.end <= self._source.size
        if by_header == by_message:
            return self._if_rows(by_message)
        if by_header is None:
            # A header that fits and reaches beyond the end: an append that was cut short.
            return None if self._fits else self._if_rows(by_message)
        confirmed = [claim for claim in (by_header, by_message) if self._confirmed(claim)]
        if len(confirmed) == 1:
            inside = confirmed[0] is by_message and by_message.end < by_header.end
            # What lies inside of a batch whose header is right is a column's bytes.
            return None if inside and self._fits else confirmed[0]
        if by_header.end != by_message.end:
            # Both numbers of a header that is not this batch's may be anything.
            return None if confirmed or self._fits else self._if_rows(by_message)
        if by_header.next_offset == self._offset:
            return self._if_rows(by_message)
        if by_message.end == self._source.size:
            return max(by_header, by_message)  # Nothing follows that would have another offset.
        return None

    def _of_header(self, claim: Extent | None) -> Extent | None:
        """The header alone: its message is damaged, too."""
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
        """True when a good batch of later rows lies at `at`."""
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
        """True when the bytes behind the batch, or what is known of them, say the same."""
        if claim.next_offset <= self._offset:
            return False
        if self._known is not None and tuple(claim) == tuple(self._known):
            return True
        after = header_at(self._source, claim.end)
        return after is not None and after.is_plausible and after.base_offset == claim.next_offset
