"""Why a partition is not open, as an error of the table, and whether another attempt can help."""

from __future__ import annotations

import errno
from typing import Final, NamedTuple

from quiverlog.core.controller.image import Image
from quiverlog.core.controller.topic_image import PartitionImage
from quiverlog.errors import CorruptLog, DiskFull, QuiverlogError, StorageFault
from quiverlog.storage.disk.disk import is_unreadable_file, what_failed
from quiverlog.types import TopicPartition

__all__ = [
    "Key",
    "Offline",
    "Opening",
    "begins_here",
    "is_damage",
    "may_be_made",
    "may_begin_empty",
    "offline_reason",
]

Key = tuple[bytes, int]

_PASSING: Final = frozenset(
    (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EIO, errno.EAGAIN, errno.EINTR)
)
"""Failures of the system that may be over the next time."""


class Opening(NamedTuple):
    """A partition that is to be opened.

    `clean`: its files may be trusted without a scan. `new`: its directory has just been made.
    `never_created`: other brokers decided it, and its directory is to be made first.
    """

    name: TopicPartition
    clean: bool
    new: bool = False
    never_created: bool = False


class Offline(NamedTuple):
    """Why a partition is not open. `lost`: it has no directory."""

    error: QuiverlogError
    opening: Opening
    lost: bool


def offline_reason(name: TopicPartition, error: BaseException) -> tuple[QuiverlogError, bool]:
    """Return (error for requests of the partition, may it be over the next time)."""
    causes = [one for one in (error, error.__cause__) if isinstance(one, OSError)]
    passing = isinstance(error, DiskFull) or any(one.errno in _PASSING for one in causes)
    if isinstance(error, CorruptLog | DiskFull):
        return type(error)(f"{name} is offline: {error.message}"), passing
    why = what_failed(error) if isinstance(error, OSError) else str(error)
    why = why or f"{type(error).__name__}, whose traceback is in the broker's log"
    return StorageFault(f"{name} is offline: {why}."), passing


def is_damage(error: BaseException) -> bool:
    """True when a file of the log is unreadable or missing; not for what may pass, nor for rows
    that are whole.
    """
    causes = [one for one in (error, error.__cause__) if isinstance(one, OSError)]
    return any(is_unreadable_file(one) for one in causes)


def may_begin_empty(image: Image, key: Key, node_id: int) -> bool:
    """True when a lost copy may begin empty: no broker relies on it."""
    topic = image.topics_by_id.get(key[0])
    if topic is None:
        return False
    partition = topic.partitions[key[1]]
    assert partition.partition == key[1]
    # In a comparison of logs after a power failure of all it would count as one that never had
    # rows: the metadata must first have noted that its disk was replaced.
    is_noted = node_id in partition.replaced_disks
    # In sync, or eligible, it could lead: then all others would cut their logs.
    return is_noted and not (partition.awaits_logs or _is_relied_on(partition, node_id))


def may_be_made(image: Image, key: Key, node_id: int) -> bool:
    """True when the directory of a lost copy may be made again, for a log without rows."""
    topic = image.topics_by_id.get(key[0])
    if topic is None or may_begin_empty(image, key, node_id):
        return topic is not None
    partition = topic.partitions[key[1]]
    # Elected although no log of it was known, and no other is relied on since (docs/adr/0047).
    if partition.begins_anew and partition.relied_on == (node_id,):
        return True
    # The only copy: there is no log to compare with, and it leads only when an operator gives the
    # rows up, or by a topic that waits for no copy.
    is_only = partition.replicas == (node_id,)
    return is_only and node_id in partition.replaced_disks and partition.awaits_logs


def begins_here(partition: PartitionImage, node_id: int) -> bool:
    """True when the partition moves to this broker, and has no rows yet. Not asked at a start: a
    directory that is missing then may have been lost.
    """
    assert node_id in partition.replicas
    return node_id in partition.adding_replicas and not _is_relied_on(partition, node_id)


def _is_relied_on(partition: PartitionImage, node_id: int) -> bool:
    return node_id in (partition.leader_id, *partition.relied_on)
