"""Reading the files of a broker on this machine: rows that need not cross a socket.

Owns the question whether a broker is asked for ranges of its files instead of rows, and the reading
of such ranges. Whatever goes wrong with a file (another user's, another container's, deleted since)
is no failure: the rows are asked for again, to be sent, and the broker's files are left alone for a
while. What is read is checked like what is received.

A file of that name, device and inode may have other rows by the time that it is read: an answer
lies in the socket for as long as the program is busy, in which a log may be cut and written anew,
or a topic be deleted and made again (file systems give an inode to the next file). So it has to
hold the last batch that was told of, after all were read: where that is, so are those before it.

The files are read, not mapped: one that is cut meanwhile gives fewer bytes, where a mapping would
end the process. See docs/adr/0068.

Must not know: connections, retries, what rows mean.
"""

from __future__ import annotations

import logging
import os
import stat
import time
from collections.abc import Callable
from typing import Final

import msgspec

from quiverlog.batch.header import peek
from quiverlog.errors import InvalidResponse
from quiverlog.limits import BATCH_HEADER_BYTES, FRAME_BYTES_MAX
from quiverlog.wire.buffers import Memory
from quiverlog.wire.messages import FetchPartitionResult, FetchRequest, FetchResponse, FileRange

from .results import Address

__all__ = ["LocalReads", "asks_for_ranges", "with_file_rows"]

LEFT_ALONE_S: Final = 60.0
"""After a failure. An attempt in vain costs one more answer, which has no rows."""

logger = logging.getLogger("quiverlog")


class LocalReads:
    """Of which brokers the files are tried; threads may share it."""

    __slots__ = ("_clock", "_left_until_s")

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._left_until_s: dict[Address, float] = {}

    def are_tried(self, address: Address) -> bool:
        """False for a while after files of this broker could not be read."""
        return self._left_until_s.get(address, -1.0) < self._clock()

    def failed(self, address: Address, error: OSError) -> None:
        """A file could not be read: rows of this broker come through the socket for now."""
        logger.debug("rows of %s are received, its files cannot be read: %s", address, error)
        self._left_until_s[address] = self._clock() + LEFT_ALONE_S


def asks_for_ranges(request: FetchRequest) -> FetchRequest:
    """The same request, by a reader that can open the broker's files."""
    return msgspec.structs.replace(request, file_ranges=True)


def with_file_rows(response: FetchResponse, body: memoryview, memory: Memory) -> memoryview:
    """The body as it would have been sent; the response is made to say the same.

    Raises:
        OSError: a file cannot be read, or is not the one that was meant.
        InvalidResponse: the sizes contradict each other.
    """
    results = response.partitions
    if not any(result.file_ranges for result in results):
        return body
    total = sum(map(_bytes_of, results))
    sent_bytes = sum(result.batch_bytes for result in results if not result.file_ranges)
    if sent_bytes != len(body):
        raise InvalidResponse(f"A fetch's parts have {sent_bytes} bytes, its body {len(body)}.")
    if total > FRAME_BYTES_MAX:
        raise InvalidResponse(f"A fetch was answered with {total} bytes in files.")
    rows = memory.take(total)[:total]
    at = sent_at = 0
    for result in results:
        end = at + result.batch_bytes
        if result.file_ranges:
            for one in result.file_ranges:
                _read(one, rows[at : at + one.byte_count])
                at += one.byte_count
        else:
            rows[at:end] = body[sent_at : sent_at + result.batch_bytes]
            sent_at += result.batch_bytes
            at = end
    for result in results:
        result.file_ranges = []
    return rows


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


def _read(one: FileRange, room: memoryview) -> None:
    """Fill `room` with the range's bytes."""
    fd = _opened(one)
    try:
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
    finally:
        os.close(fd)


def _opened(one: FileRange) -> int:
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
    except BaseException:
        os.close(fd)
        raise
    return fd


def _check_is_meant(one: FileRange, found: os.stat_result) -> None:
    meant = (one.device, one.inode)
    if not stat.S_ISREG(found.st_mode) or (found.st_dev, found.st_ino) != meant:
        raise OSError(f"{one.path} is another file here")
