"""Small micro-batches of a stream are read by the driver, and Spark needs no Python task for them.

Owns when a micro-batch is small enough, and the rows between planning and their delivery: they are
fetched as soon as its end is known, in a thread of the driver's source process, while Spark writes
that end to its log. `_compat.hand_over` hands them over.

Whatever is not so, or goes wrong, goes the ordinary way: a replay after a restart, a micro-batch
with more rows or bytes than the bounds or with more than one task, a fetch that fails or is slow. A
task then reads the same ranges and tells what is wrong with them, after Spark's own retries.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from typing import TYPE_CHECKING, Any, Final

from . import _compat
from .options import ReadOptions

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["DRIVER_READ_BYTES", "TAKE_SECONDS_MAX", "DriverRead"]

DRIVER_READ_BYTES: Final = 1024 * 1024
"""More than this of one micro-batch is not sent through the driver. Arrow bytes, as decoded."""

TAKE_SECONDS_MAX: Final = 0.5
"""How long planning waits for rows under way. A fetch takes a few milliseconds and began before
Spark wrote its log; one that is late meets a broker that is slow or gone, and a task, which has the
whole `request.timeout` and Spark's retries, loses no more than this by starting later."""

logger = logging.getLogger("pyspark_quiverlog")


class DriverRead:
    """The rows of at most one micro-batch, under way or here. Called by Spark's one thread.

    `read`: what a task does with one split.
    """

    def __init__(
        self, options: ReadOptions, read: Callable[[Any], Iterator[pa.RecordBatch]]
    ) -> None:
        self._rows_max = options.driver_read_rows
        self._read = read
        self._threads = ThreadPoolExecutor(1, thread_name_prefix="quiverlog-driver-read")
        self._key: tuple[Any, Any] | None = None
        self._rows: Future[list[pa.RecordBatch] | None] | None = None
        self._late: Future[Any] | None = None

    @staticmethod
    def is_wanted(options: ReadOptions) -> bool:
        """A query that says which replicas its tasks shall read means its tasks."""
        return (
            options.driver_read_rows > 0
            and options.fetch_from == "leader"
            and _compat.rows_wrapper() is not None
        )

    def begin(self, key: tuple[Any, Any], splits: list[Any]) -> None:
        """The micro-batch `key` (start and end offset) is going to be these splits."""
        self._key, self._rows = key, None
        if len(splits) != 1 or (self._late is not None and not self._late.done()):
            return  # behind a fetch that hangs it would be late as well
        if 0 < sum(piece.end - piece.start for piece in splits[0].ranges) <= self._rows_max:
            self._rows = self._threads.submit(self._fetch, splits[0])

    def take(self, key: tuple[Any, Any]) -> list[pa.RecordBatch] | None:
        """The rows of this micro-batch, once; None: tasks shall read it."""
        rows, self._rows = self._rows, None
        if rows is None or key != self._key:
            return None
        if not wait_for([rows], TAKE_SECONDS_MAX).done:
            self._late = rows
            logger.info(
                "a small micro-batch is not here after %.1f s: a task reads it", TAKE_SECONDS_MAX
            )
            return None
        return rows.result()

    def _fetch(self, split: Any) -> list[pa.RecordBatch] | None:
        batches, size = [], 0
        try:
            for batch in self._read(split):
                batches.append(batch)
                size += batch.nbytes
                if size > DRIVER_READ_BYTES:
                    return None
        except Exception as error:
            # A task reads them again, and fails with this or does not.
            logger.info("the driver could not read a small micro-batch: %s", error)
            return None
        return batches or None
