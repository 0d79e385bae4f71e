"""Who leads a partition, and who stays in sync, as brokers come and go.

Owns elections. Every function reads the image and returns the changes of partitions that follow
from what is about to hold; the caller logs them in one entry with the change that they follow from.

Who leads next is one rule (leaders.py): of the in-sync replicas, else of the eligible ones. With
neither, there is no leader, unless the topic prefers to lose rows
(`unclean.leader.election.enable`): then any replica that lives leads, alone in sync, with nobody
eligible, and the record says `unclean`.

Who restarts without a clean stop may lack rows that it had not flushed, and is trusted no more.
When that was the last one, nobody is: the partition awaits logs (`PartitionImage.awaits_logs`),
until enough of the replicas have told where theirs end, and the longest one leads
(docs/adr/0037).

What holds after each of them, for every partition:
- One broker at most leads in a leader epoch; who leads next has a later one.
- The leader is in sync and not fenced. Nobody fenced is in sync, and nobody at all is without a
  leader: the last one becomes eligible instead, unless it has lost its disk. So "in sync" always
  says who copies now.
- Eligible are only replicas out of sync, and only while fewer than the minimum are in sync.
- A replica whose disk was replaced counts for nothing before it is in sync again.

Must not know: how it is found out that a broker is gone, files, requests.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Final

from quiverlog.core.controller.configs import TopicConfig
from quiverlog.core.controller.eligible import eligible_after, logs_needed, min_in_sync
from quiverlog.core.controller.image import Image
from quiverlog.core.controller.leaders import alive_brokers, leader_change, successor
from quiverlog.core.controller.log_ends import MISSING, UNREADABLE, LogEnd, Said
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
    """Whether who leaves the in-sync replicas has what readers saw."""

    ROWS = enum.auto()
    FLUSHED_ROWS = enum.auto()
    """Perhaps not all."""
    NOTHING = enum.auto()
    """Not even those that it had flushed."""


# --- brokers come and go -----------------------------------------------------------------------
def broker_fenced(image: Image, node_id: int) -> list[Record]:
    """Nobody hears from it any more: others lead, and nobody waits for it."""
    return _gone(image, node_id, _Kept.ROWS)


def broker_shutting_down(image: Image, node_id: int) -> list[Record]:
    """A broker is about to stop: others lead, and nobody does where there are none."""
    return _gone(image, node_id, _Kept.ROWS)


def broker_restarted_uncleanly(image: Image, node_id: int) -> list[Record]:
    """A broker is fenced as a new life, which may lack rows that the last one had not flushed."""
    return _gone(image, node_id, _Kept.FLUSHED_ROWS)


def disk_lost(image: Image, node_id: int) -> list[Record]:
    """A broker is fenced as a new life with another disk: nobody counts on rows that it had.

    What only that disk had has no leader from now on. To let an empty log lead would be to lose the
    rows without a word, and for good: a copy of it may come back, or another replica be elected.
    """
    return _gone(image, node_id, _Kept.NOTHING)


def restarted_alone(image: Image, node_id: int) -> list[Record]:
    """The whole quorum restarts uncleanly, as one broker, which may lack rows: nobody can tell it
    so, as it decides itself. Others lead where they have all rows, or by what the logs say; what
    nobody else holds it leads on, under a new epoch: offsets of rows that are lost will be given to
    others, which only the epoch shows to a reader (KIP-320).
    """
    assert node_id >= 0, "a partition without a leader keeps its epoch"
    alive = alive_brokers(image) - {node_id}
    changes: list[Record] = []
    for topic, partition in _relying_on(image, node_id, _Kept.FLUSHED_ROWS):
        in_sync, eligible = partition.in_sync_replicas, partition.eligible_leader_replicas
        assert not set(in_sync) & set(eligible)
        if len(partition.replicas) > 1:
            changes += _leave(topic, partition, node_id, alive, _Kept.FLUSHED_ROWS)
        elif partition.leader_id == node_id:
            epoch = partition.leader_epoch + 1
            changes.append(
                PartitionChangeRecord(
                    topic.topic_id, partition.partition, leader_id=node_id, leader_epoch=epoch
                )
            )
    return changes


def broker_unfenced(image: Image, node_id: int) -> list[Record]:
    """A broker is heard again, and has the metadata: it leads what has no leader and it has."""
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


# --- what somebody asks for --------------------------------------------------------------------
def unclean_leader(
    image: Image, topic_id: bytes, number: int, ends: Mapping[int, LogEnd]
) -> list[Record]:
    """Whoever lives leads, where nobody does: what the operator asks for to have rows again.

    Args:
        ends: what is known of the logs. Of those that live, the longest one leads.
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
    is_heard: Callable[[int], bool],
) -> list[Record]:
    """The longest log leads a partition that awaits logs; no change while too few are known.

    Where no disk that counts has ever had a row of it, who was trusted last is among them, and too
    few others were lost to have all disks that a row was promised to lie on, nothing is to be
    found, and somebody begins (docs/adr/0047).

    Args:
        ends: what the brokers have told of theirs, in this life of each.
        is_heard: whether a broker has a session. Whoever is there is waited for: its log may be
            longer by rows that nobody was promised, which are as dear to somebody.
    """
    topic = image.topics_by_id[topic_id]
    partition = topic.partitions[number]
    assert partition.partition == number
    if not partition.awaits_logs:
        return []
    alive, replaced, counted = alive_brokers(image), partition.replaced_disks, partition.counted
    intact = [n for n in counted if n not in replaced]
    told = {n: ends[n] for n in intact if n in ends and n in alive}
    logs = [n for n in told if told[n].is_log]
    # Where every disk has been asked nothing more will be known: rows lie on none that has no log.
    is_all = len(told) == len(counted)
    is_all = is_all and all(one.end_offset != UNREADABLE for one in told.values())
    is_bare = bool(told) and len(told) == len(intact)
    is_bare = is_bare and all(one.end_offset in (MISSING, 0) for one in told.values())
    is_bare = is_bare and partition.last_trusted in (NO_LEADER, *intact)
    needed = logs_needed(topic, partition)
    is_bare = is_bare and len(intact) >= needed
    is_enough = is_all or len(logs) >= needed
    is_bare = is_bare and (len(counted) > 1 or topic.config.unclean_leader_election)
    if not (is_bare or (logs and is_enough)):
        return []
    if any(n not in ends and is_heard(n) for n in intact):
        return []
    if partition.last_trusted in intact and partition.last_trusted not in told:
        return []
    leader_id = _longest(logs or told, told)
    assert leader_id in alive
    assert all(told[n].reach <= told[leader_id].reach for n in logs)
    if told[leader_id].is_offline or _returns_with_more(image, ends, intact, told[leader_id]):
        return []
    if told[leader_id].log_start_offset < deleted_below(told.values(), told[leader_id]):
        return []  # Its broker is told so, gives them up, and says when it has.
    begins_anew = told[leader_id].end_offset == MISSING
    unclean = begins_anew and len(counted) == 1
    leads = (leader_id,)
    return leader_change(topic, partition, *leads, leads, (), unclean, begins_anew=begins_anew)


def deleted_below(ends: Iterable[LogEnd], one: LogEnd) -> int:
    """Rows of this log below the offset were deleted: another log of those that are known says so.

    A deletion is confirmed when the replicas that live have written it down. One that was away
    then may have the longest log later. Logs whose last rows are of one epoch have the same rows,
    as far as they reach; what another one of an older epoch says may be of rows that an unclean
    election has replaced since.
    """
    assert one.log_start_offset >= 0
    starts = [end.log_start_offset for end in ends if end.last_epoch == one.last_epoch]
    assert min(starts, default=0) >= 0
    return min(max(starts, default=0), max(one.end_offset, 0))


def _returns_with_more(
    image: Image, ends: Mapping[int, LogEnd], intact: Iterable[int], longest: LogEnd
) -> bool:
    """True where a broker that is being restarted has told of a longer log than these."""
    return any(
        image.brokers[n].in_shutdown and ends[n].is_log and ends[n].reach > longest.reach
        for n in intact
        if n in ends
    )


def only_copy_lost(image: Image, node_id: int, said: Said) -> list[Record]:
    """The broker that alone holds a partition, and leads it, has no log of it: nobody leads.

    So it awaits logs: the one that somebody brings back leads by itself, and who gives the rows up
    has it begin anew, as with any partition that nobody leads (docs/adr/0054). No change where
    somebody else might be relied on, or where it is about to begin.
    """
    assert node_id >= 0
    topic = image.topics_by_id.get(said.topic_id)
    if topic is None or said.end.end_offset != MISSING:
        return []
    if not 0 <= said.partition < len(topic.partitions):
        return []
    partition = topic.partitions[said.partition]
    assert partition.partition == said.partition
    is_only = partition.replicas == (node_id,) and partition.leader_id == node_id
    if not is_only or partition.begins_anew or said.leader_epoch != partition.leader_epoch:
        return []
    return leader_change(topic, partition, NO_LEADER, (), ())


def settings_changed(image: Image, topic: TopicImage, config: TopicConfig) -> list[Record]:
    """The topic's configuration is to be this one.

    With a lower minimum rows become readable that those out of sync do not have. Where rows may be
    lost from now on, partitions without a leader get one.
    """
    assert image.topics_by_id.get(topic.topic_id) is topic, "decided on what will hold"
    alive = alive_brokers(image)
    changes: list[Record] = []
    for partition in topic.partitions:
        in_sync, eligible = partition.in_sync_replicas, partition.eligible_leader_replicas
        if partition.leader_id == NO_LEADER:
            changes += _settle(topic, config, partition, in_sync, alive)
        elif eligible and len(in_sync) >= min_in_sync(config, partition):
            changes += leader_change(topic, partition, partition.leader_id, in_sync, ())
    assert len(changes) <= len(topic.partitions)
    return changes


# --- parts -------------------------------------------------------------------------------------
def _longest(node_ids: Iterable[int], ends: Mapping[int, LogEnd]) -> int:
    """Whose log is longest, the first of them if several are; NO_LEADER: of nobody's."""
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
    """The partitions in which this broker is in sync, or eligible; with its disk gone, all that it
    holds. All are looked at: a broker comes or goes seldom."""
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
    """One broker is in sync no more, and eligible as far as it has its rows."""
    in_sync = _minus(partition.in_sync_replicas, node_id)
    assert node_id not in in_sync
    if len(partition.replicas) == 1 and kept is _Kept.FLUSHED_ROWS:
        # Nobody has more: what it comes back with is the log.
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
    """The change by which these are in sync, with a leader; none where all is so already.

    Args:
        lost: who is not eligible, having lost its rows.
        replaced: whose disk was replaced from now on; None: as it was.
        unclean_ends: elect uncleanly, whatever the configuration says: by what these logs have.
    """
    unclean, begins_anew = False, False
    trusted = [n for n in eligible_after(config, partition, ()) if n not in lost]
    leader_id, in_sync = successor(partition, alive, in_sync, trusted)
    may_lose = config.unclean_leader_election or unclean_ends is not None
    if leader_id == NO_LEADER and may_lose:
        ends = unclean_ends or {}
        there = [n for n in partition.replicas if n in alive]
        # One whose disk has failed takes no writes: only where nobody else is there.
        able = [n for n in there if n not in ends or not ends[n].is_offline]
        leader_id = _longest(able or there, ends)
        unclean = leader_id != NO_LEADER
        # Rows are given up for somebody who leads: it must not wait for a directory.
        begins_anew = ends.get(leader_id, _NO_LOG).end_offset == MISSING
        in_sync = () if leader_id == NO_LEADER else (leader_id,)
    assert not set(lost) & set(in_sync), "who has lost its rows leads nothing"
    assert leader_id == NO_LEADER or leader_id in alive or leader_id == partition.leader_id
    left = () if unclean else eligible_after(config, partition, in_sync)
    eligible = tuple(n for n in left if n not in lost)
    return leader_change(
        topic, partition, leader_id, in_sync, eligible, unclean, replaced, begins_anew=begins_anew
    )


def _minus(members: tuple[int, ...], node_id: int) -> tuple[int, ...]:
    return tuple(member for member in members if member != node_id)
