"""Why a partition is not open, in the error table's words, and whether trying again can help.

Must not know: who opens partitions, and when.
"""

from __future__ import annotations

import errno
from typing import Final, NamedTuple

from quiverlog.errors import CorruptLog, DiskFull, QuiverlogError, StorageFault
from quiverlog.storage.disk import what_failed
from quiverlog.types import TopicPartition

__all__ = ["Offline", "Opening", "offline_reason"]

_PASSING: Final = frozenset(
    (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EIO, errno.EAGAIN, errno.EINTR)
)
"""Failures of the system that may be over the next time."""


class Opening(NamedTuple):
    """A partition that is to be opened.

    `clean`: its files may be trusted without a scan. `new`: there are none, its directory has just
    been made.
    """

    name: TopicPartition
    clean: bool
    new: bool = False


class Offline(NamedTuple):
    """Why a partition is not open, and how it was to be opened."""

    error: QuiverlogError
    opening: Opening


def offline_reason(name: TopicPartition, error: BaseException) -> tuple[QuiverlogError, bool]:
    """(what requests of the partition are answered, may it be over the next time)."""
    causes = [one for one in (error, error.__cause__) if isinstance(one, OSError)]
    passing = isinstance(error, DiskFull) or any(one.errno in _PASSING for one in causes)
    if isinstance(error, CorruptLog | DiskFull):
        return type(error)(f"{name} is offline: {error.message}"), passing
    why = what_failed(error) if isinstance(error, OSError) else str(error)
    return StorageFault(f"{name} is offline: {why}."), passing
