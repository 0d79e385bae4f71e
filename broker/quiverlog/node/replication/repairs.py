"""Repair of replicas with damaged rows: set aside, made empty, fetched again.

    damage found ──▶ DAMAGED ──others hold the partition──▶ LEAVING ──no job──▶ remade ──▶ opened
         │              ▲────────────────── it could not be remade ◀──────────────┘
         └── leads, and no other replica is in sync: goes on

A damaged follower stops fetching; a damaged leader takes writes until another leads. A restart in
the middle finds the marked replica, none, or the empty one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Final, NamedTuple, Protocol

from quiverlog.core.controller.topic_image import PartitionImage
from quiverlog.errors import QuiverlogError, ThrottledBroker
from quiverlog.node.partitions.offline import Key, is_damage, may_begin_empty
from quiverlog.node.partitions.replica import Replica
from quiverlog.node.runtime.config import NodeConfig
from quiverlog.node.runtime.jobs import Jobs, Urgency
from quiverlog.node.runtime.metadata_view import MetadataView
from quiverlog.node.runtime.metrics import NodeMetrics
from quiverlog.node.runtime.outbox import Outbox
from quiverlog.storage.directory.damaged_replicas import (
    keep_newest,
    mark_damaged,
    set_aside_damaged,
)
from quiverlog.storage.directory.data_directory import PartitionDirectories
from quiverlog.storage.disk.disk import Disk
from quiverlog.types import NO_EPOCH, Now, TopicPartition

__all__ = ["Holder", "MadeAnew", "MakeAnewJob", "MarkDamagedJob", "OfflineReports", "Repairs"]


class MadeAnew(NamedTuple):
    """`aside`: the directory with the damaged files; empty: there was none.

    `removed`: earlier ones that went. `kept_too_many`: why more stayed than should.
    """

    aside: str
    removed: list[str]
    kept_too_many: str


class MarkDamagedJob:
    """Note on disk that rows are damaged: the next start may not check them."""

    __slots__ = ("_disk", "_why", "key", "kind")

    def __init__(self, disk: Disk, path: str, why: str) -> None:
        self.key = path
        self.kind = "mark damaged"
        self._disk = disk
        self._why = why

    def run(self) -> None:
        """Raises DiskFull, StorageFault, ThrottledBroker: then the damage has to be found again."""
        mark_damaged(self._disk, self.key, self._why)


class MakeAnewJob:
    """Set a partition's files aside, and make an empty directory for it.

    Args:
        kept_max: how many set-aside directories stay, of all partitions.
        free_bytes_min: with less free space fewer stay, or none.
    """

    __slots__ = (
        "_directories", "_disk", "_free_bytes_min", "_kept_max", "_name", "_topic_id", "key", "kind"
    )  # fmt: skip

    def __init__(
        self,
        directories: PartitionDirectories,
        disk: Disk,
        name: TopicPartition,
        topic_id: bytes,
        *,
        kept_max: int,
        free_bytes_min: int,
    ) -> None:
        assert free_bytes_min >= 0
        self.key = directories.path
        self.kind = "make replica anew"
        self._directories = directories
        self._disk = disk
        self._name = str(name)
        self._topic_id = topic_id
        self._kept_max = kept_max
        self._free_bytes_min = free_bytes_min

    def run(self) -> MadeAnew:
        """Raises OSError or QuiverlogError: the name has the old files, none, or an empty log."""
        directories = self._directories
        aside = set_aside_damaged(directories, self._disk, self._name, self._topic_id)
        removed, kept_too_many = [], ""
        try:
            removed = keep_newest(directories, self._disk, self._kept_max, self._free_bytes_min)
        except (OSError, QuiverlogError) as error:
            kept_too_many = str(error)
        directories.create_partition(self._name, self._topic_id)
        directories.sync_partitions()
        return MadeAnew(aside, removed, kept_too_many)


_RETRY_US: Final = 5_000_000


class Holder(Protocol):
    def find(self, key: Key) -> Replica | None: ...

    def is_offline(self, key: Key) -> bool:
        """True for a partition that could not be opened, and is not being opened now."""

    def close_damaged(self, key: Key, now: Now) -> tuple[TopicPartition, Replica | None]:
        """Release its files to all but the jobs under way; return its name, and the replica if
        open.
        """

    def open_again(self, key: Key, name: TopicPartition, now: Now, *, new: bool) -> None:
        """Open what has its name now; `new`: an empty directory."""


class OfflineReports(Protocol):
    def changed(self, key: Key, *, is_offline: bool, leader_epoch: int = NO_EPOCH) -> None: ...


class _Leaving(NamedTuple):
    name: TopicPartition
    replica: Replica | None
    leader_epoch: int


class Repairs:
    __slots__ = (
        "_config",
        "_damaged",
        "_directories",
        "_disk",
        "_holder",
        "_is_making",
        "_jobs",
        "_kept_max",
        "_leaving",
        "_looked_at",
        "_metadata",
        "_metrics",
        "_not_before_us",
        "_offline_reports",
        "_outbox",
        "_went_offline",
    )

    def __init__(
        self,
        config: NodeConfig,
        disk: Disk,
        jobs: Jobs,
        outbox: Outbox,
        metrics: NodeMetrics,
        metadata: MetadataView,
        directories: Callable[[], PartitionDirectories],
        holder: Callable[[], Holder],
        offline_reports: OfflineReports,
        went_offline: Callable[[Replica], None],
    ) -> None:
        self._config = config
        self._kept_max = config.damaged_replicas_kept
        self._disk = disk
        self._jobs = jobs
        self._outbox = outbox
        self._metrics = metrics
        self._metadata = metadata
        self._directories = directories
        self._holder = holder
        self._offline_reports = offline_reports
        self._went_offline = went_offline
        # With the last leader epoch under which each may have counted.
        self._damaged: dict[Key, int] = {}
        self._leaving: dict[Key, _Leaving] = {}
        self._is_making = False
        self._looked_at = -1  # A version of the metadata.
        self._not_before_us = 0

    def set_kept(self, kept_max: int, _now: Now) -> None:
        self._kept_max = kept_max

    def found(self, replica: Replica, why: str) -> None:
        """Note that rows of this replica are damaged or cannot be read, and report it."""
        key = (replica.topic.topic_id, replica.name.partition)
        partition = self._partition(key)
        # An only replica is not repaired: no other has its rows.
        if replica.damage or replica.deleted or partition is None or len(partition.replicas) < 2:
            return
        assert key not in self._leaving, "released files are not read"
        replica.damage = why
        self._outbox.log("error", "replica damaged", partition=str(replica.name), why=why)
        self._is_damaged(key, partition)
        self._went_offline(replica)
        if replica.fault is None:
            replica.jobs_running += 1
            job = MarkDamagedJob(self._disk, replica.log.directory, why)
            self._jobs.start(job, partial(self._marked, [replica]))

    def opened(self, key: Key, replica: Replica) -> None:
        self._damaged.pop(key, None)
        self._offline_reports.changed(key, is_offline=False)
        if replica.log.recovery.damages:
            self.found(replica, replica.log.recovery.damages[0])
        self._count()

    def failed(self, key: Key, error: BaseException) -> None:
        """Note a log that cannot be opened: damage begins a repair, else it is offline."""
        partition = self._partition(key)
        if partition is not None and len(partition.replicas) > 1 and is_damage(error):
            self._is_damaged(key, partition)
        else:
            self._offline_reports.changed(key, is_offline=True)

    def _is_damaged(self, key: Key, partition: PartitionImage) -> None:
        assert key not in self._leaving
        assert len(partition.replicas) > 1, "others have the rows"
        self._damaged[key] = partition.leader_epoch
        self._looked_at = -1
        self._offline_reports.changed(key, is_offline=True, leader_epoch=partition.leader_epoch)
        self._count()

    def _marked(
        self, replicas: list[Replica], _result: object, error: BaseException | None, _now: Now
    ) -> None:
        while replicas:  # Called again after a bug of ours.
            replica = replicas.pop()
            replica.jobs_running -= 1
            assert replica.jobs_running >= 0
            if error is not None:
                self._outbox.log(
                    "warning", "damage not noted", partition=str(replica.name), why=str(error)
                )

    def _partition(self, key: Key) -> PartitionImage | None:
        topic = self._metadata.image.topics_by_id.get(key[0])
        return None if topic is None else topic.partitions[key[1]]

    def _count(self) -> None:
        self._metrics.partitions_damaged = len(self._damaged) + len(self._leaving)

    @property
    def is_needed(self) -> bool:
        return bool(self._damaged or self._leaving)

    def is_leaving(self, key: Key) -> bool:
        """True while the files of a partition are exchanged: it must not be opened."""
        return key in self._leaving

    def check_free(self, names: Mapping[str, bytes]) -> None:
        """Raise ThrottledBroker while files of one of these names (with topic ids) are
        exchanged.
        """
        if any(str(one.name) in names for one in self._leaving.values()):
            raise ThrottledBroker("a damaged replica of this name is set aside: try again.")

    def next_us(self) -> int | None:
        if self._is_making:
            return None
        is_due = any(_is_free(one) for one in self._leaving.values())
        if is_due or (self._damaged and self._looked_at != self._metadata.image.version):
            return self._not_before_us
        return None

    def run(self, now: Now) -> None:
        """Release replicas that no other relies on any more, and replace the next one."""
        if self._is_making or now.mono_us < self._not_before_us:
            return
        if self._looked_at != self._metadata.image.version:
            self._looked_at = self._metadata.image.version
            for key, leader_epoch in list(self._damaged.items()):
                self._look(key, leader_epoch, now)
            self._count()
        for key, leaving in self._leaving.items():
            if _is_free(leaving):
                self._make_anew(key, leaving)
                break

    def _look(self, key: Key, leader_epoch: int, now: Now) -> None:
        holder = self._holder()
        replica = holder.find(key)
        if replica is None and not holder.is_offline(key):
            del self._damaged[key]  # It is not here any more, or is being opened again.
            return
        partition = self._partition(key)
        if partition is None or (replica is not None and replica.fault is not None):
            return
        # This replica has fetched in earlier epochs only: the leader counts none of those reports.
        if partition.leader_id < 0 or partition.leader_epoch <= leader_epoch:
            return
        if may_begin_empty(self._metadata.image, key, self._config.node_id):
            assert replica is None or not replica.state.leads, "another broker leads"
            del self._damaged[key]
            self._offline_reports.changed(key, is_offline=False)
            name, replica = holder.close_damaged(key, now)
            assert replica is None or replica.deleted, "released replicas are deleted"
            assert holder.find(key) is None
            self._leaving[key] = _Leaving(name, replica, leader_epoch)

    def _make_anew(self, key: Key, leaving: _Leaving) -> None:
        size_bytes = 0
        if leaving.replica is not None:
            size_bytes = leaving.replica.log.reader.size_bytes
            try:
                leaving.replica.log.close(clean=False)
            except (OSError, QuiverlogError) as error:
                self._outbox.log(
                    "warning", "damaged log not closed", partition=str(leaving.name), why=str(error)
                )
        assert not self._is_making, "one after the other"
        assert leaving.replica is None or leaving.replica.deleted
        self._is_making = True
        job = MakeAnewJob(
            self._directories(),
            self._disk,
            leaving.name,
            key[0],
            kept_max=self._kept_max,
            free_bytes_min=size_bytes + self._config.disk_reserve_bytes,
        )
        self._jobs.start(job, partial(self._made, [key]), Urgency.BACKGROUND)

    def _made(self, keys: list[Key], result: object, error: BaseException | None, now: Now) -> None:
        while keys:  # Called again after a bug of ours.
            key = keys.pop()
            assert self._is_making
            name = self._leaving.pop(key).name
            self._is_making = False
            if error is None:
                assert isinstance(result, MadeAnew)
                self._metrics.replicas_made_anew += 1
                self._log_made(name, result)
            else:
                self._not_before_us = now.mono_us + _RETRY_US
                self._outbox.log(
                    "error", "damaged replica not set aside", partition=str(name), why=str(error)
                )
            self._count()
            self._holder().open_again(key, name, now, new=error is None)

    def _log_made(self, name: TopicPartition, made: MadeAnew) -> None:
        self._outbox.log(
            "warning",
            "damaged replica set aside",
            partition=str(name),
            files="none were there" if not made.aside else f"data/{made.aside}",
            kept=made.aside not in made.removed,
        )
        for removed in made.removed:
            self._outbox.log("info", "kept replica removed", files=f"data/{removed}")
        if made.kept_too_many:
            self._outbox.log("warning", "kept replicas not removed", why=made.kept_too_many)


def _is_free(leaving: _Leaving) -> bool:
    return leaving.replica is None or leaving.replica.jobs_running == 0
