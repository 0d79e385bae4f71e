"""Reading a led partition from its log start to an end, in order, in bounded pieces.

A job walks the batches of a segment, checks that they follow one another, verifies what it reads
whole, and has it decoded; the loop only learns where the next piece begins. All bytes are copied:
a bad sector is then an error, and a file that is removed or cut meanwhile harms no view.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Final, NamedTuple, Protocol

from quiverlog.batch.codec import check_crc
from quiverlog.batch.header import BatchHeader, whole_batch
from quiverlog.errors import CorruptBatch, CorruptLog, StorageFault, UnsupportedFormat
from quiverlog.limits import BATCH_HEADER_BYTES, KIB, MIB
from quiverlog.node.partitions.replica import Replica
from quiverlog.storage.disk.disk import File
from quiverlog.storage.log.reader import LogReader
from quiverlog.storage.segment.reading_jobs import LoadIndexJob
from quiverlog.storage.segment.scan import Damage
from quiverlog.storage.segment.segment import Segment
from quiverlog.storage.segment.segment_files import SEGMENT_HEADER_BYTES

__all__ = [
    "PIECE_BYTES",
    "PIECE_RECORDS",
    "PREFIX_BYTES",
    "Decoder",
    "Piece",
    "Read",
    "Replay",
    "ReplayJob",
]

PIECE_BYTES: Final = 4 * MIB
"""Read by one job: the last batch of a piece may exceed it."""
PIECE_RECORDS: Final = 1_000
"""From which on a piece ends."""
PREFIX_BYTES: Final = 16 * KIB
"""Of batches of 64 KiB the kernel reads nothing ahead for less."""
_WINDOW_BYTES: Final = 256 * KIB
_BATCHES_MAX: Final = 4_096
"""Of one piece: also batches of which few bytes are read, or none, take time."""


Read = Callable[[int], memoryview]


class Decoder(Protocol):
    """What a job needs of a `Kind`; pure."""

    def decode(
        self, header: BatchHeader, prefix: memoryview, read: Read
    ) -> list[tuple[int, Any]]: ...


class Piece(NamedTuple):
    """`position`, `offset`: where the next one begins. `byte_count`: of the batches passed."""

    records: list[tuple[int, Any]]
    position: int
    offset: int
    byte_count: int


@dataclass(frozen=True, slots=True, eq=False)
class ReplayJob:
    """Read batches from byte `position`, where row `offset` begins, up to row `end_offset` at most.

    Rows below `start_offset` are passed. Raises CorruptLog: bytes are damaged here; OSError;
    UnsupportedFormat: a batch is as it was written, on all replicas, and has no meaning.
    """

    kind: ClassVar[str] = "replay"
    key: str
    segment: Segment
    file: File
    size: int
    position: int
    offset: int
    start_offset: int
    end_offset: int
    decoder: Decoder

    def run(self) -> Piece:
        source = _Window(self.file, self.size)
        records: list[tuple[int, Any]] = []
        position, offset = self.position, self.offset
        for _ in range(_BATCHES_MAX):
            if offset >= self.end_offset:
                break
            header = self._header(source, position, offset)
            if header.next_offset > self.start_offset:
                records += self._rows(source, position, header)
            position += header.total_bytes
            offset = header.next_offset
            # Of large batches perhaps only the beginning is wanted.
            is_small = header.total_bytes <= PREFIX_BYTES
            source.ahead_bytes = _WINDOW_BYTES if is_small else PREFIX_BYTES
            if source.byte_count >= PIECE_BYTES or len(records) >= PIECE_RECORDS:
                break
        assert position > self.position, "a piece has a batch"
        return Piece(records, position, offset, position - self.position)

    def _header(self, source: _Window, position: int, offset: int) -> BatchHeader:
        room = self.size - position
        if room >= BATCH_HEADER_BYTES:
            header = BatchHeader.unpack(source.read(position, BATCH_HEADER_BYTES))
            if header.is_plausible and whole_batch(header, offset, room):
                return header
        raise self._corrupt(position, self.size, offset)

    def _rows(self, source: _Window, position: int, header: BatchHeader) -> list[tuple[int, Any]]:
        total = header.total_bytes

        def read(byte_count: int) -> memoryview:
            assert 0 <= byte_count <= total
            view = source.read(position, byte_count)
            if byte_count == total:
                check_crc(view, header)
            return view

        prefix = source.read(position, min(total, PREFIX_BYTES))
        try:
            found = self.decoder.decode(header, prefix, read)
        except (CorruptBatch, CorruptLog, UnsupportedFormat) as error:
            if not self._is_whole(source, position, header):
                raise self._corrupt(position, position + total, header.base_offset) from error
            raise UnsupportedFormat(
                f"rows {header.base_offset} to {header.next_offset - 1} are as they were written,"
                f" and this version cannot use them: {error.message}"
            ) from error
        if header.base_offset < self.start_offset:
            return [one for one in found if one[0] >= self.start_offset]
        return found

    def _is_whole(self, source: _Window, position: int, header: BatchHeader) -> bool:
        try:
            check_crc(source.read(position, header.total_bytes), header)
        except CorruptBatch:
            return False
        return True

    def _corrupt(self, position: int, end: int, offset: int) -> CorruptLog:
        return self.segment.corrupt(Damage(position, end, offset, max(offset, self.end_offset)))


class _Window:
    """The first `size` bytes of a file, in copies of at least `ahead_bytes`."""

    __slots__ = ("_file", "_size", "_start", "_window", "ahead_bytes", "byte_count")

    def __init__(self, file: File, size: int) -> None:
        self._file = file
        self._size = size
        self._start = 0
        self._window = memoryview(b"")
        self.ahead_bytes = PREFIX_BYTES
        self.byte_count = 0

    def read(self, position: int, size: int) -> memoryview:
        assert position + size <= self._size
        at = position - self._start
        if at < 0 or at + size > len(self._window):
            wanted = min(max(size, self.ahead_bytes), self._size - position)
            data = self._file.read_copy(position, wanted)
            if len(data) < wanted:
                raise StorageFault(f"the file was cut below byte {position + wanted}.")
            self.byte_count += wanted
            self._window, self._start, at = memoryview(data), position, 0
        return self._window[at : at + size]


class Replay:
    """Where the reading of a replica's rows [log start, `end_offset`) has come to.

    One job at a time. Rows that are trimmed meanwhile were read, or are not needed any more: then
    `is_trimmed`, and the reading begins again.
    """

    __slots__ = (
        "_decoder", "_position", "_reader", "_row", "_segment", "byte_count", "end_offset",
        "offset", "start_offset",
    )  # fmt: skip

    def __init__(self, replica: Replica, decoder: Decoder) -> None:
        self._reader: LogReader = replica.log.reader
        self._decoder = decoder
        self._segment: Segment | None = None
        self._position = self._row = 0
        self.start_offset = self.offset = replica.log.log_start_offset
        self.end_offset = replica.log.log_end_offset
        self.byte_count = 0

    @property
    def is_done(self) -> bool:
        return self.offset >= self.end_offset

    @property
    def is_trimmed(self) -> bool:
        return self.offset < self._reader.log_start_offset

    def extend(self) -> bool:
        """Include what was appended since; return whether there is any."""
        assert self.end_offset <= self._reader.log_end_offset, "a leader's log is not cut"
        self.end_offset = self._reader.log_end_offset
        return not self.is_done

    def next_job(self) -> ReplayJob | LoadIndexJob:
        """Raises CorruptLog: rows are missing, or known to be damaged."""
        assert not self.is_done
        segment = self._segment
        if segment is None or self.offset >= segment.end_offset or segment.dropped:
            segment = self._find()
            if self.offset > segment.base_offset and segment.index is None:
                return LoadIndexJob(self._reader.directory, segment)
            self._segment = segment
            self._position, self._row = self._floor(segment)
            assert self._position >= SEGMENT_HEADER_BYTES
        assert segment.base_offset <= self._row <= self.offset
        end_offset = min(self.end_offset, segment.end_offset)
        for damage in segment.damages:
            if damage.offset < end_offset and damage.end_offset > self.offset:
                raise segment.corrupt(damage)
        return ReplayJob(
            self._reader.directory,
            segment,
            segment.file,
            segment.file.size,
            self._position,
            self._row,
            self.start_offset,
            end_offset,
            self._decoder,
        )

    def _find(self) -> Segment:
        reader = self._reader
        number = reader.files.number_of(self.offset)
        segment = reader.segments[number] if number >= 0 else None
        if segment is None or not segment.base_offset <= self.offset < segment.end_offset:
            bounds = (reader.log_start_offset, reader.log_end_offset)
            raise reader.files.missing(number, reader.directory, *bounds)
        return segment

    def _floor(self, segment: Segment) -> tuple[int, int]:
        """Return the byte and the row of a batch at or before `offset`."""
        index = segment.index
        position, first = SEGMENT_HEADER_BYTES, segment.base_offset
        if self.offset == first or index is None or not len(index):
            return position, first
        entry = index.entry_at_offset(self.offset - first)
        if segment.base_offset + index.relative_offsets[entry] <= self.offset:
            position = index.positions[entry]
            first = segment.base_offset + index.relative_offsets[entry]
        for damage in segment.damages:  # An entry inside of damage may be wrong.
            if damage.end_offset <= self.offset and damage.end_position > position:
                position, first = damage.end_position, damage.end_offset
        return position, first

    def passed(self, piece: Piece) -> None:
        assert piece.offset > self._row
        assert piece.position > self._position
        self._position, self._row = piece.position, piece.offset
        self.offset = max(self.offset, piece.offset)
        self.byte_count += piece.byte_count
