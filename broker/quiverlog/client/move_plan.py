"""Plans that follow from one wish: nothing is to lie on some brokers; a topic is to have so many
replicas.

Owns the choice of who takes a replica: of the brokers that may take more and have room, the one in
the rack with the fewest replicas of this partition, there on the host with the fewest, there with
the fewest replicas at all, then bytes, then partitions of this topic. What need not move stays.

Must not know: requests, clocks. Evening out is `rebalancing`'s.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence

from quiverlog.errors import InvalidReplicationFactor
from quiverlog.limits import REPLICATION_FACTOR_MAX

from .replica_layout import Layout, Move, PlanBroker, PlanPartition

__all__ = ["evacuate", "with_replication_factor"]


def evacuate(
    brokers: Iterable[PlanBroker],
    partitions: Sequence[PlanPartition],
    leaving: Collection[int],
    *,
    means: Callable[[PlanPartition], bool] = lambda _: True,
) -> list[Move]:
    """Everything that these brokers hold is to lie on others; nothing else moves.

    Args:
        brokers: all that are registered, alive or not, those that leave among them.
        partitions: all of the cluster, so that the emptiest brokers are known.
        leaving: node ids. They may be dead.
        means: says of a partition whether it is to move at all.

    Returns:
        One move for each partition that one of them holds.

    Raises:
        InvalidReplicationFactor: no broker is left that could take a replica; it names a partition.
    """
    staying = [one._replace(takes=one.takes and one.node_id not in leaving) for one in brokers]
    layout = Layout(staying, partitions)
    for at, partition in enumerate(partitions):
        replicas = list(partition.replicas)
        for position, node_id in enumerate(partition.replicas if means(partition) else ()):
            if node_id in leaving:
                kept = [n for n in replicas if n not in leaving]
                replicas[position] = _taker(layout, at, kept, replicas)
        if replicas != list(partition.replicas):
            layout.change(at, _led(layout, at, tuple(replicas), leaving))
    return layout.moves()


def with_replication_factor(
    brokers: Iterable[PlanBroker],
    partitions: Sequence[PlanPartition],
    topic: str,
    factor: int,
) -> list[Move]:
    """Each partition of the topic is to have so many replicas; those that it has stay if they can.

    A replica that is one too many is given up where it is closest to others, on a broker that is
    not alive before one that is, one that has no rows yet before one that has, and the preferred
    leader last.

    Args:
        partitions: all of the cluster.

    Raises:
        InvalidReplicationFactor: not that many brokers, or out of range.
    """
    if not 1 <= factor <= REPLICATION_FACTOR_MAX:
        raise InvalidReplicationFactor(
            f"a replication factor of {factor} was asked for, allowed are 1 to"
            f" {REPLICATION_FACTOR_MAX}."
        )
    layout = Layout(brokers, partitions)
    for at, partition in enumerate(partitions):
        if partition.topic != topic:
            continue
        replicas = list(partition.replicas)
        while len(replicas) > factor:
            replicas.remove(_surplus(layout, at, replicas))
        while len(replicas) < factor:
            replicas.append(_taker(layout, at, replicas, replicas))
        if tuple(replicas) != partition.replicas:
            layout.change(at, tuple(replicas))
    return layout.moves()


def _taker(layout: Layout, at: int, kept: Sequence[int], held: Collection[int]) -> int:
    """Who is to hold the partition besides those that keep it."""
    able = [n for n in layout.takers if n not in held]
    with_room = [n for n in able if layout.has_room(n, at)]
    topic, number = layout.partitions[at].topic, layout.partitions[at].partition
    if not with_room:
        why = "has room for it" if able else "is alive and does not hold it"
        raise InvalidReplicationFactor(
            f"{topic}-{number}: no further broker {why}; {len(kept)} can hold it."
        )
    return min(
        with_room,
        key=lambda n: (
            layout.nearness(n, kept),
            layout.replica_counts[n],
            layout.byte_counts[n],
            layout.topic_counts[n, topic],
            n,
        ),
    )


def _led(
    layout: Layout, at: int, replicas: tuple[int, ...], leaving: Collection[int]
) -> tuple[int, ...]:
    """These, and in front the one that leads least, if the partition loses its first."""
    before = layout.partitions[at].replicas
    if before[0] not in leaving:
        return replicas
    first = min(replicas, key=lambda n: (layout.leader_counts[n], replicas.index(n)))
    return (first, *(n for n in replicas if n != first))


def _surplus(layout: Layout, at: int, replicas: Sequence[int]) -> int:
    takers = set(layout.takers)
    coming = layout.partitions[at].coming
    last = len(replicas) - 1

    def value(node_id: int) -> tuple[bool, bool, tuple[int, int], bool, int, int]:
        """The lowest goes. Of equally close ones the preferred leader is never the lowest."""
        rack_pairs, host_pairs = layout.nearness(node_id, replicas)
        position = replicas.index(node_id)
        return (
            node_id in takers,
            node_id not in coming,
            (-rack_pairs, -host_pairs),
            position == 0,
            -layout.replica_counts[node_id],
            last - position,
        )

    return min(replicas, key=value)
