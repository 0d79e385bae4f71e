"""Who holds which partition, as a plan changes it: the table that planners of moves work on.

Owns the replicas of each partition as planned so far and what follows from them for each broker:
how many replicas, how many leaders (the first of the replicas), how many bytes. `crowding` says how
badly the replicas of one partition lie: pairs in one rack, then pairs on one host of one rack.
Replicas that are as far apart as brokers allow have the fewest such pairs.

Always holds: a broker holds a partition once, and its sums are those of the replicas it holds.

Must not know: which changes are good ones (`move_plan`, `rebalancing`), requests, clocks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

__all__ = ["Crowding", "Layout", "Move", "PlanBroker", "PlanPartition"]


class PlanBroker(NamedTuple):
    """A broker as planners see it.

    `takes`: it is alive, stays, and may be given more. `free_bytes`: what its disk has room for
    besides what it holds; None: not known, which is taken for enough.
    """

    node_id: int
    rack: str = ""
    host: str = ""
    takes: bool = True
    free_bytes: int | None = None


class PlanPartition(NamedTuple):
    """A partition as planners see it.

    `replicas`: who is to hold it, the preferred leader first. `coming`: those of them that copy it
    still, because it moves already.
    """

    topic: str
    partition: int
    replicas: tuple[int, ...]
    size_bytes: int = 0
    coming: tuple[int, ...] = ()

    def move(self, after: tuple[int, ...]) -> Move:
        """These are to hold it instead."""
        return Move(self.topic, self.partition, self.replicas, after, self.size_bytes, self.coming)


class Move(NamedTuple):
    """A partition that others are to hold, or that another of its replicas is to lead.

    `coming`: those of `before` that copy it still.
    """

    topic: str
    partition: int
    before: tuple[int, ...]
    after: tuple[int, ...]
    size_bytes: int = 0
    coming: tuple[int, ...] = ()

    @property
    def added(self) -> tuple[int, ...]:
        """Who copies it."""
        return tuple(n for n in self.after if n not in self.before or n in self.coming)

    @property
    def removed(self) -> tuple[int, ...]:
        """Who gives it up."""
        return tuple(n for n in self.before if n not in self.after)

    @property
    def copied_bytes(self) -> int:
        """What travels."""
        return self.size_bytes * len(self.added)

    @property
    def moves_leader(self) -> bool:
        """Another broker is to lead it, by preference."""
        return self.before[0] != self.after[0]


class Crowding(NamedTuple):
    """Pairs of replicas of one partition that would be lost together; fewer is better."""

    rack_pairs: int
    host_pairs: int


class Layout:
    """See the module docstring.

    Args:
        brokers: all that are registered.
        partitions: all that the cluster has; the sums are about all of them.
    """

    def __init__(self, brokers: Iterable[PlanBroker], partitions: Sequence[PlanPartition]) -> None:
        self.brokers = {one.node_id: one for one in brokers}
        self.partitions = partitions
        self.replicas = [one.replicas for one in partitions]
        self.replica_counts: Counter[int] = Counter()
        self.leader_counts: Counter[int] = Counter()
        self.byte_counts: Counter[int] = Counter()
        self.incoming_bytes: Counter[int] = Counter()
        self.topic_counts: Counter[tuple[int, str]] = Counter()
        for at, replicas in enumerate(self.replicas):
            assert len(set(replicas)) == len(replicas) >= 1, "different brokers hold it"
            self._count(at, replicas, 1)

    @property
    def takers(self) -> list[int]:
        """Who may be given more, by id."""
        return sorted(n for n, one in self.brokers.items() if one.takes)

    def change(self, at: int, replicas: tuple[int, ...]) -> None:
        """These are to hold the partition at this place of the list."""
        before = self.replicas[at]
        assert len(set(replicas)) == len(replicas) >= 1, "different brokers hold it"
        self._count(at, before, -1)
        self._count(at, replicas, 1)
        original, size = self.partitions[at].replicas, self.partitions[at].size_bytes
        for node_id in set(replicas) - set(before) - set(original):
            self.incoming_bytes[node_id] += size
        for node_id in set(before) - set(replicas) - set(original):
            self.incoming_bytes[node_id] -= size
        self.replicas[at] = replicas

    def has_room(self, node_id: int, at: int) -> bool:
        """The broker's disk takes this partition besides all that is to come there.

        What is to leave it is not counted: it leaves when the copies are there.
        """
        free = self.brokers[node_id].free_bytes
        partition = self.partitions[at]
        if free is None or node_id in partition.replicas:
            return True
        return self.incoming_bytes[node_id] + partition.size_bytes <= free

    def copies(self, at: int, replicas: Sequence[int]) -> int:
        """So many brokers had to copy the partition if these held it."""
        partition = self.partitions[at]
        return len(partition.move(tuple(replicas)).added)

    def crowding(self, replicas: Sequence[int]) -> Crowding:
        """How close together these are. A broker that nobody knows any more is close to none."""
        places = [self._place(node_id) for node_id in replicas]
        rack_pairs = _pairs(Counter(rack for rack, _ in places))
        host_pairs = _pairs(Counter(places))
        assert host_pairs <= rack_pairs, "who shares a host shares a rack"
        return Crowding(rack_pairs, host_pairs)

    def nearness(self, node_id: int, others: Collection[int]) -> Crowding:
        """The pairs that one broker makes with others."""
        rack, host = self._place(node_id)
        rack_pairs = host_pairs = 0
        for other in others:
            if other != node_id:
                their_rack, their_host = self._place(other)
                rack_pairs += rack == their_rack
                host_pairs += rack == their_rack and host == their_host
        return Crowding(rack_pairs, host_pairs)

    def moves(self) -> list[Move]:
        """What is different from the beginning, in the order of the list."""
        return [
            one.move(after)
            for one, after in zip(self.partitions, self.replicas, strict=True)
            if after != one.replicas
        ]

    def _place(self, node_id: int) -> tuple[object, object]:
        broker = self.brokers.get(node_id)
        return (node_id, node_id) if broker is None else (broker.rack, broker.host)

    def _count(self, at: int, replicas: Sequence[int], step: int) -> None:
        partition = self.partitions[at]
        self.leader_counts[replicas[0]] += step
        for node_id in replicas:
            self.replica_counts[node_id] += step
            self.byte_counts[node_id] += step * partition.size_bytes
            self.topic_counts[node_id, partition.topic] += step


def _pairs(counts: Counter[object] | Counter[tuple[object, object]]) -> int:
    return sum(count * (count - 1) // 2 for count in counts.values())
