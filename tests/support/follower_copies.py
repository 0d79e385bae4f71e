"""Copies of a partition in a model, and what a broker shows of one, by docs/protocol.md.

How brokers answer a FETCH is written down a second time here; that the real ones do so is the
business of others.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from quiverlog.core.replication.divergence import diverging
from quiverlog.errors import (
    FencedLeaderEpoch,
    LogTruncated,
    NotLeader,
    OffsetNotAvailable,
    OffsetOutOfRange,
    ReplicaNotAvailable,
    UnknownLeaderEpoch,
)
from quiverlog.wire import messages as m

from .replication import ModelLog

__all__ = ["Copy", "Partition", "View", "read"]


class View(NamedTuple):
    """What a broker has received of a partition."""

    leader: int
    leader_epoch: int
    in_sync: tuple[int, ...]


@dataclass
class Copy:
    """One broker's copy of a partition."""

    log: ModelLog
    view: View
    agreed: bool = False
    stuck_at: int | None = None


@dataclass
class Partition:
    """A partition: what is true, and the copies. `acked`: ends that its leader has received."""

    truth: View
    copies: dict[int, Copy]
    acked: dict[int, int] = field(default_factory=dict)
    committed: list[int] = field(default_factory=list)


def read(
    copy: Copy, node: int, entry: m.FetchPartition, result: m.FetchPartitionResult
) -> list[tuple[int, int]]:
    """The rows that a broker may show, by docs/protocol.md."""
    view, log = copy.view, copy.log
    leads = view.leader == node
    if not leads and not entry.from_follower:
        raise NotLeader("elsewhere.")
    if not leads and not (copy.agreed and node in view.in_sync and view.leader >= 0):
        raise ReplicaNotAvailable("not now.")
    result.leader_epoch = view.leader_epoch
    result.log_start_offset = 0
    result.high_watermark = result.last_stable_offset = log.high_watermark
    if entry.leader_epoch not in (-1, view.leader_epoch):
        older = entry.leader_epoch < view.leader_epoch
        raise FencedLeaderEpoch("old.") if older else UnknownLeaderEpoch("new.")
    beyond = entry.offset > log.log_end_offset
    newest, _ = log.epochs.latest()
    if beyond and not leads and (entry.last_epoch == -1 or entry.last_epoch >= newest):
        raise OffsetNotAvailable("not copied yet.")
    if entry.last_epoch > view.leader_epoch:
        raise UnknownLeaderEpoch("rows of a later leader were read.")
    parted = diverging(log.epochs, entry.last_epoch, entry.offset)
    if parted is not None:
        epoch, end = parted if parted[1] >= 0 else (view.leader_epoch, log.log_end_offset)
        result.diverging_epoch, result.diverging_end_offset = epoch, min(end, entry.offset)
        raise LogTruncated("parted.")
    if beyond or entry.offset < 0:
        raise OffsetOutOfRange("out of range.")
    end = log.high_watermark if entry.end_offset < 0 else min(entry.end_offset, log.high_watermark)
    return log.rows[entry.offset : end]
