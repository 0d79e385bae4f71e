"""Reading a broker's files on this machine, in place of rows that it would send (docs/adr/0068).

The answer is not trusted: sizes are compared, and rows checked like received ones. A file that
cannot be read (another user's, another container's, deleted) is no error: the client asks for the
rows again, and for files not for a while.
"""

from __future__ import annotations

import logging
import os
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import msgspec

from quiverlog.batch.header import peek
from quiverlog.client.base.results import Address
from quiverlog.errors import InvalidResponse
from quiverlog.limits import BATCH_HEADER_BYTES, FRAME_BYTES_MAX
from quiverlog.wire.buffers import Memory
from quiverlog.wire.messages import FetchPartitionResult, FetchRequest, FetchResponse, FileRange

__all__ = [
    "FileRows",
    "LocalReads",
    "asks_for_ranges",
    "has_ranges",
]


# Each failed attempt costs one more answer.
LEFT_ALONE_S: Final = 60.0

logger = logging.getLogger("quiverlog")


# A file of that name, device and inode may have other rows when it is read: an answer waits in the
# socket while the log is cut and written anew, or the topic deleted and created again (file systems
# reuse inodes). So the file must hold the last batch that the broker named, after all were read:
# then it holds those before, too. Files are read, not mapped: reading a cut file gives fewer bytes,
# where a mapping would kill the process.
class FileRows:
    """A buffer for an answer's rows, and the ranges to read. `rows` are complete after `read`.

    Args:
        response: becomes what it would be if the broker had sent the rows.
        body: the rows that were sent, of partitions without ranges.

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
        """Raises OSError: a file cannot be read, or is not the broker's."""
        for one, room in self._ranges:
            with _opened(one) as fd:
                _read(one, fd, room)


def _bytes_of(result: FetchPartitionResult) -> int:
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
    # Checked before: opening a pipe would unblock its writer, a device may start its hardware.
    # Another file may take its place until it is opened: so opened without waiting, and checked
    # again.
    try:
        _check_identity(one, os.stat(one.path))
        fd = os.open(one.path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except ValueError as error:  # a name that systems refuse
        raise OSError(f"{one.path!r}: {error}") from error
    try:
        _check_identity(one, os.fstat(fd))
        yield fd
    finally:
        os.close(fd)


def _check_identity(one: FileRange, found: os.stat_result) -> None:
    named = (one.device, one.inode)
    if not stat.S_ISREG(found.st_mode) or (found.st_dev, found.st_ino) != named:
        raise OSError(f"{one.path} is another file here")


class LocalReads:
    __slots__ = ("_clock", "_left_until_s")

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._left_until_s: dict[Address, float] = {}

    def are_tried(self, address: Address) -> bool:
        return self._left_until_s.get(address, -1.0) < self._clock()

    def failed(self, address: Address, error: OSError) -> None:
        logger.debug("rows of %s are received, its files cannot be read: %s", address, error)
        self._left_until_s[address] = self._clock() + LEFT_ALONE_S


def asks_for_ranges(request: FetchRequest) -> FetchRequest:
    return msgspec.structs.replace(request, file_ranges=True)


def has_ranges(response: FetchResponse) -> bool:
    return any(result.file_ranges for result in response.partitions)
