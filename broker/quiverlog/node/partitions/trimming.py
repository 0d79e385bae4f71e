"""Giving up the oldest rows of logs, for retention and DELETE_RECORDS.

At most one trim of a log at a time. Where files go or a client deletes, the new log start is on the
disk before readers lose the rows; files go after that.
"""

from __future__ import annotations

from collections import deque
from functools import partial

from quiverlog.errors import DiskFull, NotLeader, UnknownTopicId
from quiverlog.node.partitions.flushing import Flushes
from quiverlog.node.partitions.replica import Replica
from quiverlog.node.runtime.admission import Admission
from quiverlog.node.runtime.jobs import Jobs, Starter, Then, Urgency
from quiverlog.node.runtime.outbox import Outbox
from quiverlog.node.runtime.purgatory import Wakeups
from quiverlog.storage.log.jobs import RemoveFilesJob, TrimJob, TrimResult
from quiverlog.types import Now

__all__ = ["Trims"]


class Trims:
    __slots__ = ("_admission", "_flushes", "_jobs", "_outbox", "_under_way", "_wakeups")

    def __init__(
        self, jobs: Jobs, wakeups: Wakeups, flushes: Flushes, admission: Admission, outbox: Outbox
    ) -> None:
        self._jobs = jobs
        self._wakeups = wakeups
        self._flushes = flushes
        self._admission = admission
        self._outbox = outbox
        # By replica: the trims that wait for the one under way.
        self._under_way: dict[Replica, deque[tuple[int, Then, bool]]] = {}

    def busy(self, replica: Replica) -> bool:
        return replica in self._under_way

    def trim(self, replica: Replica, offset: int, now: Now, then: Then, *, promised: bool) -> None:
        """Give up the rows below `offset`; `then` gets the RemoveFilesJob that has begun, or None.

        `then` gets an error when nothing changed.

        Args:
            promised: by an answer to a client. What retention takes is not recorded before it
                frees a file.
        """
        assert offset >= 0
        assert not replica.deleted
        waiting = self._under_way.get(replica)
        if waiting is not None:
            waiting.append((offset, then, promised))
            return  # One trim of a log at a time.
        job = replica.log.begin_trim(offset, promised=promised)
        if job is None:
            self._start_moved(replica)
            then(None, None, now)
            return
        # A client waits for a promised start.
        urgency = Urgency.READ if promised else Urgency.BACKGROUND
        self._under_way[replica] = deque()
        replica.jobs_running += 1
        self._jobs.start(job, partial(self._written, replica, job, then), urgency)

    def starter(self, replica: Replica, offset: int, now: Now) -> Starter:
        return lambda then: self.trim(replica, offset, now, then, promised=True)

    def _written(
        self,
        replica: Replica,
        job: TrimJob,
        then: Then,
        result: object,
        error: BaseException | None,
        now: Now,
    ) -> None:
        waiting = self._under_way.pop(replica, None)
        if waiting is None:
            then(None, error, now)
            return
        replica.jobs_running -= 1
        assert replica.jobs_running >= 0
        files: RemoveFilesJob | None = None
        if error is not None:
            replica.log.fail_trim(job, error)
            if replica.log.fault and not replica.deleted:
                self._flushes.declare_fault(replica, replica.log.fault, now)
            if isinstance(error, DiskFull):
                self._admission.disk_filled()
        elif replica.deleted:
            error = UnknownTopicId(f"{replica.name} was deleted.")
        else:
            assert isinstance(result, TrimResult)
            files = replica.log.complete_trim(job, result)
            assert replica.log.log_start_offset >= replica.state.log_start_offset
            self._start_moved(replica)
            if files is not None:
                self._remove_files(replica, files)
            self._flushes.appended(replica)
            self._wakeups.grown(replica)  # Copies follow the start that is on the disk.
        try:
            then(files, error, now)
        finally:
            for offset, next_then, promised in waiting:
                self._again(replica, offset, now, next_then, promised)

    def _start_moved(self, replica: Replica) -> None:
        if replica.log.log_start_offset > replica.state.log_start_offset:
            replica.state.trimmed(replica.log.log_start_offset)
            self._wakeups.changed(replica)

    def _again(self, replica: Replica, offset: int, now: Now, then: Then, promised: bool) -> None:
        if replica.deleted:
            then(None, UnknownTopicId(f"{replica.name} was deleted."), now)
            return
        if not replica.state.leads:
            then(None, NotLeader(f"{replica.name} is led elsewhere."), now)
            return
        try:
            self.trim(replica, offset, now, then, promised=promised)
        except Exception as error:
            then(None, error, now)

    def _remove_files(self, replica: Replica, files: RemoveFilesJob) -> None:
        replica.jobs_running += 1
        self._jobs.start(files, partial(self._removed, [replica]), Urgency.BACKGROUND)

    def _removed(
        self, replicas: list[Replica], _result: object, error: BaseException | None, _now: Now
    ) -> None:
        while replicas:
            replica = replicas.pop()
            replica.jobs_running -= 1
            assert replica.jobs_running >= 0
            if error is not None:
                # The next start removes them: they lie below the log start.
                self._outbox.log(
                    "warning", "files not removed", partition=str(replica.name), why=str(error)
                )
