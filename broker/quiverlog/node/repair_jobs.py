"""The jobs of a repair: marking a replica whose rows are damaged, and making it anew.

Making one anew is: its directory loses the name of the partition, an empty one gets it. A start
after the end of the process finds the damaged one, which is marked; or none, which is made when
nobody relies on it (`may_begin_empty`); or the empty one.
"""

from __future__ import annotations

from typing import NamedTuple

from quiverlog.errors import QuiverlogError
from quiverlog.storage.directory.damaged_replicas import (
    keep_newest,
    mark_damaged,
    set_aside_damaged,
)
from quiverlog.storage.directory.data_directory import DataDirectory
from quiverlog.storage.disk.disk import Disk
from quiverlog.types import TopicPartition

__all__ = ["MadeAnew", "MakeAnewJob", "MarkDamagedJob"]


class MadeAnew(NamedTuple):
    """`aside`: what the directory with the damaged files is called; empty where there was none.

    `removed`: names of those that were kept until now. `kept_too_many`: why others stayed.
    """

    aside: str
    removed: list[str]
    kept_too_many: str


class MarkDamagedJob:
    """Have the next start know that rows are damaged, which it may not look at."""

    __slots__ = ("_disk", "_why", "key", "kind")

    def __init__(self, disk: Disk, path: str, why: str) -> None:
        self.key = path
        self.kind = "mark damaged"
        self._disk = disk
        self._why = why

    def run(self) -> None:
        """Raises DiskFull, StorageFault, ThrottledBroker: the damage is to be found again."""
        mark_damaged(self._disk, self.key, self._why)


class MakeAnewJob:
    """Set the files of a partition aside, and make an empty directory for it.

    Args:
        size_bytes: so much is expected to be copied: those set aside make room for it.
        kept_max: so many of those that were set aside stay, of all partitions.
        free_bytes_min: with less room on the disk fewer stay, or none.
    """

    __slots__ = (
        "_directory", "_disk", "_free_bytes_min", "_kept_max", "_name", "_topic_id", "key", "kind"
    )  # fmt: skip

    def __init__(
        self,
        directory: DataDirectory,
        disk: Disk,
        name: TopicPartition,
        topic_id: bytes,
        *,
        kept_max: int,
        free_bytes_min: int,
    ) -> None:
        assert free_bytes_min >= 0
        self.key = directory.data_path
        self.kind = "make replica anew"
        self._directory = directory
        self._disk = disk
        self._name = str(name)
        self._topic_id = topic_id
        self._kept_max = kept_max
        self._free_bytes_min = free_bytes_min

    def run(self) -> MadeAnew:
        """Raises OSError or QuiverlogError: the name has the old files, none, or an empty log."""
        directory = self._directory
        aside = set_aside_damaged(directory, self._disk, self._name, self._topic_id)
        removed, kept_too_many = [], ""
        try:
            removed = keep_newest(directory, self._disk, self._kept_max, self._free_bytes_min)
        except (OSError, QuiverlogError) as error:
            kept_too_many = str(error)
        directory.create_partition(self._name, self._topic_id)
        directory.sync_partitions()
        return MadeAnew(aside, removed, kept_too_many)
