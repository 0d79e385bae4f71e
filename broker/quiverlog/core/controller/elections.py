"""Elections: leader and in-sync replicas of each partition, as brokers come and go.

A broker that restarts uncleanly may lack unflushed rows and is no longer trusted. Without a trusted
replica the partition awaits logs (`PartitionImage.awaits_logs`, docs/adr/0037).

Invariants: one leader per leader epoch. The leader is in sync and not fenced; fenced brokers are
not in sync. Without a leader no replica is in sync: the last one becomes eligible, unless it may
have lost rows. Eligible replicas are out of sync, and exist only below the minimum in sync.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Final

from quiverlog.core.controller.configs import TopicConfig
from quiverlog.core.controller.eligible import eligible_after, logs_needed, min_in_sync
from quiverlog.core.controller.image import Image
from quiverlog.core.controller.leaders import alive_brokers, leader_change, successor
from quiverlog.core.controller.log_ends import MISSING, UNREADABLE, LogEnd, LogEndReport
from quiverlog.core.controller.records import (
    NO_LEADER,
    PartitionChangeRecord,
    Record,
)
from quiverlog.core.controller.topic_image import PartitionImage, TopicImage
from quiverlog.types import NO_EPOCH

__all__ = [
    "broker_fenced",
    "broker_restarted_uncleanly",
    "broker_shutting_down",
    "broker_unfenced",
    "deleted_below",
    "disk_lost",
    "longest_log",
    "only_copy_lost",
    "restarted_alone",
    "settings_changed",
    "unclean_leader",
]


_NO_LOG: Final = LogEnd(NO_EPOCH, MISSING)


class _Kept(enum.Enum):
    """What a replica that leaves the in-sync set still has of the rows that readers got."""

    ROWS = enum.auto()
    FLUSHED_ROWS = enum.auto()
    """Perhaps not all."""
    NOTHING = enum.auto()
    """Not even flushed rows."""


# --- brokers come and go -----------------------------------------------------------------------
def broker_fenced(image: Image, node_id: int) -> list[Record]:
    return _gone(image, node_id, _Kept.ROWS)


def broker_shutting_down(image: Image, node_id: int) -> list[Record]:
    return _gone(image, node_id, _Kept.ROWS)


def broker_restarted_uncleanly(image: Image, node_id: int) -> list[Record]:
    return _gone(image, node_id, _Kept.FLUSHED_ROWS)


def disk_lost(image: Image, node_id: int) -> list[Record]:
    """Decide for a restarted broker whose disk was replaced: none of its rows count."""
    # A partition that only that disk held gets no leader: an empty log would lose the rows for
    # good, while a copy may come back.
    return _gone(image, node_id, _Kept.NOTHING)


def restarted_alone(image: Image, node_id: int) -> list[Record]:
    """Treat the only voter, restarted uncleanly, like any such broker: it is its own controller."""
    assert node_id >= 0, "a partition without a leader keeps its epoch"
    alive = alive_brokers(image) - {node_id}
    changes: list[Record] = []
    for topic, partition in _relying_on(image, node_id, _Kept.FLUSHED_ROWS):
        in_sync, eligible = partition.in_sync_replicas, partition.eligible_leader_replicas
        assert not set(in_sync) & set(eligible)
        if len(partition.replicas) > 1:
            changes += _leave(topic, partition, node_id, alive, _Kept.FLUSHED_ROWS)
        elif partition.leader_id == node_id:
            # Offsets of lost rows will be reused, which readers notice only by the epoch (KIP-320).
            epoch = partition.leader_epoch + 1
            changes.append(
                PartitionChangeRecord(
                    topic.topic_id, partition.partition, leader_id=node_id, leader_epoch=epoch
                )
            )
    return changes


def broker_unfenced(image: Image, node_id: int) -> list[Record]:
    assert node_id >= 0
    alive = alive_brokers(image) | {node_id}
    changes: list[Record] = []
    for topic_id, number in image.leaderless:
        topic = image.topics_by_id[topic_id]
        partition = topic.partitions[number]
        assert partition.leader_id == NO_LEADER
        if node_id in partition.replicas:
            changes += _settle(topic, topic.config, partition, partition.in_sync_replicas, alive)
    return changes


# --- on request -------------------------------------------------------------------------------
def unclean_leader(
    image: Image, topic_id: bytes, number: int, ends: Mapping[int, LogEnd]
) -> list[Record]:
    """Elect any live replica where there is no leader, for an operator that accepts losing rows.

    Of the live logs among `ends`, the longest leads.
    """
    topic = image.topics_by_id[topic_id]
    partition = topic.partitions[number]
    assert partition.partition == number
    if partition.leader_id != NO_LEADER:
        return []
    assert (topic_id, number) in image.leaderless
    in_sync, alive = partition.in_sync_replicas, alive_brokers(image)
    return _settle(topic, topic.config, partition, in_sync, alive, unclean_ends=ends)


def longest_log(
    image: Image,
    topic_id: bytes,
    number: int,
    ends: Mapping[int, LogEnd],
    has_session: Callable[[int], bool],
) -> list[Record]:
    """Elect the longest log of a partition that awaits logs; no change while too few are known.

    `ends`: the logs that brokers reported since their last start.
    """
    topic = image.topics_by_id[topic_id]
    partition = topic.partitions[number]
    assert partition.partition == number
    if not partition.awaits_logs:
        return []
    alive, replaced, counted = alive_brokers(image), partition.replaced_disks, partition.counted
    intact = [n for n in counted if n not in replaced]
    reported = {n: ends[n] for n in intact if n in ends and n in alive}
    logs = [n for n in reported if reported[n].is_log]
    # Every counted disk was reported, so nothing more can be learned; rows are on none without a
    # log.
    is_all = len(reported) == len(counted)
    is_all = is_all and all(one.end_offset != UNREADABLE for one in reported.values())
    # A new log begins where no counted disk has ever had a row, the last trusted replica is among
    # them, and too few others were lost to have held every copy of an acknowledged row
    # (docs/adr/0047).
    is_bare = bool(reported) and len(reported) == len(intact)
    is_bare = is_bare and all(one.end_offset in (MISSING, 0) for one in reported.values())
    is_bare = is_bare and partition.last_trusted in (NO_LEADER, *intact)
    needed = logs_needed(topic, partition)
    is_bare = is_bare and len(intact) >= needed
    is_enough = is_all or len(logs) >= needed
    is_bare = is_bare and (len(counted) > 1 or topic.config.unclean_leader_election)
    if not (is_bare or (logs and is_enough)):
        return []
    # Live brokers will report within moments: their logs may be longer.
    if any(n not in ends and has_session(n) for n in intact):
        return []
    # The last trusted replica may have acknowledged rows alone.
    if partition.last_trusted in intact and partition.last_trusted not in reported:
        return []
    leader_id = _longest(logs or reported, reported)
    longest = reported[leader_id]
    assert leader_id in alive
    assert all(reported[n].reach <= longest.reach for n in logs)
    if longest.is_offline or _returns_with_more(image, ends, intact, longest):
        return []
    if longest.log_start_offset < deleted_below(reported.values(), longest):
        return []  # Its broker gets the start, deletes the rows, and reports again.
    begins_anew = longest.end_offset == MISSING
    unclean = begins_anew and len(counted) == 1
    leads = (leader_id,)
    return leader_change(topic, partition, *leads, leads, (), unclean, begins_anew=begins_anew)


def deleted_below(ends: Iterable[LogEnd], one: LogEnd) -> int:
    """Return the start that this log must have: a replica that was away when rows were deleted may
    have the longest log."""
    assert one.log_start_offset >= 0
    # Only logs whose last rows are of the same epoch have the same rows.
    starts = [end.log_start_offset for end in ends if end.last_epoch == one.last_epoch]
    assert min(starts, default=0) >= 0
    return min(max(starts, default=0), max(one.end_offset, 0))


def _returns_with_more(
    image: Image, ends: Mapping[int, LogEnd], intact: Iterable[int], longest: LogEnd
) -> bool:
    return any(
        image.brokers[n].in_shutdown and ends[n].is_log and ends[n].reach > longest.reach
        for n in intact
        if n in ends
    )


def only_copy_lost(image: Image, node_id: int, report: LogEndReport) -> list[Record]:
    """Leave a partition without a leader whose only replica reports that its log is missing.

    It awaits logs: a log that is brought back leads by itself, or an operator gives the rows up
    (docs/adr/0054). No change where another replica counts, or the partition is about to begin.
    """
    assert node_id >= 0
    topic = image.topics_by_id.get(report.topic_id)
    if topic is None or report.end.end_offset != MISSING:
        return []
    if not 0 <= report.partition < len(topic.partitions):
        return []
    partition = topic.partitions[report.partition]
    assert partition.partition == report.partition
    is_only = partition.replicas == (node_id,) and partition.leader_id == node_id
    if not is_only or partition.begins_anew or report.leader_epoch != partition.leader_epoch:
        return []
    return leader_change(topic, partition, NO_LEADER, (), ())


def settings_changed(image: Image, topic: TopicImage, config: TopicConfig) -> list[Record]:
    assert image.topics_by_id.get(topic.topic_id) is topic, "decided on what will hold"
    alive = alive_brokers(image)
    changes: list[Record] = []
    for partition in topic.partitions:
        in_sync, eligible = partition.in_sync_replicas, partition.eligible_leader_replicas
        # Where rows may be lost from now on, partitions without a leader get one.
        if partition.leader_id == NO_LEADER:
            changes += _settle(topic, config, partition, in_sync, alive)
        # A lower minimum makes rows readable that replicas out of sync lack.
        elif eligible and len(in_sync) >= min_in_sync(config, partition):
            changes += leader_change(topic, partition, partition.leader_id, in_sync, ())
    assert len(changes) <= len(topic.partitions)
    return changes


# --- parts -------------------------------------------------------------------------------------
def _longest(node_ids: Iterable[int], ends: Mapping[int, LogEnd]) -> int:
    longest, best = NO_LEADER, (NO_EPOCH, MISSING - 1)
    for node_id in node_ids:
        end = ends.get(node_id, LogEnd(NO_EPOCH, UNREADABLE)).reach
        if end > best:
            longest, best = node_id, end
    assert longest == NO_LEADER or best[1] >= MISSING
    return longest


def _relying_on(
    image: Image, node_id: int, kept: _Kept
) -> Iterator[tuple[TopicImage, PartitionImage]]:
    """Yield the partitions in which this broker is in sync or eligible; with its disk lost, all
    that it holds."""
    # Every partition is visited: brokers come and go rarely.
    for topic in image.topics.values():
        for partition in topic.partitions:
            in_sync, eligible = partition.in_sync_replicas, partition.eligible_leader_replicas
            is_relied_on = node_id in in_sync or (eligible and node_id in eligible)
            if is_relied_on or (kept is _Kept.NOTHING and node_id in partition.replicas):
                yield topic, partition


def _gone(image: Image, node_id: int, kept: _Kept) -> list[Record]:
    alive = alive_brokers(image) - {node_id}
    assert node_id >= 0
    assert kept is _Kept.ROWS or node_id not in alive
    changes: list[Record] = []
    for topic, partition in _relying_on(image, node_id, kept):
        changes += _leave(topic, partition, node_id, alive, kept)
    return changes


def _leave(
    topic: TopicImage, partition: PartitionImage, node_id: int, alive: Collection[int], kept: _Kept
) -> list[Record]:
    in_sync = _minus(partition.in_sync_replicas, node_id)
    assert node_id not in in_sync
    if len(partition.replicas) == 1 and kept is _Kept.FLUSHED_ROWS:
        # No other replica has more: what it comes back with is the log.
        kept = _Kept.ROWS
    lost = () if kept is _Kept.ROWS else (node_id,)
    replaced = partition.replaced_disks
    if kept is _Kept.NOTHING:
        replaced = (*_minus(replaced, node_id), node_id)
    return _settle(topic, topic.config, partition, in_sync, alive, lost=lost, replaced=replaced)


def _settle(
    topic: TopicImage,
    config: TopicConfig,
    partition: PartitionImage,
    in_sync: tuple[int, ...],
    alive: Collection[int],
    *,
    lost: Collection[int] = (),
    replaced: tuple[int, ...] | None = None,
    unclean_ends: Mapping[int, LogEnd] | None = None,
) -> list[Record]:
    """Return the change to these in-sync replicas, with a leader; none where nothing differs.

    `lost` replicas are not eligible. `replaced`: those with a replaced disk from now on; None: as
    before. `unclean_ends`: elect uncleanly whatever the configuration, by these logs.
    """
    unclean, begins_anew = False, False
    trusted = [n for n in eligible_after(config, partition, ()) if n not in lost]
    leader_id, in_sync = successor(partition, alive, in_sync, trusted)
    may_lose = config.unclean_leader_election or unclean_ends is not None
    if leader_id == NO_LEADER and may_lose:
        ends = unclean_ends or {}
        there = [n for n in partition.replicas if n in alive]
        # A failed disk takes no writes: only where no other replica is alive.
        able = [n for n in there if n not in ends or not ends[n].is_offline]
        leader_id = _longest(able or there, ends)
        unclean = leader_id != NO_LEADER
        # The rows are given up in favour of a leader that starts now: it may make an empty log.
        begins_anew = ends.get(leader_id, _NO_LOG).end_offset == MISSING
        in_sync = () if leader_id == NO_LEADER else (leader_id,)
    assert not set(lost) & set(in_sync), "a replica that lost rows does not lead"
    assert leader_id == NO_LEADER or leader_id in alive or leader_id == partition.leader_id
    left = () if unclean else eligible_after(config, partition, in_sync)
    eligible = tuple(n for n in left if n not in lost)
    return leader_change(
        topic, partition, leader_id, in_sync, eligible, unclean, replaced, begins_anew=begins_anew
    )


def _minus(members: tuple[int, ...], node_id: int) -> tuple[int, ...]:
    return tuple(member for member in members if member != node_id)
