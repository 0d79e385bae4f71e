"""Plans of moves: what holds of each, for any small cluster, and how long large ones take."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quiverlog.core.placement.moves import (
    Layout,
    Move,
    PlanBroker,
    PlanPartition,
    evacuate,
    rebalance,
    with_replication_factor,
)
from quiverlog.errors import InvalidReplicationFactor

Cluster = tuple[list[PlanBroker], list[PlanPartition]]


@st.composite
def clusters(draw: st.DrawFn) -> Cluster:
    """Any few brokers, some of them dead, with any partitions."""
    count = draw(st.integers(1, 8))
    racks, hosts = st.sampled_from(["a", "b", "c"]), st.sampled_from(["x", "y"])
    alive = st.sampled_from([True, True, True, False])
    brokers = [PlanBroker(n, draw(racks), draw(hosts), draw(alive)) for n in range(count)]
    ids = st.lists(st.integers(0, count - 1), unique=True, min_size=1, max_size=min(count, 4))
    sizes = st.integers(0, 50) | st.just(1_000)
    drawn = draw(st.lists(st.tuples(ids, sizes), max_size=24))
    return brokers, [
        PlanPartition("ab"[number % 2], number // 2, tuple(replicas), size)
        for number, (replicas, size) in enumerate(drawn)
    ]


def after(partitions: Sequence[PlanPartition], moves: Sequence[Move]) -> list[PlanPartition]:
    """The partitions when all has moved."""
    moved = {(one.topic, one.partition): one.after for one in moves}
    assert len(moved) == len(moves), "each once"
    return [
        one._replace(replicas=moved.get((one.topic, one.partition), one.replicas))
        for one in partitions
    ]


def check_kept(cluster: Cluster, moves: Sequence[Move]) -> None:
    """Different brokers, alive where they are new, and as many as before."""
    takers = {one.node_id for one in cluster[0] if one.takes}
    held = {(one.topic, one.partition): one.replicas for one in cluster[1]}
    for move in moves:
        assert move.before == held[move.topic, move.partition]
        assert len(set(move.after)) == len(move.after)
        assert takers.issuperset(move.added)
        assert move.after != move.before


def spread(values: Sequence[int]) -> int:
    return max(values) - min(values) if values else 0


@given(clusters())
def test_a_plan_keeps_what_must_hold_and_makes_nothing_worse(cluster: Cluster) -> None:
    brokers, partitions = cluster
    moves = rebalance(brokers, partitions)
    check_kept(cluster, moves)
    old, new = Layout(brokers, partitions), Layout(brokers, after(partitions, moves))
    for move in moves:
        assert len(move.after) == len(move.before)
        assert new.crowding(move.after) <= old.crowding(move.before)
    was_crowded = any(new.crowding(m.after) < old.crowding(m.before) for m in moves)
    takers = new.takers
    replicas_before = spread([old.replica_counts[n] for n in takers])
    replicas_after = spread([new.replica_counts[n] for n in takers])
    assert was_crowded or replicas_after <= max(replicas_before, 1)
    assert sum(old.byte_counts.values()) == sum(new.byte_counts.values())


@given(clusters())
def test_an_even_cluster_plans_nothing(cluster: Cluster) -> None:
    brokers, partitions = cluster
    even = after(partitions, rebalance(brokers, partitions))
    assert rebalance(brokers, even) == []


@given(clusters(), st.integers(0, 6))
def test_no_more_is_copied_than_was_allowed(cluster: Cluster, copies_max: int) -> None:
    moves = rebalance(*cluster, copies_max=copies_max)
    check_kept(cluster, moves)
    assert sum(len(move.added) for move in moves) <= copies_max


@given(clusters())
def test_leaders_are_as_even_as_any_order_makes_them(cluster: Cluster) -> None:
    brokers, partitions = cluster[0], [one._replace(size_bytes=0) for one in cluster[1][:5]]
    even = after(partitions, rebalance(brokers, partitions, copies_max=0))
    takers = sorted(one.node_id for one in brokers if one.takes)

    def uneven(firsts: Sequence[int]) -> int:
        return sum(firsts.count(n) ** 2 for n in takers)

    # Only live brokers are chosen; a dead one keeps what it is to lead.
    able = [
        [n for n in one.replicas if n in takers] if one.replicas[0] in takers else [one.replicas[0]]
        for one in partitions
    ]
    assert uneven([one.replicas[0] for one in even]) == min(
        uneven(firsts) for firsts in itertools.product(*able)
    )


def test_a_broker_that_joins_gets_its_share_of_everything() -> None:
    brokers = [PlanBroker(n, "abc"[n % 3]) for n in range(6)]
    partitions = [PlanPartition("t", p, (p % 3, (p + 1) % 3, (p + 2) % 3), 100) for p in range(60)]
    moves = rebalance(brokers, partitions)
    new = Layout(brokers, after(partitions, moves))
    assert {new.replica_counts[n] for n in range(6)} == {30}
    assert {new.leader_counts[n] for n in range(6)} == {10}
    assert sum(len(move.added) for move in moves) == 90, "not one more than has to"


def test_bytes_are_evened_where_numbers_are_even() -> None:
    brokers = [PlanBroker(n) for n in range(2)]
    sizes = [1_000, 900, 1_100, 10, 20, 30]
    partitions = [PlanPartition("t", p, (p // 3,), size) for p, size in enumerate(sizes)]
    moves = rebalance(brokers, partitions)
    new = Layout(brokers, after(partitions, moves))
    assert new.replica_counts == {0: 3, 1: 3}
    assert spread(list(new.byte_counts.values())) < spread([3_000, 60]) // 2


def test_racks_that_were_ignored_are_used() -> None:
    brokers = [PlanBroker(n, "aab"[n % 3]) for n in range(3)]
    moves = rebalance(brokers, [PlanPartition("t", 0, (0, 1))])
    assert [(one.before, len(one.added)) for one in moves] == [((0, 1), 1)]
    assert 2 in moves[0].after


def test_nothing_goes_where_there_is_no_room() -> None:
    brokers = [PlanBroker(0), PlanBroker(1, free_bytes=250)]
    partitions = [PlanPartition("t", p, (0,), 100) for p in range(10)]
    moves = rebalance(brokers, partitions)
    assert sum(one.copied_bytes for one in moves) == 200
    with pytest.raises(InvalidReplicationFactor, match="no further broker has room for it"):
        evacuate(brokers, partitions, {0})


# --- away from brokers ---------------------------------------------------------------------------
@given(clusters(), st.sets(st.integers(0, 7), max_size=3))
def test_all_that_a_broker_holds_goes_and_nothing_else(cluster: Cluster, leaving: set[int]) -> None:
    brokers, partitions = cluster
    try:
        moves = evacuate(brokers, partitions, leaving)
    except InvalidReplicationFactor:
        able = sum(one.takes and one.node_id not in leaving for one in brokers)
        held = max(len(one.replicas) for one in partitions)
        assert able < held, "a broker could have taken it"
        return
    check_kept(cluster, moves)
    assert {(m.topic, m.partition) for m in moves} == {
        (one.topic, one.partition) for one in partitions if leaving & set(one.replicas)
    }
    for move in moves:
        assert set(move.removed) == leaving & set(move.before)
        assert len(move.after) == len(move.before)


def test_what_a_broker_leaves_is_spread_by_rack_and_then_by_number() -> None:
    brokers = [PlanBroker(n, "abbcc"[n]) for n in range(5)]
    partitions = [PlanPartition("t", p, (0, 1, 3)) for p in range(4)]
    brokers.append(PlanBroker(5, "a"))
    moves = evacuate(brokers, partitions, [0])
    assert all(move.added == (5,) for move in moves), "the same rack has a broker"
    brokers.pop()
    moves = evacuate(brokers, partitions, [0])
    new = Layout(brokers, after(partitions, moves))
    assert {new.replica_counts[n] for n in (2, 4)} == {2}
    assert spread([new.leader_counts[n] for n in range(1, 5)]) <= 1


def test_topics_that_do_not_move_do_not_matter() -> None:
    """A topic with more replicas than brokers are left kept others from moving."""
    brokers = [PlanBroker(n) for n in range(3)]
    partitions = [PlanPartition("wide", 0, (0, 1, 2)), PlanPartition("t", 0, (0, 1))]
    (move,) = evacuate(brokers, partitions, [0], means=lambda one: one.topic == "t")
    assert (move.topic, sorted(move.after)) == ("t", [1, 2])
    with pytest.raises(InvalidReplicationFactor, match="wide-0"):
        evacuate(brokers, partitions, [0])


# --- numbers of replicas -------------------------------------------------------------------------
@given(clusters(), st.integers(1, 5))
def test_a_factor_moves_only_what_it_must(cluster: Cluster, factor: int) -> None:
    brokers, partitions = cluster
    try:
        moves = with_replication_factor(brokers, partitions, "a", factor)
    except InvalidReplicationFactor:
        assert factor > sum(one.takes for one in brokers)
        return
    check_kept(cluster, moves)
    for move in moves:
        assert move.topic == "a"
        assert len(move.after) == factor
        fewer, more = sorted((set(move.before), set(move.after)), key=len)
        assert fewer < more
    done = after(partitions, moves)
    assert all(len(one.replicas) == factor for one in done if one.topic == "a")
    assert with_replication_factor(brokers, done, "a", factor) == []


def test_a_higher_factor_goes_to_other_racks_and_a_lower_one_keeps_them() -> None:
    brokers = [PlanBroker(n, "aabbcc"[n]) for n in range(6)]
    partitions = [PlanPartition("t", p, (p,)) for p in range(6)]
    raised = after(partitions, with_replication_factor(brokers, partitions, "t", 3))
    layout = Layout(brokers, raised)
    assert all(layout.crowding(one.replicas) == (0, 0) for one in raised)
    assert {layout.replica_counts[n] for n in range(6)} == {3}
    crowded = [PlanPartition("t", 0, (0, 1, 2, 4))]
    (move,) = with_replication_factor(brokers, crowded, "t", 3)
    assert move.after == (0, 2, 4), "the one that shares a rack goes, and not the leader"


def test_a_dead_replica_goes_first() -> None:
    brokers = [PlanBroker(0), PlanBroker(1), PlanBroker(2, takes=False)]
    (move,) = with_replication_factor(brokers, [PlanPartition("t", 0, (2, 1, 0))], "t", 2)
    assert move.after == (1, 0)


def test_a_replica_without_rows_is_removed_before_one_that_has_them() -> None:
    """A partition moves from 0 and 1 to 0, 2 and 3: 2 and 3 have nothing yet."""
    brokers = [PlanBroker(n) for n in range(4)]
    moving = PlanPartition("t", 0, (2, 0, 3), 100, coming=(2, 3))
    (move,) = with_replication_factor(brokers, [moving], "t", 2)
    assert move.after == (2, 0), "of those that have nothing the preferred leader stays"
    assert (move.added, move.copied_bytes) == ((2,), 100)
    (one,) = with_replication_factor(brokers, [moving], "t", 1)
    assert (one.after, one.added) == ((0,), ())


@pytest.mark.parametrize("factor", [0, -1, 16])
def test_factors_out_of_range(factor: int) -> None:
    with pytest.raises(InvalidReplicationFactor, match="allowed are 1 to 15"):
        with_replication_factor([PlanBroker(0)], [], "t", factor)


# --- large ones ----------------------------------------------------------------------------------
def test_five_thousand_partitions_are_planned_in_seconds() -> None:
    """Without a bound: looking through all partitions for each move took minutes."""
    brokers = [PlanBroker(n, f"rack-{n % 3}", f"host-{n}") for n in range(9)]
    partitions = [
        PlanPartition(f"t{p % 50}", p // 50, (p % 3, (p + 1) % 3, (p + 2) % 3), p * p % 9_973)
        for p in range(5_000)
    ]
    began_s = time.process_time()
    moves = rebalance(brokers, partitions)
    evacuated = evacuate(brokers, partitions, [0])
    took_s = time.process_time() - began_s
    new = Layout(brokers, after(partitions, moves))
    assert spread([new.replica_counts[n] for n in range(9)]) <= 1
    assert spread([new.leader_counts[n] for n in range(9)]) <= 1
    assert len(evacuated) == 5_000
    assert took_s < 30, f"{took_s:.1f} s"
