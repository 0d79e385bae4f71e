"""The fsyncs of one log's rows, whoever asks for them: after one that failed none proves anything.

The kernel tells of pages that it could not write once, and drops them: the next fsync succeeds
without the rows. The loop hears of a failure when its job is back, and by then the log's next job
may have run. So the jobs of a log, which run one after another, tell each other here; a recovery
point, a mark or a producer snapshot that follows a failed fsync would vouch for rows on no disk.
"""

from __future__ import annotations

from collections.abc import Callable

from quiverlog.errors import StorageFault
from quiverlog.storage.disk import Disk, out_of_descriptors, short_name
from quiverlog.storage.segment import Segment

__all__ = ["Fsyncs"]


class Fsyncs:
    """See the module docstring. For the log's jobs alone: the loop goes by `Log.fault`."""

    __slots__ = ("_failure",)

    def __init__(self) -> None:
        self._failure = ""

    def rows(self, segment: Segment) -> None:
        """Bring a segment's bytes to the disk; one whose file was given up and is gone has none.

        Raises:
            StorageFault: an earlier fsync of this log failed.
            OSError: this one did.
        """
        try:
            self._sync(segment.file.sync, segment.path)
        except FileNotFoundError as error:
            if not segment.dropped:
                self._failure = str(error)
                raise

    def names(self, disk: Disk, directory: str) -> None:
        """Make the names of the log's files durable. Raises as `rows`."""
        self._sync(lambda: disk.sync_dir(directory), directory)

    def _sync(self, call: Callable[[], None], path: str) -> None:
        if self._failure:
            raise StorageFault(f"{short_name(path)}: an earlier flush failed: {self._failure}.")
        try:
            call()
        except FileNotFoundError:
            raise
        except BaseException as error:
            if not out_of_descriptors(error):  # Then nothing was tried.
                self._failure = str(error) or type(error).__name__
            raise
