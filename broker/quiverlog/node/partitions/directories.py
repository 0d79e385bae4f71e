"""Jobs that make, open and remove partitions' directories, and the queue of deleted replicas.

A replica is removed when no job uses its files. A stop waits for a few such jobs; the next start
removes the rest, which no topic owns.

Invariant: jobs on the directory of all partitions have one key, so a name is never made and
removed at the same time. A log that is being opened has no other job.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple, TypedDict, Unpack

from quiverlog.core.partition.producers import ProducerStates
from quiverlog.errors import DiskFull, QuiverlogError, StorageFault, ThrottledBroker
from quiverlog.limits import MIB
from quiverlog.node.partitions.replica import Replica
from quiverlog.node.runtime.jobs import Jobs, Urgency
from quiverlog.node.runtime.outbox import Outbox
from quiverlog.storage.directory.data_directory import PartitionDirectories
from quiverlog.storage.disk.disk import Disk
from quiverlog.storage.log.checkpoint import Bounds
from quiverlog.storage.log.jobs import FlushResult
from quiverlog.storage.log.log import Log, LogConfig
from quiverlog.storage.segment.segments import IndexCache
from quiverlog.types import Now

__all__ = [
    "CreateDirectoriesJob",
    "LateDirectoriesJob",
    "LogOptions",
    "MadeDirectories",
    "OpenJob",
    "OpenManyJob",
    "OpenedReplica",
    "Removal",
    "RemoveDirectoriesJob",
    "new_log",
]


class MadeDirectories(NamedTuple):
    """`made`: topic id by name, of directories without rows, that were not there before. `failed`:
    by topic id.
    """

    made: Mapping[str, bytes]
    failed: Mapping[bytes, QuiverlogError]


class CreateDirectoriesJob:
    """Durable. If one directory of a topic fails, those just made are removed, where possible."""

    __slots__ = ("_directories", "_owners", "key", "kind")

    def __init__(self, directories: PartitionDirectories, owners: Mapping[str, bytes]) -> None:
        self.key = directories.path
        self.kind = "create directories"
        self._directories = directories
        self._owners = owners

    def run(self) -> MadeDirectories:
        failed: dict[bytes, QuiverlogError] = {}
        made: dict[bytes, list[str]] = {}
        for name, topic_id in self._owners.items():
            if topic_id in failed:
                continue
            try:
                # One that is there already may be named by a record: it stays in any case.
                if self._directories.create_partition(name, topic_id):
                    made.setdefault(topic_id, []).append(name)
            except (OSError, QuiverlogError) as error:
                failed[topic_id] = _creation_error(error)
        try:
            self._directories.sync_partitions()
        except (OSError, QuiverlogError) as error:
            failed = dict.fromkeys(self._owners.values(), _creation_error(error)) | failed
        # Nothing was logged yet: no record can name them.
        for topic_id in failed:
            for name in made.get(topic_id, ()):
                with contextlib.suppress(OSError, QuiverlogError):
                    self._directories.remove_partition(name)
        new = {name: t for t, names in made.items() if t not in failed for name in names}
        assert new.keys() <= self._owners.keys(), "made for the callers"
        return MadeDirectories(new, failed)


class LateDirectoriesJob:
    """Directories of partitions whose record is committed already; each is made or not, durably."""

    __slots__ = ("_directories", "_owners", "key", "kind")

    def __init__(self, directories: PartitionDirectories, owners: Mapping[str, bytes]) -> None:
        assert owners
        self.key = directories.path
        self.kind = "create late directories"
        self._directories = directories
        self._owners = owners

    def run(self) -> dict[str, bool | QuiverlogError]:
        """By name: True for one that was made, False for one that was there, or what failed."""
        found: dict[str, bool | QuiverlogError] = {}
        for name, topic_id in self._owners.items():
            try:
                found[name] = self._directories.create_partition(name, topic_id)
            except (OSError, QuiverlogError) as error:
                found[name] = _creation_error(error)
        try:
            self._directories.sync_partitions()
        except (OSError, QuiverlogError) as error:
            failed = _creation_error(error)
            # Made all the same, as the next attempt finds.
            found = {
                n: one if isinstance(one, QuiverlogError) else failed for n, one in found.items()
            }
        assert found.keys() == self._owners.keys()
        return found


def _creation_error(error: OSError | QuiverlogError) -> QuiverlogError:
    if isinstance(error, DiskFull):
        return error
    fault = StorageFault(f"the partitions' directories cannot be made: {error}.")
    fault.__cause__ = error
    return fault


class OpenedReplica(NamedTuple):
    log: Log
    producers: ProducerStates


class LogOptions(TypedDict):
    indexes: IndexCache
    producers_max: int
    producer_expiry_us: int
    own_cluster: int


def _producers(now: Now, options: LogOptions) -> ProducerStates:
    return ProducerStates(
        now.mono_us,
        producers_max=options["producers_max"],
        expiry_us=options["producer_expiry_us"],
        own_cluster=options["own_cluster"],
    )


def new_log(
    disk: Disk, path: str, config: LogConfig, now: Now, **options: Unpack[LogOptions]
) -> OpenedReplica:
    """What `OpenJob` would find in a directory that was just made, without reading it."""
    producers = _producers(now, options)
    return OpenedReplica(
        Log.new(disk, path, config=config, producers=producers, indexes=options["indexes"]),
        producers,
    )


class OpenJob:
    """Recovers a partition's log, and flushes what it finds: readers may have seen it."""

    __slots__ = (
        "_clean",
        "_config",
        "_disk",
        "_epoch_newest",
        "_known",
        "_now",
        "_options",
        "key",
        "kind",
    )

    def __init__(
        self,
        disk: Disk,
        path: str,
        config: LogConfig,
        now: Now,
        *,
        clean: bool,
        epoch_newest: int,
        known: Bounds | None,
        **options: Unpack[LogOptions],
    ) -> None:
        self.key = path
        self.kind = "open log"
        self._known = known
        self._disk = disk
        self._config = config
        self._now = now
        self._clean = clean
        self._epoch_newest = epoch_newest
        self._options = options

    def run(self) -> OpenedReplica:
        """Raises OSError, CorruptLog, UnsupportedFormat, DiskFull or StorageFault."""
        producers = _producers(self._now, self._options)
        log = Log.open(
            self._disk,
            self.key,
            config=self._config,
            clean=self._clean,
            now=self._now,
            producers=producers,
            epoch_newest=self._epoch_newest,
            indexes=self._options["indexes"],
            known=self._known,
        )
        if log.flushed_offset < log.log_end_offset:
            job = log.begin_flush()
            result = job.run()
            assert isinstance(result, FlushResult)
            log.complete_flush(job, result)
        load = log.reader.begin_load()
        if load is not None:
            # The first append must not wait for the newest segment's index.
            log.reader.complete_load(load, load.run())
        log.reader.load_newest_time()
        assert log.flushed_offset == log.log_end_offset, "readers see what no power loss takes"
        assert log.log_start_offset <= log.log_end_offset
        return OpenedReplica(log, producers)


class OpenManyJob:
    """Recovers several logs: a job each would wake the threads and the loop thousands of times."""

    __slots__ = ("_jobs", "key", "kind")

    def __init__(self, jobs: Sequence[OpenJob]) -> None:
        # The first log's: no other job is started for a log that is being opened.
        self.key = jobs[0].key
        self.kind = jobs[0].kind
        self._jobs = jobs

    def run(self) -> list[OpenedReplica | Exception]:
        found: list[OpenedReplica | Exception] = []
        for job in self._jobs:
            try:
                found.append(job.run())
            except Exception as error:
                found.append(error)
        assert len(found) == len(self._jobs), "each log has its result"
        return found


class RemoveDirectoriesJob:
    __slots__ = ("_directories", "_owners", "key", "kind")

    def __init__(self, directories: PartitionDirectories, owners: Mapping[str, bytes]) -> None:
        assert owners
        self.key = directories.path
        self.kind = "remove directories"
        self._directories = directories
        self._owners = dict(owners)

    def run(self) -> None:
        """Raises OSError or QuiverlogError: the next start finds that no topic owns them."""
        self._directories.remove_partitions(self._owners)


_SLICE: Final = 16
"""One flush of the directory serves them all."""
_SLICES_AT_STOP: Final = 4
"""Jobs that still begin after a stop."""
_SLICE_BYTES: Final = 256 * MIB
"""Freeing the blocks of a large file takes its time too."""


class Removal:
    __slots__ = (
        "_busy",
        "_directories",
        "_jobs",
        "_outbox",
        "_queue",
        "_removing",
        "_slices_left",
        "_unopened",
    )

    _directories: PartitionDirectories

    def __init__(self, jobs: Jobs, outbox: Outbox) -> None:
        self._jobs = jobs
        self._outbox = outbox
        self._queue: dict[str, Replica] = {}
        # By name: partitions that were never opened, or could not be.
        self._unopened: dict[str, bytes] = {}
        self._removing: dict[str, bytes] = {}
        self._busy = False
        self._slices_left: int | None = None  # After a stop.

    def load(self, directories: PartitionDirectories) -> None:
        self._directories = directories

    @property
    def waiting(self) -> bool:
        return bool(self._queue or self._unopened) and not self._busy and self._slices_left != 0

    def add(self, replicas: Collection[Replica]) -> None:
        for replica in replicas:
            assert replica.deleted
            older = self._queue.pop(str(replica.name), None)
            if older is not None:
                # Its files went when the name's directory became the newer topic's.
                assert older.jobs_running == 0, "see check_free"
                self._close_log(older)
            self._queue[str(replica.name)] = replica

    def add_unopened(self, name: str, topic_id: bytes) -> None:
        """Remove a directory that no job and no replica uses."""
        self._unopened[name] = topic_id

    def stop(self) -> None:
        self._slices_left = _SLICES_AT_STOP

    def run(self, _now: Now) -> None:
        if not self.waiting:
            return
        found: list[Replica] = []
        byte_count = 0
        for replica in self._queue.values():
            if replica.jobs_running:
                continue
            byte_count += replica.log.reader.size_bytes
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
        job = RemoveDirectoriesJob(self._directories, owners)
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
        self.run(now)

    def check_free(self, names: Mapping[str, bytes]) -> None:
        """Refuse names whose directory a running job or a removal may still use.

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
            # Nor may a partition of the same topic come back: its removal would take the directory.
            if topic_id in owners or (old is not None and old.jobs_running):
                raise ThrottledBroker("the deleted topic of this name still has files: try again.")

    def close(self) -> None:
        """Close the files; the next start removes them."""
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
