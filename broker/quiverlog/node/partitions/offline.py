"""Why a partition is not open, in the error table's words, and whether trying again can help.

Must not know: who opens partitions, and when.
"""

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
"""Topic id and partition."""

_PASSING: Final = frozenset(
    (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EIO, errno.EAGAIN, errno.EINTR)
)
"""Failures of the system that may be over the next time."""


class Opening(NamedTuple):
    """A partition that is to be opened.

    `clean`: its files may be trusted without a scan. `new`: there are none, its directory has just
    been made. `unmade`: its directory is to be made first, for others have decided that it is here.
    """

    name: TopicPartition
    clean: bool
    new: bool = False
    unmade: bool = False


class Offline(NamedTuple):
    """Why a partition is not open, and how it was to be opened. `lost`: it has no directory."""

    error: QuiverlogError
    opening: Opening
    lost: bool


def offline_reason(name: TopicPartition, error: BaseException) -> tuple[QuiverlogError, bool]:
    """(what requests of the partition are answered, may it be over the next time)."""
    causes = [one for one in (error, error.__cause__) if isinstance(one, OSError)]
    passing = isinstance(error, DiskFull) or any(one.errno in _PASSING for one in causes)
    if isinstance(error, CorruptLog | DiskFull):
        return type(error)(f"{name} is offline: {error.message}"), passing
    why = what_failed(error) if isinstance(error, OSError) else str(error)
    why = why or f"{type(error).__name__}, whose traceback is in the broker's log"
    return StorageFault(f"{name} is offline: {why}."), passing


def is_damage(error: BaseException) -> bool:
    """True when a log cannot be opened because its disk does not give a file, or its files went.

    Not for want of something that may be there the next time, nor for rows that are whole.
    """
    causes = [one for one in (error, error.__cause__) if isinstance(one, OSError)]
    return any(is_unreadable_file(one) for one in causes)


def may_begin_empty(image: Image, key: Key, node_id: int) -> bool:
    """Nobody relies on this broker's copy, so a lost one may begin again with what the leader has.

    A copy in sync, or eligible, must not: as leader it would have all others cut their logs. Nor
    may one whose log would count where all are asked, after a power failure of all: an empty log
    would be counted as one that never had rows. So the metadata say first that it does not.
    """
    topic = image.topics_by_id.get(key[0])
    if topic is None:
        return False
    partition = topic.partitions[key[1]]
    assert partition.partition == key[1]
    is_noted = node_id in partition.replaced_disks
    return is_noted and not (partition.awaits_logs or _is_relied_on(partition, node_id))


def may_be_made(image: Image, key: Key, node_id: int) -> bool:
    """The directory of a copy that is lost may be made again, for a log without rows.

    Where nobody relies on it; where it was elected although no log of it was known, and nobody
    else is relied on since (docs/adr/0047); and that of the only copy, when the metadata know that
    its disk was replaced: there is no other log with which it could be compared, and nobody has it
    lead but an operator who gives the rows up, or a topic that waits for nobody.
    """
    topic = image.topics_by_id.get(key[0])
    if topic is None or may_begin_empty(image, key, node_id):
        return topic is not None
    partition = topic.partitions[key[1]]
    if partition.begins_anew and partition.relied_on == (node_id,):
        return True
    is_only = partition.replicas == (node_id,)
    return is_only and node_id in partition.replaced_disks and partition.awaits_logs


def begins_here(partition: PartitionImage, node_id: int) -> bool:
    """The partition moves to this broker, which has just heard of it, and has no rows yet.

    A start has not: a directory that is missing then may have been lost.
    """
    assert node_id in partition.replicas
    return node_id in partition.adding_replicas and not _is_relied_on(partition, node_id)


def _is_relied_on(partition: PartitionImage, node_id: int) -> bool:
    return node_id in (partition.leader_id, *partition.relied_on)
