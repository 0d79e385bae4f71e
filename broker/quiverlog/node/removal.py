"""The files of deleted partitions, taken away a few at a time.

Owns the queue of replicas that no topic has any more: one job at a time removes the next few, and a
replica waits until no job uses its files. A stop goes on for a few jobs only, as freeing large
files takes its time; the next start removes the rest, which no topic owns.

Must not know: why a replica is gone.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping
from functools import partial
from typing import Final

from quiverlog.errors import QuiverlogError, ThrottledBroker
from quiverlog.limits import MIB
from quiverlog.node.directory_jobs import RemoveDirectoriesJob
from quiverlog.node.jobs import Jobs, Urgency
from quiverlog.node.outbox import Outbox
from quiverlog.node.replica import Replica
from quiverlog.storage.directory.data_directory import DataDirectory
from quiverlog.types import Now

__all__ = ["Removal"]

_SLICE: Final = 16
"""Partitions removed by one job: one flush of the directory serves them all."""
_SLICES_AT_STOP: Final = 4
"""Jobs that still begin after a stop."""
_SLICE_BYTES: Final = 256 * MIB
"""Freeing the blocks of a large file takes its time too."""


class Removal:
    """See the module docstring."""

    __slots__ = (
        "_busy",
        "_directory",
        "_jobs",
        "_outbox",
        "_queue",
        "_removing",
        "_slices_left",
        "_unopened",
    )

    _directory: DataDirectory

    def __init__(self, jobs: Jobs, outbox: Outbox) -> None:
        self._jobs = jobs
        self._outbox = outbox
        self._queue: dict[str, Replica] = {}
        # Topic ids by name: partitions that were never opened, or could not be.
        self._unopened: dict[str, bytes] = {}
        self._removing: dict[str, bytes] = {}  # By the job that is under way.
        self._busy = False
        self._slices_left: int | None = None  # After a stop.

    def load(self, directory: DataDirectory) -> None:
        """The partitions lie there."""
        self._directory = directory

    @property
    def waiting(self) -> bool:
        """True when partitions wait to be removed and no removal is under way."""
        return bool(self._queue or self._unopened) and not self._busy and self._slices_left != 0

    def add(self, replicas: Collection[Replica]) -> None:
        """Remove these soon."""
        for replica in replicas:
            assert replica.deleted
            older = self._queue.pop(str(replica.name), None)
            if older is not None:
                # Its files went when the name's directory became the newer topic's.
                assert older.jobs_running == 0, "see check_free"
                self._close_log(older)
            self._queue[str(replica.name)] = replica

    def add_unopened(self, name: str, topic_id: bytes) -> None:
        """Remove the directory of a partition that no job and no replica uses."""
        self._unopened[name] = topic_id

    def stop(self) -> None:
        """Begin with a few more at most."""
        self._slices_left = _SLICES_AT_STOP

    def run(self) -> None:
        """Begin with the next few, if none are under way."""
        if not self.waiting:
            return
        found: list[Replica] = []
        byte_count = 0
        for replica in self._queue.values():
            if replica.jobs_running:
                continue
            byte_count += replica.log.size_bytes
            if len(found) == _SLICE or (found and byte_count > _SLICE_BYTES):
                break
            found.append(replica)
        owners = {str(replica.name): replica.topic.topic_id for replica in found}
        for replica in found:
            assert replica.jobs_running == 0, "files go when no job uses them"
            del self._queue[str(replica.name)]
            self._close_log(replica)
        for name in list(itertools.islice(self._unopened, _SLICE - len(owners))):
            if name not in owners:
                owners[name] = self._unopened.pop(name)
        if not owners:
            return
        job = RemoveDirectoriesJob(self._directory, owners)
        self._removing = owners
        self._busy = True
        if self._slices_left is not None:
            self._slices_left -= 1
            assert self._slices_left >= 0
        assert len(owners) <= _SLICE
        self._jobs.start(job, partial(self._done, len(owners)), Urgency.BACKGROUND)

    def _done(self, count: int, _result: object, error: BaseException | None, now: Now) -> None:
        self._busy = False
        self._removing = {}
        if error is not None:
            self._outbox.log("warning", "directories not removed", count=count, why=str(error))
        self.run()

    def check_free(self, names: Mapping[str, bytes]) -> None:
        """Refuse names whose old files a running job still knows: they cannot be created yet.

        Nor can a partition that comes back: what removes its directory would take the new one.

        Args:
            names: topic ids by partition name.

        Raises:
            ThrottledBroker: not yet.
        """
        for name, topic_id in names.items():
            old = self._queue.get(name)
            owners = [self._unopened.get(name), self._removing.get(name)]
            if old is not None:
                owners.append(old.topic.topic_id)
            if topic_id in owners or (old is not None and old.jobs_running):
                raise ThrottledBroker("the deleted topic of this name still has files: try again.")

    def close(self) -> None:
        """Let go of the files; the next start removes them."""
        self._unopened.clear()
        queue, self._queue = self._queue, {}
        for replica in queue.values():
            self._close_log(replica)

    def _close_log(self, replica: Replica) -> None:
        try:
            replica.log.close(clean=False)
        except (OSError, QuiverlogError) as error:
            self._outbox.log(
                "warning", "deleted log not closed", partition=str(replica.name), why=str(error)
            )
