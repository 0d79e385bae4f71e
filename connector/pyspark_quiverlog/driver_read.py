"""Small micro-batches of a stream are read by the driver, without a Python task.

Rows are fetched when the micro-batch's end is chosen, in a thread, while Spark logs that end;
`_compat.hand_over` delivers them. Tasks read all else, and report errors: a replay, a micro-batch
above the bounds or with several tasks, what a fetch did not bring in time.
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
"""Bound on a micro-batch through the driver, as decoded Arrow."""

TAKE_SECONDS_MAX: Final = 0.5
"""How long planning waits for a fetch. A task that reads instead has the whole
`request.timeout`."""

logger = logging.getLogger("pyspark_quiverlog")


class DriverRead:
    """The rows of at most one micro-batch. Called by Spark's one thread; `read` reads a split, as a
    task does."""

    def __init__(
        self, options: ReadOptions, read: Callable[[Any], Iterator[pa.RecordBatch]]
    ) -> None:
        self._rows_max = options.driver_read_rows
        self._read = read
        self._threads = ThreadPoolExecutor(1, thread_name_prefix="quiverlog-driver-read")
        self._key: tuple[Any, Any] | None = None
        self._split: Any = None
        self._rows: Future[list[pa.RecordBatch] | None] | None = None
        self._late: Future[Any] | None = None

    @staticmethod
    def is_wanted(options: ReadOptions) -> bool:
        return (
            options.driver_read_rows > 0
            and options.fetch_from == "leader"  # the driver reads leaders alone
            and _compat.rows_wrapper() is not None
        )

    def begin(self, key: tuple[Any, Any], splits: list[Any]) -> None:
        """Fetch the micro-batch `key` (start and end offset) if it is small enough."""
        self._key, self._rows = key, None
        if len(splits) != 1 or (self._late is not None and not self._late.done()):
            return  # after a fetch that hangs it would be late as well
        if 0 < splits[0].rows <= self._rows_max:
            self._split = splits[0]
            self._rows = self._threads.submit(self._fetch, splits[0])

    def take(self, key: tuple[Any, Any], splits: list[Any]) -> list[pa.RecordBatch] | None:
        """Return the rows of this micro-batch, once; None: tasks read these splits."""
        rows, self._rows = self._rows, None
        if rows is None or key != self._key:
            return None
        planned = [split.value for split in splits]
        assert planned == [self._split.value], "the rows of another plan would take its place"
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
            # A task reads them again, and fails with this error or succeeds.
            logger.info("the driver could not read a small micro-batch: %s", error)
            return None
        assert sum(batch.num_rows for batch in batches) <= split.rows, "a row was read twice"
        return batches or None
