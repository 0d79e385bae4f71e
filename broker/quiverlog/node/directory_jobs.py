"""Making, opening and removing partitions' directories, off the loop.

Owns three jobs. Jobs on the directory of all partitions have one key, so that a name is never made
and removed at once; opening a log has the key of its partition, as all later jobs of that log.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypedDict, Unpack

from quiverlog.core.partition.producers import ProducerStates
from quiverlog.errors import DiskFull, QuiverlogError, StorageFault
from quiverlog.storage.directory.data_directory import DataDirectory
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
    "RemoveDirectoriesJob",
    "new_log",
]


class MadeDirectories(NamedTuple):
    """`made`: topic id by name of the partitions whose directories were made, and hold no rows.

    `failed`: by id, topics whose directories cannot be made, with DiskFull or StorageFault.
    """

    made: Mapping[str, bytes]
    failed: Mapping[bytes, QuiverlogError]


class CreateDirectoriesJob:
    """Directories for new partitions, durable; all of a topic's or none."""

    __slots__ = ("_directory", "_owners", "key", "kind")

    def __init__(self, directory: DataDirectory, owners: Mapping[str, bytes]) -> None:
        self.key = directory.data_path
        self.kind = "create directories"
        self._directory = directory
        self._owners = owners

    def run(self) -> MadeDirectories:
        """A directory that was there already is not among those that were made."""
        failed: dict[bytes, QuiverlogError] = {}
        made: dict[bytes, list[str]] = {}
        for name, topic_id in self._owners.items():
            if topic_id in failed:
                continue
            try:
                # One that is there already may be named by a record: it stays in any case.
                if self._directory.create_partition(name, topic_id):
                    made.setdefault(topic_id, []).append(name)
            except (OSError, QuiverlogError) as error:
                failed[topic_id] = _creation_error(error)
        try:
            self._directory.sync_partitions()
        except (OSError, QuiverlogError) as error:
            failed = dict.fromkeys(self._owners.values(), _creation_error(error)) | failed
        # Nothing was logged yet: no record can name them.
        for topic_id in failed:
            for name in made.get(topic_id, ()):
                with contextlib.suppress(OSError, QuiverlogError):
                    self._directory.remove_partition(name)
        new = {name: t for t, names in made.items() if t not in failed for name in names}
        assert new.keys() <= self._owners.keys(), "made for those who asked"
        return MadeDirectories(new, failed)


class LateDirectoriesJob:
    """Directories of partitions that others have decided to be here: the record holds already.

    Each is made or not on its own, and durable.
    """

    __slots__ = ("_directory", "_owners", "key", "kind")

    def __init__(self, directory: DataDirectory, owners: Mapping[str, bytes]) -> None:
        assert owners
        self.key = directory.data_path
        self.kind = "create late directories"
        self._directory = directory
        self._owners = owners

    def run(self) -> dict[str, bool | QuiverlogError]:
        """By name: True for one that was made, False for one that was there, or what failed."""
        found: dict[str, bool | QuiverlogError] = {}
        for name, topic_id in self._owners.items():
            try:
                found[name] = self._directory.create_partition(name, topic_id)
            except (OSError, QuiverlogError) as error:
                found[name] = _creation_error(error)
        try:
            self._directory.sync_partitions()
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
    """A log that may be served from now on."""

    log: Log
    producers: ProducerStates


class LogOptions(TypedDict):
    """What is the same for all logs of a broker."""

    indexes: IndexCache
    producers_max: int
    producer_expiry_us: int


def _producers(now: Now, options: LogOptions) -> ProducerStates:
    return ProducerStates(
        now.mono_us,
        producers_max=options["producers_max"],
        expiry_us=options["producer_expiry_us"],
    )


def new_log(
    disk: Disk, path: str, config: LogConfig, now: Now, **options: Unpack[LogOptions]
) -> OpenedReplica:
    """The log of a directory that was just made: what `OpenJob` finds there, without a look."""
    producers = _producers(now, options)
    return OpenedReplica(
        Log.new(disk, path, config=config, producers=producers, indexes=options["indexes"]),
        producers,
    )


class OpenJob:
    """Recover a partition's log. Rows that were visible before a crash are flushed at once."""

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
        load = log.begin_load()
        if load is not None:
            # The first append must not wait for the newest segment's index.
            log.complete_load(load, load.run())
        log.load_newest_time()
        assert log.flushed_offset == log.log_end_offset, "readers see what no power loss takes"
        assert log.log_start_offset <= log.log_end_offset
        return OpenedReplica(log, producers)


class OpenManyJob:
    """Recover several logs in one job: thousands of jobs wake the threads and the loop as often.

    It has the key of the first; no other job is started for a log that is being opened.
    """

    __slots__ = ("_jobs", "key", "kind")

    def __init__(self, jobs: Sequence[OpenJob]) -> None:
        self.key = jobs[0].key
        self.kind = jobs[0].kind
        self._jobs = jobs

    def run(self) -> list[OpenedReplica | Exception]:
        """For each log what opening it gave, or raised."""
        found: list[OpenedReplica | Exception] = []
        for job in self._jobs:
            try:
                found.append(job.run())
            except Exception as error:
                found.append(error)
        assert len(found) == len(self._jobs), "each log has its result"
        return found


class RemoveDirectoriesJob:
    """Remove the directories of deleted partitions, with one flush for all of them."""

    __slots__ = ("_directory", "_owners", "key", "kind")

    def __init__(self, directory: DataDirectory, owners: Mapping[str, bytes]) -> None:
        assert owners
        self.key = directory.data_path
        self.kind = "remove directories"
        self._directory = directory
        self._owners = dict(owners)

    def run(self) -> None:
        """Raises OSError or QuiverlogError: the next start finds that no topic owns them."""
        self._directory.remove_partitions(self._owners)
