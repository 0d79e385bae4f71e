"""Where replicas of new partitions are put: what is promised, for every cluster that is small."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Collection, Iterable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quiverlog.core.placement.placement import Place, place

Replicas = Sequence[tuple[int, ...]]


def equal(racks: int, hosts: int, each: int) -> list[Place]:
    """Racks of that many hosts with that many brokers each."""
    return [
        Place(node_id, f"rack-{node_id // (hosts * each)}", f"host-{node_id // each}")
        for node_id in range(racks * hosts * each)
    ]


@st.composite
def clusters(draw: st.DrawFn) -> list[Place]:
    """Any few brokers; hosts of one name in two racks are two."""
    ids = draw(st.lists(st.integers(0, 1_000), unique=True, min_size=1, max_size=12))
    racks, hosts = st.sampled_from(["", "a", "b", "c"]), st.sampled_from(["", "x", "y", "z"])
    return [Place(node_id, draw(racks), draw(hosts)) for node_id in ids]


def check_distinct(brokers: Collection[Place], placed: Replicas, replication_factor: int) -> None:
    ids = {broker.node_id for broker in brokers}
    for replicas in placed:
        assert len(replicas) == len(set(replicas)) == replication_factor
        assert ids.issuperset(replicas)


def shares(sizes: Sequence[int], count: int) -> list[int]:
    """The most even shares, by trying all; sorted. Squares measure what is uneven."""
    options = itertools.product(*(range(min(size, count) + 1) for size in sizes))
    fitting = [one for one in options if sum(one) == count]
    return sorted(min(fitting, key=lambda one: sum(share * share for share in one)))


def check_spread(brokers: Iterable[Place], replicas: Sequence[int]) -> None:
    """As even over racks as brokers allow, and in each rack over its hosts."""
    racks: dict[str, list[Place]] = {}
    for broker in brokers:
        racks.setdefault(broker.rack, []).append(broker)
    got = [sum(one.node_id in replicas for one in rack) for rack in racks.values()]
    assert sorted(got) == shares([len(rack) for rack in racks.values()], len(replicas))
    for rack, share in zip(racks.values(), got, strict=True):
        sizes = Counter(broker.host for broker in rack)
        here = Counter(dict.fromkeys(sizes, 0))
        here.update(broker.host for broker in rack if broker.node_id in replicas)
        assert sorted(here.values()) == shares(list(sizes.values()), share)


def uneven(ids: Iterable[int], found: Iterable[int]) -> int:
    """The largest difference between two of them."""
    counts = Counter(dict.fromkeys(ids, 0))
    counts.update(found)
    return max(counts.values()) - min(counts.values())


@given(clusters(), st.data())
def test_every_partition_is_spread_as_evenly_as_brokers_allow(
    brokers: list[Place], data: st.DataObject
) -> None:
    replication_factor = data.draw(st.integers(1, min(len(brokers), 5)))
    seed = data.draw(st.integers(0, 2**128 - 1))
    placed = place(brokers, 12, replication_factor, seed=seed)
    check_distinct(brokers, placed, replication_factor)
    for replicas in placed:
        check_spread(brokers, replicas)


SHAPES = [
    (racks, hosts, each)
    for racks in range(1, 6)
    for hosts in range(1, 4)
    for each in range(1, 4)
    if racks * hosts * each <= 18
]


@pytest.mark.parametrize(("racks", "hosts", "each"), SHAPES)
def test_equal_racks_have_equal_loads(racks: int, hosts: int, each: int) -> None:
    """After every partition of every topic: at most one replica, and one leader, more or less."""
    brokers = equal(racks, hosts, each)
    ids = [broker.node_id for broker in brokers]
    for replication_factor, seed in itertools.product(range(1, min(len(ids), 6) + 1), (0, 1, 29)):
        placed = place(brokers, 2 * len(ids) + 3, replication_factor, seed=seed)
        check_distinct(brokers, placed, replication_factor)
        for count in range(1, len(placed) + 1):
            replicas = itertools.chain.from_iterable(placed[:count])
            assert uneven(ids, replicas) <= 1, (replication_factor, seed, count)
            assert uneven(ids, (one[0] for one in placed[:count])) <= 1
        for one in placed:
            per_rack = Counter(brokers[node_id].rack for node_id in one)
            assert uneven((), per_rack.elements()) <= 1 or len(per_rack) < racks


@given(clusters(), st.integers(0, 20), st.integers(0, 20), st.integers(0, 2**128 - 1), st.data())
def test_growing_is_creating_larger(
    brokers: list[Place], had: int, more: int, seed: int, data: st.DataObject
) -> None:
    replication_factor = data.draw(st.integers(1, min(len(brokers), 5)))
    whole = place(brokers, had + more, replication_factor, seed=seed)
    shuffled = data.draw(st.permutations(brokers))
    first = place(shuffled, had, replication_factor, seed=seed)
    assert first + place(brokers, more, replication_factor, seed=seed, existing=first) == whole


def test_a_new_broker_catches_up_and_one_that_left_counts_for_nothing() -> None:
    old = place(equal(1, 3, 1), 6, 2, seed=0)
    brokers = [Place(node_id, "rack-0", f"host-{node_id}") for node_id in (0, 1, 3)]
    new = place(brokers, 6, 2, seed=0, existing=old)
    check_distinct(brokers, new, 2)
    assert [3 in one for one in new].count(True) == 6, "it has none of the old ones"
    assert sum(one[0] == 3 for one in new) >= 3


@pytest.mark.parametrize("brokers", [equal(1, 5, 1), equal(3, 1, 2), equal(2, 2, 2)])
def test_topics_begin_at_each_of_the_brokers(brokers: list[Place]) -> None:
    """Many topics with a single partition would else be one broker's."""
    seeds = range(2 * len(brokers))
    firsts = Counter(place(brokers, 1, 1, seed=seed)[0][0] for seed in seeds)
    assert firsts == {broker.node_id: 2 for broker in brokers}


def test_the_successor_differs_from_partition_to_partition() -> None:
    """When a broker dies, the next in line lead what it led: not all of it falls to one."""
    placed = place(equal(3, 1, 1), 12, 3, seed=0)
    for leader in range(3):
        assert Counter(one[1] for one in placed if one[0] == leader).keys() == {0, 1, 2} - {leader}
