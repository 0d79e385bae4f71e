"""Placement of new partitions on brokers, and of their leaders.

Brokers are in hosts, hosts in racks. Each choice takes the emptiest rack, its emptiest host, its
emptiest broker, counting this topic only. Ties go round from a place set by the topic id.

- Replicas of a partition are on different brokers. Two racks differ by at most one of them, unless
  one has no broker left; so do two hosts of a rack.
- With equal racks and equal hosts, brokers differ by at most one in a new topic's replicas, and by
  at most one in its leaders. Unequal racks keep the first rule, so small racks hold more.
- A topic grown later is placed as if created larger, with the same brokers.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

__all__ = ["Place", "place"]


class Place(NamedTuple):
    node_id: int
    rack: str
    host: str


def place(
    brokers: Collection[Place],
    count: int,
    replication_factor: int,
    *,
    seed: int,
    existing: Iterable[Sequence[int]] = (),
) -> list[tuple[int, ...]]:
    if not count:
        return []
    assert 1 <= replication_factor <= len(brokers), "no broker holds a partition twice"
    assert seed >= 0
    leaves: dict[int, _Domain] = {}
    root = _cluster(brokers, seed, leaves)
    assert root.size == len(leaves) == len(brokers), "each broker is there once"
    leads: Counter[int] = Counter()
    for replicas in existing:
        leads[replicas[0]] += 1
        for node_id in replicas:
            if node_id in leaves:
                leaves[node_id].add_load()
    if root.size == 1:
        return [(root.node_id,)] * count
    root.begin()
    return [_next(root, replication_factor, leads) for _ in range(count)]


def _next(root: _Domain, replication_factor: int, leads: Counter[int]) -> tuple[int, ...]:
    found: list[int] = []
    root.take(replication_factor, found)
    assert len(found) == replication_factor
    assert len(set(found)) == replication_factor, "different brokers"
    leader = min(found, key=leads.__getitem__)
    assert leads[leader] >= 0
    # The next leaders take turns, or one broker would take over all of a failed leader's
    # partitions.
    at = found.index(leader)
    others = found[at + 1 :] + found[:at]
    turn = leads[leader] % len(others) if others else 0
    leads[leader] += 1
    return (leader, *others[turn:], *others[:turn])


# --- racks, hosts and brokers as a tree --------------------------------------------------------
class _Domain:
    """`load`: its replicas of the topic. `order`: its turn among equally full ones."""

    __slots__ = ("_above", "_children", "_heap", "load", "node_id", "order", "size")

    def __init__(self, children: Sequence[_Domain], node_id: int = -1) -> None:
        self._children = children
        self._above: _Domain | None = None
        self._heap: list[tuple[float, int, _Domain]] = []
        self.node_id = node_id
        self.size: int = sum(child.size for child in children) or 1
        self.load = 0
        self.order = 0
        for order, child in enumerate(children):
            child._above, child.order = self, order

    def add_load(self) -> None:
        assert not self._children, "brokers hold replicas"
        domain: _Domain | None = self
        while domain is not None:
            domain.load += 1
            domain = domain._above

    def fill(self, more: int = 1) -> float:
        return (self.load + more) / self.size

    def begin(self) -> None:
        assert not self._heap
        self._heap = [(child.fill(), child.order, child) for child in self._children]
        heapq.heapify(self._heap)
        for child in self._children:
            child.begin()

    def take(self, count: int, found: list[int]) -> None:
        assert 1 <= count <= self.size, "each broker holds one at most"
        self.load += count
        if not self._children:
            found.append(self.node_id)
            return
        chosen = [heapq.heappop(self._heap)[2] for _ in range(min(count, len(self._heap)))]
        for child, share in zip(chosen, _shares(chosen, count), strict=True):
            child.take(share, found)
            heapq.heappush(self._heap, (child.fill(), child.order, child))
        assert len(self._heap) == len(self._children)


def _shares(chosen: Sequence[_Domain], count: int) -> list[int]:
    shares = [1] * len(chosen)
    left = count - len(chosen)
    while left:
        able = [at for at, child in enumerate(chosen) if child.size > shares[at]]
        assert able, "there is room for all"
        able.sort(key=lambda at: (chosen[at].fill(shares[at] + 1), chosen[at].order))
        for at in able[:left]:
            shares[at] += 1
        left -= min(left, len(able))
    assert sum(shares) == count
    assert all(share <= child.size for share, child in zip(shares, chosen, strict=True))
    return shares


def _cluster(brokers: Iterable[Place], seed: int, leaves: dict[int, _Domain]) -> _Domain:
    by_rack: dict[str, dict[str, list[int]]] = {}
    for broker in sorted(brokers, key=lambda one: (one.rack, one.host, one.node_id)):
        by_rack.setdefault(broker.rack, {}).setdefault(broker.host, []).append(broker.node_id)
    # Each level uses other digits of the seed: with the same ones, some brokers would never be
    # first.
    hosts_seed = seed // len(by_rack)
    racks = []
    for by_host in by_rack.values():
        brokers_seed = hosts_seed // len(by_host)
        hosts = []
        for node_ids in by_host.values():
            for node_id in node_ids:
                leaves[node_id] = _Domain((), node_id)
            hosts.append(_joined([leaves[node_id] for node_id in node_ids], brokers_seed))
        racks.append(_joined(hosts, hosts_seed))
    assert sum(rack.size for rack in racks) == len(leaves)
    assert all(leaf.load == 0 for leaf in leaves.values()), "existing partitions are added later"
    return _joined(racks, seed)


def _joined(children: list[_Domain], seed: int) -> _Domain:
    assert children
    assert seed >= 0
    # Topics begin at different brokers, and every controller places a topic alike.
    first = seed % len(children)
    return children[0] if len(children) == 1 else _Domain(children[first:] + children[:first])
