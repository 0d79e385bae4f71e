"""The rows of an answer that lie in files of this machine: which file is meant, and reading it.

What a broker says of its files is not believed: sizes are compared, and what is read is checked
like what is received.

A file of that name, device and inode may have other rows by the time that it is read: an answer
lies in the socket for as long as the program is busy, in which a log may be cut and written anew,
or a topic be deleted and made again (file systems give an inode to the next file). So it has to
hold the last batch that was told of, after all were read: where that is, so are those before it.

The files are read, not mapped: one that is cut meanwhile gives fewer bytes, where a mapping would
end the process. See docs/adr/0068.

Must not know: connections, threads, what rows mean.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager

from quiverlog.batch.header import peek
from quiverlog.errors import InvalidResponse
from quiverlog.limits import BATCH_HEADER_BYTES, FRAME_BYTES_MAX
from quiverlog.wire.buffers import Memory
from quiverlog.wire.messages import FetchPartitionResult, FetchResponse, FileRange

__all__ = ["FileRows"]


class FileRows:
    """Room for an answer's rows, and what is to be read into it. `rows` are whole after `read`.

    Nobody else has the room before that: who reads may be interrupted or left behind, and what it
    still writes harms nobody.

    Args:
        response: made to say what it would have said of rows that were sent.
        body: what was sent, of partitions whose rows are not in files.

    Raises:
        InvalidResponse: the sizes contradict each other.
    """

    __slots__ = ("_ranges", "rows")

    def __init__(self, response: FetchResponse, body: memoryview, memory: Memory) -> None:
        results = response.partitions
        total = sum(map(_bytes_of, results))
        sent_bytes = sum(result.batch_bytes for result in results if not result.file_ranges)
        if sent_bytes != len(body):
            raise InvalidResponse(f"A fetch's parts have {sent_bytes} bytes, its body {len(body)}.")
        if total > FRAME_BYTES_MAX:
            raise InvalidResponse(f"A fetch was answered with {total} bytes in files.")
        self.rows = memory.take(total)[:total]
        self._ranges: list[tuple[FileRange, memoryview]] = []
        at = sent_at = 0
        for result in results:
            end = at + result.batch_bytes
            if not result.file_ranges:
                self.rows[at:end] = body[sent_at : sent_at + result.batch_bytes]
                sent_at += result.batch_bytes
            for one in result.file_ranges:
                self._ranges.append((one, self.rows[at : at + one.byte_count]))
                at += one.byte_count
            at = end
            result.file_ranges = []

    def read(self) -> None:
        """Read what lies in files, on whatever thread.

        Raises:
            OSError: a file cannot be read, or is not the one that was meant.
        """
        for one, room in self._ranges:
            with _opened(one) as fd:
                _read(one, fd, room)


def _bytes_of(result: FetchPartitionResult) -> int:
    """Bytes of one partition's rows, which its ranges have together."""
    ranges = result.file_ranges
    if result.batch_bytes < 0 or any(one.byte_count <= 0 or one.position < 0 for one in ranges):
        raise InvalidResponse(f"partition {result.partition}: ranges {ranges[:3]} were answered.")
    if not all(_last_fits(one) for one in ranges):
        raise InvalidResponse(
            f"partition {result.partition}: a range does not hold its last batch."
        )
    if ranges and sum(one.byte_count for one in ranges) != result.batch_bytes:
        raise InvalidResponse(
            f"partition {result.partition}: its ranges do not have {result.batch_bytes} bytes."
        )
    return result.batch_bytes


def _last_fits(one: FileRange) -> bool:
    if len(one.last_header) != BATCH_HEADER_BYTES:
        return False
    _, _, last_bytes = peek(one.last_header)
    return BATCH_HEADER_BYTES <= last_bytes <= one.byte_count


def _read(one: FileRange, fd: int, room: memoryview) -> None:
    """Fill `room` with the range's bytes."""
    position = one.position
    while room:
        count = os.preadv(fd, [room], position)
        if not count:
            raise OSError(f"{one.path} ends at {position}")
        position += count
        room = room[count:]
    _, _, last_bytes = peek(one.last_header)
    if os.pread(fd, BATCH_HEADER_BYTES, position - last_bytes) != one.last_header:
        raise OSError(f"{one.path} has other rows by now")


@contextmanager
def _opened(one: FileRange) -> Iterator[int]:
    """A descriptor of the file that is meant.

    It is looked at before it is opened: to open a pipe lets its writer go on, into nothing, and to
    open a device may start what it drives. Whatever takes its name after that is not waited for.
    """
    try:
        _check_is_meant(one, os.stat(one.path))
        fd = os.open(one.path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except ValueError as error:  # a name that no system would take
        raise OSError(f"{one.path!r}: {error}") from error
    try:
        _check_is_meant(one, os.fstat(fd))
        yield fd
    finally:
        os.close(fd)


def _check_is_meant(one: FileRange, found: os.stat_result) -> None:
    meant = (one.device, one.inode)
    if not stat.S_ISREG(found.st_mode) or (found.st_dev, found.st_ino) != meant:
        raise OSError(f"{one.path} is another file here")
