"""Looking for good batches behind damage of unknown extent, in time that grows with the bytes.

Owns what makes a candidate believable. A checksum is not enough: a column may hold bytes that look
like a batch, checksum and all. Nor is a *chain*, where each batch ends where one of the next row
and of the same or a later epoch begins, up to the end of the bytes or to an append that a crash cut
short: a column may end where its batch does, and its chain goes on with true batches. A damaged
batch has 32 MiB at most, and the last of them begins in front of the chain: what lies so far behind
the chain's first batch is in none of them, and only that is believed. What lies nearer only tells
which rows the log had.

The results are remembered for as long as one scan lasts: no header is followed twice.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from quiverlog.batch.header import CRC_START, BatchHeader, magic_positions
from quiverlog.limits import (
    BATCH_ALIGNMENT_BYTES,
    BATCH_BYTES_MAX,
    BATCH_HEADER_BYTES,
    KIB,
    MIB,
)
from quiverlog.storage.byte_source import ByteSource, checksum
from quiverlog.storage.tail import looks_unwritten

__all__ = ["EPOCHS_ALL", "Candidate", "EpochBounds", "FoundBehind", "Resync"]

_CHUNK_BYTES_MIN: Final = 4 * KIB
"""The next good batch is near, as a rule; the further away it is, the more is read at once."""
_CHUNK_BYTES_MAX: Final = MIB
_OFFSETS_AHEAD_MAX: Final = 2**31
"""A segment holds fewer rows: whatever claims to be further away is none of its batches."""
_CHECKSUMS_FACTOR: Final = 8
"""Checksums of candidates may cost so many times the bytes; then the search gives up, loudly."""


class EpochBounds(NamedTuple):
    """Leader epochs that a batch may carry."""

    oldest: int
    newest: int


EPOCHS_ALL: Final = EpochBounds(-1, 2**31 - 1)


class Candidate(NamedTuple):
    """A good batch at `position`."""

    position: int
    base_offset: int


class FoundBehind(NamedTuple):
    """A chain up to the end lies behind damage.

    `batch`: its first batch that lies inside of no other. `end_offset`: the row after its last.
    """

    batch: Candidate | None
    end_offset: int


class _Chain(NamedTuple):
    """The end of a walk from header to header: the end of the bytes, or the place of damage."""

    reaches_end: bool
    end_position: int
    end_offset: int


class Resync:
    """See the module docstring."""

    def __init__(self, source: ByteSource, epochs: EpochBounds) -> None:
        self._source = source
        self._epochs = epochs
        self._chains: dict[int, _Chain] = {}
        self._good: dict[int, bool] = {}
        self._checksum_bytes = 0
        # The first candidate of which the chain reaches the end, from `_searched_from` on.
        self._anchor: Candidate | None = None
        self._searched_from = -1

    def look_behind(self, start: int, offset: int, epoch: int) -> FoundBehind | None:
        """Look for batches at or after byte `start` whose rows come after `offset`."""
        assert not start % BATCH_ALIGNMENT_BYTES, "batches lie at multiples of 64"
        anchor = self._find_anchor(start, offset, epoch)
        if anchor is None:
            return None
        assert anchor.position >= start
        assert anchor.base_offset >= offset
        end_offset = self._chain(anchor.position).end_offset
        return FoundBehind(self._far_behind(anchor.position), end_offset)

    def _far_behind(self, first: int) -> Candidate | None:
        """The first batch of the chain from `first` on that no damaged batch can reach."""
        at = first
        while at + BATCH_HEADER_BYTES <= self._source.size:
            header = self._header(at)
            if header is None or at >= self._chain(first).end_position:
                return None
            if not self._is_good(at):
                return None  # Its size may be wrong, and the chain go on inside of it.
            if at >= first + BATCH_BYTES_MAX:
                return Candidate(at, header.base_offset)
            assert header.total_bytes >= BATCH_HEADER_BYTES, "the chain has plausible headers only"
            at += header.total_bytes
        return None

    def _find_anchor(self, start: int, offset: int, epoch: int) -> Candidate | None:
        known = self._anchor
        # Were rows found beyond it meanwhile, it would be none of the log's batches.
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
        """Plausible headers from `start` to before `stop`."""
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
        """Follow the headers from the plausible one at `start`; what is known is not redone."""
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
        """True when an append that a crash interrupted lies behind the batch `last`."""
        assert end < self._source.size
        if after is None:
            return True
        if after.is_plausible and after.base_offset == last.next_offset:
            return end + after.total_bytes > self._source.size
        return looks_unwritten(self._source, end, self._source.size)

    def _is_good(self, at: int) -> bool:
        """True when the checksum of the batch at `at` matches."""
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
