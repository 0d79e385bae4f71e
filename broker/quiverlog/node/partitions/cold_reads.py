"""Reading what is not in memory: a job loads it, and the caller reads again.

The loop reads what is in memory, and what a job has just read, even if the kernel has evicted it
again; everything else is loaded by a job.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final, Protocol

from quiverlog.errors import QuiverlogError, StorageFault, ThrottledBroker, UnsupportedFormat
from quiverlog.node.partitions.replica import Replica
from quiverlog.node.runtime.jobs import Jobs, Starter, Then, Urgency
from quiverlog.storage.disk.disk import out_of_descriptors, what_failed
from quiverlog.storage.segment.reading_jobs import LoadIndexJob, NotResident, ReadingJob
from quiverlog.storage.segment.segment import Segment
from quiverlog.types import Now

__all__ = ["Loaded", "cold_read", "start_cold"]

_LOADS_OF_A_SEGMENT_MAX: Final = 12
"""A read needs at most 6 jobs of one segment; twice that, as the kernel may evict pages between."""


class Bugs(Protocol):
    def internal_error(self, where: str, error: BaseException) -> None:
        """Count it and write a line."""


class Loaded:
    """What jobs have loaded for one question, with which the log is asked again.

    `reads`: the ranges that were read or checked. `offset`, `counted`, `first_us`: where a walk
    goes on, the bytes before it, and the time of its first row. `error`: why the last job failed;
    no other will do better.
    """

    __slots__ = ("_loads", "_segment", "counted", "error", "first_us", "offset", "reads")

    def __init__(self) -> None:
        self.reads: list[ReadingJob] = []
        self.offset = 0
        self.counted = 0
        self.first_us = -1
        self.error: QuiverlogError | None = None
        self._segment: Segment | None = None
        self._loads = 0

    def take(self, cold: NotResident) -> None:
        """Raises ThrottledBroker: memory loses it as fast as it is loaded."""
        assert self.error is None, "nothing is loaded after a failure"
        job = cold.job
        if job.segment is not self._segment:
            self._segment, self._loads = job.segment, 0
            self.reads.clear()
        self._loads += 1
        if self._loads > _LOADS_OF_A_SEGMENT_MAX:
            raise ThrottledBroker("memory is too short for what was asked: try again.")
        if not isinstance(job, LoadIndexJob):
            self.reads.append(job)
        self.offset, self.counted, self.first_us = cold.offset, cold.counted, cold.first_us

    def failed(self, error: BaseException | None, bugs: Bugs) -> None:
        """Record why the job failed. The caller reads again where descriptors had run out."""
        if error is None or out_of_descriptors(error):
            return
        if isinstance(error, OSError):
            error = StorageFault(f"reading failed: {what_failed(error)}.")
        elif not isinstance(error, QuiverlogError):
            bugs.internal_error("reading what is not in memory", error)
            error = QuiverlogError()
        self.error = error


def start_cold(
    jobs: Jobs, replica: Replica, cold: NotResident, then: Then, urgency: Urgency = Urgency.READ
) -> None:
    """`then` is called when the result is in the log, or with the job's error."""
    replica.jobs_running += 1
    jobs.start(cold.job, partial(_done, replica, cold.job, [then]), urgency)


def cold_read(
    jobs: Jobs,
    replica: Replica,
    cold: NotResident,
    on_failure: Callable[[Replica, BaseException], None],
) -> Starter:
    def start(then: Then) -> None:
        def back(result: object, error: BaseException | None, now: Now) -> None:
            if error is not None:
                on_failure(replica, error)
            then(result, error, now)

        start_cold(jobs, replica, cold, back)

    return start


def _done(
    replica: Replica,
    job: ReadingJob,
    waiting: list[Then],
    result: object,
    error: BaseException | None,
    now: Now,
) -> None:
    if not waiting:
        return  # The callback raised, and is called with that: the log has no failure to record.
    then = waiting.pop()
    replica.jobs_running -= 1
    assert replica.jobs_running >= 0
    if job.segment.dropped:
        error = None  # Its rows were given up meanwhile: the next read gets the log's error.
    elif isinstance(error, UnsupportedFormat):
        # Found when a partition is opened, nearly always; clients expect no such error of a read.
        error = StorageFault(error.message)
    try:
        if error is None and not replica.deleted:
            replica.log.reader.complete_read(job, result)
    except Exception as failure:
        error = failure
    then(result, error, now)
