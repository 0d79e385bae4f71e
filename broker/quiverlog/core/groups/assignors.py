"""How the partitions of a group are spread over its members: `uniform` and `range`.

Pure: the same input gives the same target. They run in steps of some hundred moves each, between
which the broker does other work, and return the target of each member.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Generator, Mapping, Sequence
from typing import Final

from .records import TopicPartition

__all__ = ["ASSIGNORS", "RANGE", "UNIFORM", "Targets", "assign_range", "assign_uniform"]

UNIFORM: Final = "uniform"
RANGE: Final = "range"

_STEP: Final = 500
"""Partitions that one step looks at: well under 1 ms."""
_ROUNDS_MAX: Final = 100
"""Of levelling: each move brings loads closer, so few are ever needed."""

Targets = dict[bytes, set[TopicPartition]]
Steps = Generator[None, None, Targets]
Subscriptions = Mapping[bytes, Collection[bytes]]
"""Topic ids by member, members in the order in which `range` gives them partitions."""


class _Class:
    """Partitions of the topics that the same members subscribe to."""

    __slots__ = ("free", "members", "prior")

    def __init__(self, members: tuple[bytes, ...]) -> None:
        self.members = members
        self.free: list[TopicPartition] = []
        self.prior: dict[bytes, list[TopicPartition]] = {member: [] for member in members}


def assign_uniform(
    subscriptions: Subscriptions,
    partitions: Mapping[bytes, int],
    before: Mapping[bytes, Collection[TopicPartition]],
) -> Steps:
    """Loads differ by one at most where members subscribe to the same; else no partition can move
    to a member that has two less. Of all such spreads, one that moves few partitions.

    Args:
        partitions: how many each topic has.
        before: the target until now.
    """
    owner_of: dict[TopicPartition, bytes] = {}
    work = 0
    for member, had in before.items():
        if member in subscriptions:
            owner_of.update(dict.fromkeys(had, member))
        work += len(had)
        if work >= _STEP:
            work = 0
            yield
    targets: Targets = {member: set() for member in subscriptions}
    classes: dict[tuple[bytes, ...], _Class] = {}
    for topic_id, members in (yield from _subscribers(subscriptions, partitions)).items():
        one = classes.get(members)
        if one is None:
            one = classes[members] = _Class(members)
        prior = one.prior
        for number in range(partitions[topic_id]):
            partition = topic_id, number
            owner = owner_of.get(partition)
            if owner is not None and owner in prior:
                prior[owner].append(partition)
            else:
                one.free.append(partition)
        work += partitions[topic_id]
        if work >= _STEP:
            work = 0
            yield
    loads = dict.fromkeys(targets, 0)
    # The fewer may have a partition, the earlier it is placed.
    ordered = sorted(classes.values(), key=lambda one: len(one.members))
    for one in ordered:
        for member, kept in one.prior.items():
            loads[member] += len(kept)
        yield
    for one in ordered:
        yield from _place(one, loads)
    if len(ordered) == 1:
        yield from _level(ordered[0], loads)
    else:
        for _ in range(_ROUNDS_MAX):
            moved = 0
            for one in ordered:
                moved += yield from _level(one, loads)
                yield
            if not moved:
                break
    for one in ordered:
        for member, kept in one.prior.items():
            targets[member].update(kept)
            work += 1 + len(kept)
            if work >= _STEP:
                work = 0
                yield
    return targets


def _subscribers(
    subscriptions: Subscriptions, partitions: Mapping[bytes, int]
) -> Generator[None, None, dict[bytes, tuple[bytes, ...]]]:
    """Return the members of each topic that has any."""
    members: dict[bytes, list[bytes]] = {}
    work = 0
    for member, topics in subscriptions.items():
        for topic_id in topics:
            if partitions.get(topic_id):
                members.setdefault(topic_id, []).append(member)
        work += len(topics)
        if work >= _STEP:
            work = 0
            yield
    found = {}
    for topic_id in sorted(members):
        found[topic_id] = tuple(members[topic_id])
        work += len(members[topic_id])
        if work >= _STEP * 20:  # To copy is cheap.
            work = 0
            yield
    return found


def _place(one: _Class, loads: dict[bytes, int]) -> Generator[None, None, None]:
    """Give what no member has to the least loaded."""
    # By their place among members: ties are broken alike each time.
    heap = [(loads[member], at) for at, member in enumerate(one.members)]
    heapq.heapify(heap)
    for done, partition in enumerate(one.free):
        load, at = heap[0]
        member = one.members[at]
        one.prior[member].append(partition)
        loads[member] = load + 1
        heapq.heapreplace(heap, (load + 1, at))
        if done % _STEP == _STEP - 1:
            yield
    one.free = []


def _level(one: _Class, loads: dict[bytes, int]) -> Generator[None, None, int]:
    """Move partitions from the most to the least loaded while that helps; return how many."""
    low = [(loads[member], at) for at, member in enumerate(one.members)]
    # Only those that have something to give.
    high = [(-loads[member], at) for at, member in enumerate(one.members) if one.prior[member]]
    heapq.heapify(low)
    heapq.heapify(high)
    moved = steps = 0
    while high:
        steps += 1
        if steps % (_STEP // 2) == 0:
            yield
        giver, taker = one.members[high[0][1]], one.members[low[0][1]]
        # Entries are as old as the move that made them.
        if -high[0][0] != loads[giver]:
            heapq.heapreplace(high, (-loads[giver], high[0][1]))
            continue
        if low[0][0] != loads[taker]:
            heapq.heapreplace(low, (loads[taker], low[0][1]))
            continue
        if loads[giver] - loads[taker] < 2:
            break
        one.prior[taker].append(one.prior[giver].pop())
        loads[giver] -= 1
        loads[taker] += 1
        moved += 1
        # It may have more, but none of these topics.
        if not one.prior[giver]:
            heapq.heappop(high)
    return moved


def assign_range(
    subscriptions: Subscriptions,
    partitions: Mapping[bytes, int],
    before: Mapping[bytes, Collection[TopicPartition]],
) -> Steps:
    """Of each topic, ranges of neighbours that differ by one at most: members have the same numbers
    of all topics that have as many partitions and the same members."""
    targets: Targets = {member: set() for member in subscriptions}
    work = 0
    for topic_id, members in (yield from _subscribers(subscriptions, partitions)).items():
        for member, first, end in _ranges(members, partitions[topic_id]):
            targets[member].update((topic_id, number) for number in range(first, end))
        work += 2 * partitions[topic_id]
        if work >= _STEP:
            work = 0
            yield
    return targets


def _ranges(members: Sequence[bytes], count: int) -> list[tuple[bytes, int, int]]:
    each, more = divmod(count, len(members))
    found, first = [], 0
    # Of few partitions the first members get one each, the others none.
    for at, member in enumerate(members if each else members[:more]):
        end = first + each + (at < more)
        found.append((member, first, end))
        first = end
    return found


ASSIGNORS: Final = {UNIFORM: assign_uniform, RANGE: assign_range}
