"""Plans of moves: which replicas and leaders move, so that brokers hold and lead about as much.

The goals, none of which spoils an earlier one: replicas of a partition in as many racks and hosts
as possible; brokers differ by one replica; by a tenth of the mean in bytes; by one led partition.
Every step lowers the measure of its goal: the steps end, and a plan for a balanced cluster is
empty. A bound or lack of room may end a plan before its goals.

Invariant: a broker holds a partition once; its sums are those of the replicas it holds.
"""

from __future__ import annotations

import bisect
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

from quiverlog.errors import InvalidReplicationFactor
from quiverlog.limits import REPLICATION_FACTOR_MAX

__all__ = [
    "Crowding",
    "Layout",
    "Move",
    "PlanBroker",
    "PlanPartition",
    "evacuate",
    "even_leaders",
    "rebalance",
    "with_replication_factor",
]


class PlanBroker(NamedTuple):
    """`takes`: it is alive, stays, and may be given more. `free_bytes`: besides what it holds; None
    is taken for enough."""

    node_id: int
    rack: str = ""
    host: str = ""
    takes: bool = True
    free_bytes: int | None = None


class PlanPartition(NamedTuple):
    """`replicas`: the preferred leader first. `coming`: those that copy it still, because it moves
    already."""

    topic: str
    partition: int
    replicas: tuple[int, ...]
    size_bytes: int = 0
    coming: tuple[int, ...] = ()

    def move(self, after: tuple[int, ...]) -> Move:
        return Move(self.topic, self.partition, self.replicas, after, self.size_bytes, self.coming)


class Move(NamedTuple):
    """`coming`: those of `before` that copy it still."""

    topic: str
    partition: int
    before: tuple[int, ...]
    after: tuple[int, ...]
    size_bytes: int = 0
    coming: tuple[int, ...] = ()

    @property
    def added(self) -> tuple[int, ...]:
        return tuple(n for n in self.after if n not in self.before or n in self.coming)

    @property
    def removed(self) -> tuple[int, ...]:
        return tuple(n for n in self.before if n not in self.after)

    @property
    def copied_bytes(self) -> int:
        return self.size_bytes * len(self.added)

    @property
    def moves_leader(self) -> bool:
        return self.before[0] != self.after[0]


class Crowding(NamedTuple):
    """Pairs of replicas of one partition that would be lost together; fewer is better."""

    rack_pairs: int
    host_pairs: int


class Layout:
    """The table that planners change; its sums are about all partitions of the cluster."""

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
        return sorted(n for n, one in self.brokers.items() if one.takes)

    def change(self, at: int, replicas: tuple[int, ...]) -> None:
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
        """Return True if the broker has room for the partition and all planned copies."""
        free = self.brokers[node_id].free_bytes
        partition = self.partitions[at]
        if free is None or node_id in partition.replicas:
            return True
        # What leaves the broker takes room until the copies are made.
        return self.incoming_bytes[node_id] + partition.size_bytes <= free

    def copies(self, at: int, replicas: Sequence[int]) -> int:
        partition = self.partitions[at]
        return len(partition.move(tuple(replicas)).added)

    def crowding(self, replicas: Sequence[int]) -> Crowding:
        places = [self._place(node_id) for node_id in replicas]
        rack_pairs = _pairs(Counter(rack for rack, _ in places))
        host_pairs = _pairs(Counter(places))
        assert host_pairs <= rack_pairs, "replicas of one host are in one rack"
        return Crowding(rack_pairs, host_pairs)

    def nearness(self, node_id: int, others: Collection[int]) -> Crowding:
        rack, host = self._place(node_id)
        rack_pairs = host_pairs = 0
        for other in others:
            if other != node_id:
                their_rack, their_host = self._place(other)
                rack_pairs += rack == their_rack
                host_pairs += rack == their_rack and host == their_host
        return Crowding(rack_pairs, host_pairs)

    def moves(self) -> list[Move]:
        return [
            one.move(after)
            for one, after in zip(self.partitions, self.replicas, strict=True)
            if after != one.replicas
        ]

    def _place(self, node_id: int) -> tuple[object, object]:
        broker = self.brokers.get(node_id)
        # An unregistered broker is close to none.
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


# Evening out the leaders: only the order of the replicas changes, so nothing is copied.
def even_leaders(layout: Layout) -> None:
    """Exchange leaders until brokers differ by one led partition, or can come no closer."""
    takers = frozenset(layout.takers)
    # Partitions that the first could hand to the second.
    gifts: dict[int, dict[int, dict[int, None]]] = {n: {} for n in takers}
    for at, replicas in enumerate(layout.replicas):
        _note(gifts, at, replicas)
    counts = layout.leader_counts
    for _ in range(len(layout.partitions)):
        path = next(
            (
                path
                for donor in sorted(takers, key=lambda n: (-counts[n], n))
                if (path := _path(gifts, counts, donor)) is not None
            ),
            None,
        )
        if path is None:
            return
        for giver, heir in pairwise(path):
            at = next(iter(gifts[giver][heir]))
            replicas = layout.replicas[at]
            _drop_gift(gifts, at, replicas)
            after = (heir, *(n for n in replicas if n != heir))
            layout.change(at, after)
            _note(gifts, at, after)


_Gifts = dict[int, dict[int, dict[int, None]]]


def _path(gifts: _Gifts, counts: dict[int, int], donor: int) -> list[int] | None:
    """Return the shortest chain of hand-overs from `donor` to a broker that leads at least two
    fewer; of several, to the one that leads least."""
    came_from: dict[int, int] = {donor: donor}
    level = deque([donor])
    while level:
        reached: list[int] = []
        for _ in range(len(level)):
            giver = level.popleft()
            for heir in sorted(gifts[giver]):
                if heir not in came_from and gifts[giver][heir]:
                    came_from[heir] = giver
                    reached.append(heir)
        emptiest = min(reached, key=lambda n: (counts[n], n), default=donor)
        if counts[donor] - counts[emptiest] >= 2:
            path = [emptiest]
            while path[-1] != donor:
                path.append(came_from[path[-1]])
            return path[::-1]
        level.extend(reached)
    return None


def _note(gifts: _Gifts, at: int, replicas: tuple[int, ...]) -> None:
    if replicas[0] in gifts:
        for heir in replicas[1:]:
            if heir in gifts:
                gifts[replicas[0]].setdefault(heir, {})[at] = None


def _drop_gift(gifts: _Gifts, at: int, replicas: tuple[int, ...]) -> None:
    if replicas[0] in gifts:
        for heir in replicas[1:]:
            if heir in gifts:
                gifts[replicas[0]][heir].pop(at, None)


_ROUNDS_MAX: Final = 8
_LOOKS_MAX: Final = 2_000_000
"""Some seconds. What is found by then is the plan."""
_CHOICES: Final = 16
"""The one that evens bytes most moves; topics break ties."""
_BIG_ONES: Final = 32
_TOLERATED: Final = 10


def rebalance(
    brokers: Iterable[PlanBroker],
    partitions: Sequence[PlanPartition],
    *,
    copies_max: int | None = None,
) -> list[Move]:
    """Return the moves towards the goals, of at most `copies_max` copied replicas."""
    layout = Layout(brokers, partitions)
    if len(layout.takers) < 2:
        return []
    plan = _Plan(layout, copies_max)
    for _ in range(_ROUNDS_MAX):
        before = plan.steps
        plan.spread()
        plan.even_replicas()
        plan.even_bytes()
        if plan.steps == before:
            break
    even_leaders(layout)
    return layout.moves()


class _Plan:
    def __init__(self, layout: Layout, copies_max: int | None) -> None:
        self._layout = layout
        self._takers = layout.takers
        self._copies_left = len(layout.partitions) * len(self._takers)
        if copies_max is not None:
            self._copies_left = copies_max
        self._looks_left = _LOOKS_MAX
        self._ideals: dict[int, Crowding] = {}
        self.steps = 0
        # What a broker holds, smallest first, because steps look for a size.
        self._held: dict[int, list[tuple[int, int]]] = {n: [] for n in self._takers}
        for at, replicas in enumerate(layout.replicas):
            for node_id in replicas:
                if node_id in self._held:
                    self._held[node_id].append((layout.partitions[at].size_bytes, at))
        for held in self._held.values():
            held.sort()

    # --- 1: racks and hosts ----------------------------------------------------------------------
    def spread(self) -> None:
        layout = self._layout
        for at, replicas in enumerate(layout.replicas):
            crowding = layout.crowding(replicas)
            while crowding > self._ideal(len(replicas)) and self._looks_left > 0:
                found = self._further_apart(at)
                if found is None:
                    break
                self._move(at, *found)
                now = layout.crowding(layout.replicas[at])
                assert now < crowding
                crowding = now

    def _ideal(self, count: int) -> Crowding:
        if count not in self._ideals:
            chosen: list[int] = []
            for _ in range(min(count, len(self._takers))):
                rest = [n for n in self._takers if n not in chosen]
                chosen.append(min(rest, key=lambda n: self._layout.nearness(n, chosen)))
            self._ideals[count] = self._layout.crowding(chosen)
        return self._ideals[count]

    def _further_apart(self, at: int) -> tuple[int, int] | None:
        layout, replicas = self._layout, self._layout.replicas[at]
        best: tuple[tuple[int, ...], tuple[int, int]] | None = None
        for donor in replicas:
            if donor not in self._held:
                continue
            before = layout.nearness(donor, replicas)
            others = [n for n in replicas if n != donor]
            for taker in self._takers:
                self._looks_left -= 1
                if taker in replicas or not self._may_copy(at, donor, taker):
                    continue
                after = layout.nearness(taker, others)
                if after >= before:
                    continue
                gain = (after[0] - before[0], after[1] - before[1])
                counts = layout.replica_counts
                value = (*gain, counts[taker] - counts[donor], layout.byte_counts[taker])
                if best is None or value < best[0]:
                    best = (value, (donor, taker))
        return None if best is None else best[1]

    # --- 2: numbers of replicas ------------------------------------------------------------------
    def even_replicas(self) -> None:
        """Move one replica after the other, from the fullest broker that can give to the emptiest
        that can take from it."""
        stuck: set[tuple[int, int]] = set()
        while self._looks_left > 0 and self._copies_left > 0:
            pair = self._next_pair(stuck)
            if pair is None:
                return
            at = self._replica_to_move(*pair)
            # No replica may go from the one to the other: another pair is tried.
            if at is None:
                stuck.add(pair)
            else:
                self._move(at, *pair)

    def _next_pair(self, stuck: set[tuple[int, int]]) -> tuple[int, int] | None:
        counts = self._layout.replica_counts
        order = sorted(self._takers, key=lambda n: (counts[n], n))
        for donor in reversed(order):
            for taker in order:
                if counts[donor] - counts[taker] < 2:
                    break
                if (donor, taker) not in stuck:
                    return donor, taker
        return None

    def _replica_to_move(self, donor: int, taker: int) -> int | None:
        """Return the replica that evens the two brokers' bytes most; of equal ones, that of the
        topic with the most partitions more at `donor` than at `taker`."""
        layout = self._layout
        surplus = layout.byte_counts[donor] - layout.byte_counts[taker]
        topics = layout.topic_counts
        best: tuple[tuple[int, int], int] | None = None
        choices = 0
        for size, at in self._nearest(donor, max(0, surplus // 2)):
            self._looks_left -= 1
            if not self._may_move(at, donor, taker):
                continue
            topic = layout.partitions[at].topic
            value = (abs(surplus - 2 * size), topics[taker, topic] - topics[donor, topic])
            if best is None or value < best[0]:
                best = (value, at)
            choices += 1
            if choices == _CHOICES:
                break
        return None if best is None else best[1]

    def _nearest(self, node_id: int, size: int) -> Iterator[tuple[int, int]]:
        held = self._held[node_id]
        # Outward from `size` in both directions.
        above = bisect.bisect_left(held, (size, -1))
        below = above - 1
        while below >= 0 or above < len(held):
            if below < 0 or (above < len(held) and held[above][0] - size <= size - held[below][0]):
                yield held[above]
                above += 1
            else:
                yield held[below]
                below -= 1

    # --- 3: bytes --------------------------------------------------------------------------------
    def even_bytes(self) -> None:
        layout = self._layout
        mean = sum(layout.byte_counts[n] for n in self._takers) // len(self._takers)
        tolerated = mean // _TOLERATED
        stuck: set[tuple[int, int]] = set()
        while tolerated and self._looks_left > 0 and self._copies_left > 0:
            order = sorted(self._takers, key=lambda n: (layout.byte_counts[n], n))
            pair = next(
                (
                    (donor, taker)
                    for donor in reversed(order)
                    for taker in order
                    if layout.byte_counts[donor] - layout.byte_counts[taker] > tolerated
                    and (donor, taker) not in stuck
                ),
                None,
            )
            if pair is None:
                return
            if not self._shift(*pair, tolerated):
                stuck.add(pair)

    def _shift(self, donor: int, taker: int, tolerated: int) -> bool:
        """Bring two brokers closer together in bytes; return whether that was possible.

        By one replica, where the donor has one more than the taker; else by two that change places.
        """
        layout = self._layout
        surplus = layout.byte_counts[donor] - layout.byte_counts[taker]
        least = max(1, tolerated // 2)
        if layout.replica_counts[donor] - layout.replica_counts[taker] == 1:
            for size, at in self._nearest(donor, surplus // 2):
                self._looks_left -= 1
                if not least <= size <= surplus - least:
                    break
                if self._may_move(at, donor, taker):
                    self._move(at, donor, taker)
                    return True
        for size, at in list(reversed(self._held[donor]))[:_BIG_ONES]:
            if not self._may_move(at, donor, taker):
                continue
            for small, other in self._nearest(taker, max(0, size - surplus // 2)):
                self._looks_left -= 1
                if not least <= size - small <= surplus - least:
                    break
                if self._copies_left >= 2 and self._may_move(other, taker, donor):
                    self._move(at, donor, taker)
                    self._move(other, taker, donor)
                    return True
        return False

    # --- all of them -----------------------------------------------------------------------------
    def _may_move(self, at: int, donor: int, taker: int) -> bool:
        layout, replicas = self._layout, self._layout.replicas[at]
        if taker in replicas or not self._may_copy(at, donor, taker):
            return False
        others = [n for n in replicas if n != donor]
        return layout.nearness(taker, others) <= layout.nearness(donor, others)

    def _may_copy(self, at: int, donor: int, taker: int) -> bool:
        copies = self._copies_of(at, donor, taker)
        return copies <= self._copies_left and self._layout.has_room(taker, at)

    def _copies_of(self, at: int, donor: int, taker: int) -> int:
        original = self._layout.partitions[at].replicas
        return (taker not in original) - (donor not in original)

    def _move(self, at: int, donor: int, taker: int) -> None:
        layout, replicas = self._layout, self._layout.replicas[at]
        entry = (layout.partitions[at].size_bytes, at)
        del self._held[donor][bisect.bisect_left(self._held[donor], entry)]
        bisect.insort(self._held[taker], entry)
        self._copies_left -= self._copies_of(at, donor, taker)
        layout.change(at, tuple(taker if n == donor else n for n in replicas))
        self.steps += 1
        assert self._copies_left >= 0


# Plans that follow from one wish: nothing is to lie on some brokers; a topic is to have a
# number of replicas.
def evacuate(
    brokers: Iterable[PlanBroker],
    partitions: Sequence[PlanPartition],
    leaving: Collection[int],
    *,
    means: Callable[[PlanPartition], bool] = lambda _: True,
) -> list[Move]:
    """Move the replicas of the leaving brokers to others, and no other replicas.

    `partitions`: all of the cluster; `means`: whether a partition is to move at all.
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
    """Give each partition of the topic this number of replicas; those that it has stay if they can.

    Replicas go first from brokers that take no partitions, then those that are still copied, then
    those closest to others. Of equally close ones the preferred leader stays.
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
    """Return the replicas; where the preferred leader leaves, the one that leads least is first."""
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
