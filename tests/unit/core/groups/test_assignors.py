"""Assignors: complete, disjoint, balanced, sticky; and no step holds the broker up."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quiverlog.core.groups.assignors import (
    ASSIGNORS,
    Targets,
    assign_range,
    assign_uniform,
)

TOPICS = [bytes([number]) * 16 for number in range(5)]
MEMBERS = [bytes([100 + number]) * 16 for number in range(6)]


def run(
    assignor: Callable[..., Any],
    subscriptions: Mapping[bytes, Collection[bytes]],
    partitions: Mapping[bytes, int],
    before: Mapping[bytes, Collection[tuple[bytes, int]]],
) -> Targets:
    steps = assignor(subscriptions, partitions, before)
    while True:
        try:
            next(steps)
        except StopIteration as done:
            return done.value  # type: ignore[no-any-return]


counts = st.dictionaries(st.sampled_from(TOPICS), st.integers(0, 9), min_size=1)
same = st.tuples(st.lists(st.sampled_from(MEMBERS), unique=True), st.sets(st.sampled_from(TOPICS)))
alike = same.map(lambda drawn: {member: sorted(drawn[1]) for member in drawn[0]})
mixed = st.dictionaries(st.sampled_from(MEMBERS), st.sets(st.sampled_from(TOPICS)).map(sorted))


def check_whole(
    targets: Targets, subscriptions: Mapping[bytes, Collection[bytes]], partitions: dict[bytes, int]
) -> None:
    """Each partition that a member may have is with one, and no other is with any."""
    given_to = Counter(one for had in targets.values() for one in had)
    topics = {topic_id for wanted in subscriptions.values() for topic_id in wanted}
    there = {(one, number) for one in topics for number in range(partitions.get(one, 0))}
    assert given_to == Counter(there)
    assert targets.keys() == subscriptions.keys()
    for member, had in targets.items():
        assert {topic_id for topic_id, _ in had} <= set(subscriptions[member])


@pytest.mark.parametrize("name", ASSIGNORS)
@given(first=alike | mixed, second=alike | mixed, partitions=counts, later=counts)
def test_complete_and_disjoint(
    name: str,
    first: dict[bytes, list[bytes]],
    second: dict[bytes, list[bytes]],
    partitions: dict[bytes, int],
    later: dict[bytes, int],
) -> None:
    before = run(ASSIGNORS[name], first, partitions, {})
    check_whole(before, first, partitions)
    after = run(ASSIGNORS[name], second, later, before)
    check_whole(after, second, later)
    assert run(ASSIGNORS[name], second, later, before) == after, "the same input, the same target"


@given(first=alike, second=alike, partitions=counts, later=counts)
def test_uniform_is_balanced_within_one_and_moves_no_more_than_it_must(
    first: dict[bytes, list[bytes]],
    second: dict[bytes, list[bytes]],
    partitions: dict[bytes, int],
    later: dict[bytes, int],
) -> None:
    before = run(assign_uniform, first, partitions, {})
    after = run(assign_uniform, second, later, before)
    if not second:
        return
    loads = [len(had) for had in after.values()]
    assert max(loads) - min(loads) <= 1
    # What each could keep at most: its even share, and of some members one more.
    there = {one for had in after.values() for one in had}
    kept = {member: before.get(member, set()) & there for member in second}
    share, more = divmod(len(there), len(second))
    most = sum(min(len(had), share) for had in kept.values())
    most += min(more, sum(len(had) > share for had in kept.values()))
    assert sum(len(after[member] & had) for member, had in kept.items()) == most


@given(first=mixed, second=mixed, partitions=counts, later=counts)
def test_no_single_move_makes_a_mixed_group_more_even(
    first: dict[bytes, list[bytes]],
    second: dict[bytes, list[bytes]],
    partitions: dict[bytes, int],
    later: dict[bytes, int],
) -> None:
    before = run(assign_uniform, first, partitions, {})
    after = run(assign_uniform, second, later, before)
    for giver, had in after.items():
        for taker, topics in second.items():
            if {topic_id for topic_id, _ in had} & set(topics):
                assert len(had) - len(after[taker]) < 2, (giver, taker)


@given(subscriptions=mixed, partitions=counts)
def test_nothing_moves_where_nothing_has_changed(
    subscriptions: dict[bytes, list[bytes]], partitions: dict[bytes, int]
) -> None:
    before = run(assign_uniform, subscriptions, partitions, {})
    assert run(assign_uniform, subscriptions, partitions, before) == before


@given(subscriptions=mixed, partitions=counts)
def test_range_gives_neighbours_and_the_same_numbers_of_topics_alike(
    subscriptions: dict[bytes, list[bytes]], partitions: dict[bytes, int]
) -> None:
    targets = run(assign_range, subscriptions, partitions, {})
    ranges: dict[tuple[int, tuple[bytes, ...]], dict[bytes, list[int]]] = {}
    for topic_id, count in partitions.items():
        members = tuple(one for one, topics in subscriptions.items() if topic_id in topics)
        found = {
            member: sorted(number for one, number in targets[member] if one == topic_id)
            for member in members
        }
        for numbers in found.values():
            assert numbers == list(range(numbers[0], numbers[-1] + 1)) if numbers else True
        lengths = [len(numbers) for numbers in found.values()]
        assert not lengths or max(lengths) - min(lengths) <= 1
        assert ranges.setdefault((count, members), found) == found


def test_a_thousand_members_and_ten_thousand_partitions() -> None:
    """In 50 ms on an idle machine, in steps of 1 to 2 ms; here by the processor's time, and lax."""
    partitions = {number.to_bytes(16, "big"): 100 for number in range(100)}
    subscriptions = {number.to_bytes(16, "big"): list(partitions) for number in range(1_000)}
    before = run(assign_uniform, subscriptions, partitions, {})
    left = dict(list(subscriptions.items())[:-10])
    for assignor in (assign_uniform, assign_range):
        steps, took = assignor(left, partitions, before), []
        while True:
            began = time.thread_time()
            if next(steps, "done") == "done":
                break
            took.append(time.thread_time() - began)
        assert len(took) > 50, "it lets others run"
        assert sum(took) < 1
        assert sorted(took)[len(took) // 2] < 0.005
    moved = run(assign_uniform, left, partitions, before)
    assert sum(len(before[one] - moved[one]) for one in left) == 0, "only of those that left"
