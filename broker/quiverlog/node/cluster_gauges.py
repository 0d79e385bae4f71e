"""A broker's gauges of its cluster: looked up when scraped, not counted.

Any thread may read them, so each table is copied in one step; the values may be of slightly
different moments.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final, NamedTuple

from quiverlog.core.partition.leadership import Leadership
from quiverlog.node.partitions.replica import Replica
from quiverlog.types import Now

if TYPE_CHECKING:
    from quiverlog.core.controller.image import Image
    from quiverlog.node.metadata.quorum import Quorum
    from quiverlog.node.node import Node

__all__ = [
    "NO_BROKER",
    "ClusterGauges",
    "TransactionGauges",
    "cluster_gauges",
    "publish_waiting_rows",
    "transaction_gauges",
]

NO_BROKER: Final = -1
"""The quorum's leader while none is known."""


class ClusterGauges(NamedTuple):
    """Of replication: partitions led here. Of brokers and missing leaders: the applied metadata."""

    active_controller: int = 0
    brokers_registered: int = 0
    brokers_fenced: int = 0
    partitions_leaderless: int = 0
    partitions_awaiting_logs: int = 0
    partitions_under_replicated: int = 0
    partitions_under_min_in_sync: int = 0
    replica_lag_max_rows: int = 0
    replica_lag_max_bytes: int = 0
    replica_lag_max_seconds: float = 0.0
    quorum_lag_entries: int = 0
    quorum_term: int = 0
    quorum_leader_id: int = NO_BROKER


class TransactionGauges(NamedTuple):
    """Of what this broker coordinates, and of the partitions of `__staged` that it leads."""

    transactions_open: int = 0
    staged_bytes: int = 0
    staged_oldest_seconds: float = 0.0
    publish_oldest_seconds: float = 0.0


def transaction_gauges(node: Node | None, now: Now) -> TransactionGauges:
    if node is None:
        return TransactionGauges()
    broker = node.broker
    byte_count = oldest_us = 0
    # The loop's thread may give up the last row meanwhile, and with it the columns.
    with contextlib.suppress(IndexError):
        byte_count, _, oldest_us = broker.staging.room(now.mono_us)
    decided_us = broker.coordinators.oldest_publish_us()
    return TransactionGauges(
        sum(one.open_count for one in broker.coordinators.coordinated()),
        byte_count,
        oldest_us / 1e6,
        0.0 if decided_us is None else max(0, now.wall_us - decided_us) / 1e6,
    )


def publish_waiting_rows(node: Node | None) -> dict[str, int]:
    """Return the rows that wait for partitions, by topic; those of deleted topics are left out."""
    found: dict[str, int] = {}
    if node is None:
        return found
    topics = node.broker.view.image.topics_by_id
    for one in node.broker.forwarding.queues.waiting():
        topic = topics.get(one.key[0])
        if topic is not None:
            found[topic.name] = found.get(topic.name, 0) + one.row_count
    return found


class _Lag(NamedTuple):
    rows: int = 0
    size_bytes: int = 0
    us: int = 0


def cluster_gauges(node: Node | None, now_us: int) -> ClusterGauges:
    """Return the gauges; the defaults before the start."""
    if node is None or node.broker.quorum.log is None:
        return ClusterGauges()
    broker = node.broker
    under_replicated = under_min = 0
    lag = _Lag()
    led = list(broker.replicas.values())
    for replica in led:
        leadership = replica.state.leadership
        if leadership is not None and leadership.followers:
            # The leader is one of the in-sync replicas, and none of the followers.
            under_replicated += len(leadership.in_sync.committed) <= len(leadership.followers)
            under_min += leadership.is_under_min
            lag = _Lag(*map(max, lag, _lag_of(replica, leadership, now_us)))
    assert 0 <= under_replicated <= len(led)
    assert 0 <= under_min <= len(led)
    image = broker.metadata.image
    raft = broker.quorum.raft
    leader = raft.leader
    brokers = list(image.brokers.values())
    return ClusterGauges(
        active_controller=int(broker.quorum.is_leading),
        brokers_registered=len(brokers),
        brokers_fenced=sum(one.fenced for one in brokers),
        partitions_leaderless=len(image.leaderless),
        partitions_awaiting_logs=_awaiting_logs(image),
        partitions_under_replicated=under_replicated,
        partitions_under_min_in_sync=under_min,
        replica_lag_max_rows=lag.rows,
        replica_lag_max_bytes=lag.size_bytes,
        replica_lag_max_seconds=lag.us / 1e6,
        quorum_lag_entries=_quorum_lag(broker.quorum),
        quorum_term=raft.term,
        quorum_leader_id=NO_BROKER if leader is None else leader.node_id,
    )


def _awaiting_logs(image: Image) -> int:
    count = 0
    # The loop's thread may delete a topic meanwhile.
    for topic_id, number in list(image.leaderless):
        topic = image.topics_by_id.get(topic_id)
        count += topic is not None and topic.partitions[number].awaits_logs
    assert count >= 0
    return count


def _lag_of(replica: Replica, leadership: Leadership, now_us: int) -> _Lag:
    end = replica.state.log_end_offset
    rows = us = 0
    for follower in list(leadership.followers.values()):
        # Until it fetches under this leader, the end of its log is unknown.
        if follower.has_fetched:
            rows = max(rows, end - follower.log_end_offset)
            if follower.log_end_offset >= end:
                continue
        # One that never had all rows is behind since this leader began to track it, or longer.
        us = max(us, now_us - max(follower.caught_up_us, follower.known_us))
    assert rows >= 0
    assert us >= 0
    return _Lag(rows, _bytes_of(replica, rows, end), us)


def _bytes_of(replica: Replica, rows: int, end: int) -> int:
    """Return the size of these rows, by the log's average."""
    held = end - replica.state.log_start_offset
    return replica.log.reader.size_bytes * min(rows, held) // held if rows and held > 0 else 0


def _quorum_lag(quorum: Quorum) -> int:
    """Return the committed entries not applied here; of a leader, those the slowest voter lacks."""
    raft = quorum.raft
    lag = max(0, raft.log.commit - quorum.applied_index)
    if quorum.is_leading:
        voters, last = raft.voters, raft.log.last_index
        matches = [match for key, match in raft.match_indexes.items() if key in voters]
        lag = max([lag, *(last - match for match in matches)])
    assert lag >= 0
    return lag
