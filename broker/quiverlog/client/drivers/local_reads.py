"""Reading the files of a broker on this machine, and memory for received rows.

Owns whether a broker is asked for ranges of its files instead of rows, and the thread that reads
them ahead. Whatever goes wrong with a file (another user's, another container's, deleted) is no
failure: the rows are asked for again and the files are left alone for a while. Received rows lie
in Arrow's memory, whose huge pages are reused, and `pyarrow.total_allocated_bytes` counts them.

Must not know: connections, retries, what rows mean.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
import weakref
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Final, TypeAlias

import msgspec

from quiverlog.client.base.results import Address
from quiverlog.client.rows.file_rows import FileRows
from quiverlog.wire.messages import FetchRequest, FetchResponse

__all__ = [
    "ArrowMemory",
    "FileReading",
    "LocalReads",
    "asks_for_ranges",
    "has_ranges",
]


LEFT_ALONE_S: Final = 60.0
"""After a failure. An attempt in vain costs one more answer, which has no rows."""

logger = logging.getLogger("quiverlog")

Queue: TypeAlias = "SimpleQueue[FileReading | None]"
"""None ends the thread."""


class FileReading:
    """Rows that are read by a thread, or by who needs them: whoever comes first.

    Made of bare locks: those of `concurrent.futures` are taken in Python, where Ctrl-C may come
    between taking and noting it, and then the thread waits forever, and the end of the process for
    the thread.
    """

    __slots__ = ("_failure", "_file_rows", "_is_begun", "_is_under_way")

    def __init__(self, file_rows: FileRows) -> None:
        self._file_rows = file_rows
        self._failure: BaseException | None = None
        self._is_begun = threading.Lock()
        """Taken by who reads, and never given back."""
        self._is_under_way = threading.Lock()
        """Given back by the thread, when it has read."""
        self._is_under_way.acquire()

    def read_here(self) -> None:
        """What the thread does. Failures are kept for who waits."""
        if not self._is_begun.acquire(blocking=False):
            return
        try:
            self._file_rows.read()
        except BaseException as error:
            self._failure = error
        finally:
            self._is_under_way.release()

    @property
    def is_begun(self) -> bool:
        """Somebody reads, or has read."""
        return self._is_begun.locked()

    def finish(self) -> memoryview:
        """The whole body. What no thread has begun by now is read here.

        Raises:
            OSError: as for `FileRows.read`.
        """
        if self._is_begun.acquire(blocking=False):
            self._file_rows.read()
        else:
            self._is_under_way.acquire()
            failure, self._failure = self._failure, None
            if failure is not None:
                try:
                    raise failure
                finally:
                    del failure  # It holds this frame, and so the rows.
        return self._file_rows.rows


class LocalReads:
    """Of which brokers the files are tried, and the thread of one client; threads may share it."""

    __slots__ = ("__weakref__", "_clock", "_is_closed", "_left_until_s", "_lock", "_queue")

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._left_until_s: dict[Address, float] = {}
        self._lock = threading.Lock()
        self._queue: Queue | None = None
        """Of the thread, once there is one."""
        self._is_closed = False

    def are_tried(self, address: Address) -> bool:
        """False for a while after files of this broker could not be read."""
        return self._left_until_s.get(address, -1.0) < self._clock()

    def failed(self, address: Address, error: OSError) -> None:
        """A file could not be read: rows of this broker come through the socket for now."""
        logger.debug("rows of %s are received, its files cannot be read: %s", address, error)
        self._left_until_s[address] = self._clock() + LEFT_ALONE_S

    def read_ahead(self, reading: FileReading) -> None:
        """Have it read meanwhile, if there is a thread for that."""
        with self._lock:
            if self._is_closed:
                return
            if self._queue is None:
                try:
                    self._queue = _begun_thread(self)
                except RuntimeError as error:  # no thread is left, or the interpreter ends
                    logger.debug("nothing is read ahead: %s", error)
                    return
            self._queue.put(reading)

    def close(self) -> None:
        """The thread ends after what it reads now, which is not waited for."""
        with self._lock:
            self._is_closed = True
            if self._queue is not None:
                _end(self._queue)


def _begun_thread(owner: LocalReads) -> Queue:
    """What a new thread takes its work from, until its owner is closed or forgotten.

    A daemon: what it reads at the end of the process nobody needs, and it holds nothing.

    Raises:
        RuntimeError: the system gives no thread.
    """
    queue: Queue = SimpleQueue()
    name = "quiverlog-local-read"
    threading.Thread(target=_read_all, args=(queue,), name=name, daemon=True).start()
    weakref.finalize(owner, _end, queue).atexit = False
    return queue


def _read_all(queue: Queue) -> None:
    while (reading := queue.get()) is not None:
        reading.read_here()
        del reading  # and its rows, while the next ones are waited for


def _end(queue: Queue) -> None:
    with contextlib.suppress(Empty):
        while True:
            queue.get_nowait()
    queue.put(None)


def asks_for_ranges(request: FetchRequest) -> FetchRequest:
    """The same request, by a reader that can open the broker's files."""
    return msgspec.structs.replace(request, file_ranges=True)


def has_ranges(response: FetchResponse) -> bool:
    """True when some of the rows are to be read from files."""
    return any(result.file_ranges for result in response.partitions)


# Memory that a client receives rows into: Arrow's own.
class ArrowMemory:
    """Buffers from Arrow's default memory pool; as `wire.buffers.Memory`."""

    __slots__ = ()

    def take(self, size: int) -> memoryview:
        """A writable view of `size` bytes, aligned to 64, of arbitrary content."""
        assert size > 0
        import pyarrow as pa  # with the first large frame: commands without rows do without

        return memoryview(pa.allocate_buffer(size)).cast("B")
