"""Reading the files of a broker on this machine: rows that need not cross a socket.

Owns the question whether a broker is asked for ranges of its files instead of rows, and the thread
that reads such ranges ahead, while the program is busy with the rows before. Whatever goes wrong
with a file (another user's, another container's, deleted since) is no failure: the rows are asked
for again, to be sent, and the broker's files are left alone for a while.

Must not know: connections, retries, how a file is read (file_rows.py), what rows mean.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final

import msgspec

from quiverlog.wire.messages import FetchRequest, FetchResponse

from .file_rows import FileRows
from .results import Address

__all__ = ["FileReading", "LocalReads", "asks_for_ranges", "has_ranges"]

LEFT_ALONE_S: Final = 60.0
"""After a failure. An attempt in vain costs one more answer, which has no rows."""

logger = logging.getLogger("quiverlog")


class FileReading:
    """Rows that are read by a thread, if there is one for it, and by who waits for them."""

    __slots__ = ("_file_rows", "_under_way")

    def __init__(self, file_rows: FileRows) -> None:
        self._file_rows = file_rows
        self._under_way: Future[None] | None = None

    def begin(self, threads: ThreadPoolExecutor) -> None:
        """Have a thread read them.

        Raises:
            RuntimeError: the system gives no thread.
        """
        self._under_way = threads.submit(self._file_rows.read)

    def finish(self) -> memoryview:
        """The whole body. What no thread has begun by now is read here.

        Raises:
            OSError: as for `FileRows.read`.
        """
        if self._under_way is None or self._under_way.cancel():
            self._file_rows.read()
        else:
            self._under_way.result()
        return self._file_rows.rows


class LocalReads:
    """Of which brokers the files are tried, and the thread of one client; threads may share it."""

    __slots__ = ("_clock", "_is_closed", "_left_until_s", "_lock", "_threads")

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._left_until_s: dict[Address, float] = {}
        self._lock = threading.Lock()
        self._threads: ThreadPoolExecutor | None = None
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
            if self._threads is None:
                self._threads = ThreadPoolExecutor(1, thread_name_prefix="quiverlog-local-read")
            try:
                reading.begin(self._threads)
            except RuntimeError as error:  # no thread is left, or the interpreter ends
                logger.debug("nothing is read ahead: %s", error)
                # It lies in the queue all the same, for a thread that begins when somebody else
                # has read it already.
                self._threads.shutdown(wait=False, cancel_futures=True)
                self._threads = None

    def close(self) -> None:
        """The thread ends after what it reads now, which is not waited for."""
        with self._lock:
            self._is_closed = True
            if self._threads is not None:
                self._threads.shutdown(wait=False, cancel_futures=True)


def asks_for_ranges(request: FetchRequest) -> FetchRequest:
    """The same request, by a reader that can open the broker's files."""
    return msgspec.structs.replace(request, file_ranges=True)


def has_ranges(response: FetchResponse) -> bool:
    """True when some of the rows are to be read from files."""
    return any(result.file_ranges for result in response.partitions)
