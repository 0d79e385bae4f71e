"""Brokers fenced, stopped, restarted and unfenced at random: what elections promise holds.

Then the same with bugs planted in the decisions: each must be noticed, or the model proves nothing.
"""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.sim.mutations import Mutation, planted
from tests.support.elections_world import ElectionsWorld, Violation

STEPS = 200
SEEDS_PER_BUG = 300
FIRST_SEEDS = (1209, 90, 43, 25, 13)
"""Each notices what few others do: the first a hand-over to a replica that is out of sync."""
LEADERS = "core.controller.leaders"
ELECTIONS = "core.controller.elections"

REASSIGNMENT = "core.controller.reassignment"

BUGS: dict[str, Mutation] = {
    "a move ends before those that are added are in sync": Mutation(
        f"{REASSIGNMENT}:arrived",
        "not adding <= set(kept) or len(kept) < enough",
        "not kept",
    ),
    "a move keeps those that leave in sync": Mutation(
        f"{REASSIGNMENT}:arrived", "(n for n in in_sync if n in target)", "(in_sync)"
    ),
    "a leader that leaves hands over to one out of sync": Mutation(
        f"{REASSIGNMENT}:arrived", "first_of(target, kept)", "first_of(target)"
    ),
    "a leader that leaves is dropped with its lead": Mutation(
        f"{REASSIGNMENT}:arrived", "partition.leader_id not in target", "False"
    ),
    "a replica that is added begins no leader epoch": Mutation(
        f"{REASSIGNMENT}:_change",
        "is_later = not set(replicas) <= set(partition.replicas)",
        "is_later = False",
    ),
    "those that a move is given up to are dropped": Mutation(
        f"{REASSIGNMENT}:_moving", "if n not in target)\n    adding", "if n < 0)\n    adding"
    ),
    "a fenced broker gets a partition": Mutation(
        f"{REASSIGNMENT}:_check", "if node_id not in alive:", "if node_id < 0:"
    ),
    "election outside the in-sync replicas": Mutation(
        f"{LEADERS}:successor",
        "leader_id = first_of(partition.replicas, alive, in_sync)",
        "leader_id = first_of(partition.replicas, alive); in_sync = (*in_sync, leader_id)",
    ),
    "a fenced replica is elected": Mutation(
        f"{ELECTIONS}:_gone", "alive_brokers(image) - {node_id}", "alive_brokers(image)"
    ),
    "one that is about to stop is elected": Mutation(
        f"{LEADERS}:alive_brokers", "if not one.in_shutdown", "if one.node_id >= 0"
    ),
    "others stay eligible beside an unclean leader": Mutation(
        f"{ELECTIONS}:_settle", "left = () if unclean else", "left ="
    ),
    "others stay in sync with an unclean leader": Mutation(
        f"{ELECTIONS}:_settle",
        "in_sync = () if leader_id == NO_LEADER else (leader_id,)",
        "in_sync = () if leader_id == NO_LEADER else (leader_id, *partition.in_sync_replicas)",
    ),
    "a replica restarted uncleanly stays eligible": Mutation(
        f"{ELECTIONS}:_leave", "if kept is _Kept.ROWS else", "if kept is not _Kept.NOTHING else"
    ),
    "the last of several, restarted uncleanly, leads as it is": Mutation(
        f"{ELECTIONS}:_leave",
        "if len(partition.replicas) == 1 and",
        "if not in_sync and",
    ),
    "a lone replica, restarted uncleanly, is given up": Mutation(
        f"{ELECTIONS}:_leave", "if len(partition.replicas) == 1 and", "if False and"
    ),
    "one answer too few": Mutation(
        "core.controller.eligible:logs_needed", "count - least + 1", "max(1, count - least)"
    ),
    "as many answers as of those that are in sync": Mutation(
        "core.controller.eligible:logs_needed", "count = len(partition.counted)", "count = 2"
    ),
    "a replica that was once in sync counts as never in sync": Mutation(
        "core.controller.topic_image:PartitionImage.hold",
        "if n not in self.replicas",
        "if n not in self.in_sync_replicas",
    ),
    "the minimum of now, and not of then": Mutation(
        "core.controller.eligible:logs_needed",
        "topic.min_in_sync_least",
        "topic.config.min_in_sync_replicas",
    ),
    "a snapshot forgets the smallest minimum": Mutation(
        "core.controller.topic_image:TopicImage.record", "self.min_in_sync_least,\n", "0,\n"
    ),
    "offsets are compared before epochs": Mutation(
        f"{ELECTIONS}:_longest", "if end > best:", "if end[::-1] > best[::-1]:"
    ),
    "the shortest log leads": Mutation(
        f"{ELECTIONS}:longest_log",
        "_longest(logs or reported, reported)",
        "min(logs or reported, key=reported.__getitem__)",
    ),
    "a disk that was replaced counts": Mutation(
        f"{ELECTIONS}:longest_log", "if n not in replaced", "if n >= 0"
    ),
    "a replaced disk is not recorded": Mutation(
        f"{ELECTIONS}:_leave", "replaced = (*_minus(replaced, node_id), node_id)", "pass"
    ),
    "a snapshot forgets which disks were replaced": Mutation(
        "core.controller.topic_image:PartitionImage.record", "self.replaced_disks,\n", "(),\n"
    ),
    "logs without a row are enough when disks of others are gone": Mutation(
        f"{ELECTIONS}:longest_log", "is_bare and len(intact) >= needed", "is_bare"
    ),
    "a fenced broker counts, and leads": Mutation(
        f"{ELECTIONS}:longest_log", "if n in ends and n in alive", "if n in ends"
    ),
    "an election without a new epoch": Mutation(
        f"{LEADERS}:leader_change",
        "partition.leader_epoch + 1 if is_elected else NO_EPOCH",
        "NO_EPOCH",
    ),
    "unclean elections without being asked": Mutation(
        f"{ELECTIONS}:_settle",
        "config.unclean_leader_election or unclean_ends is not None",
        "True",
    ),
    "an unclean election that is not marked as one": Mutation(
        f"{ELECTIONS}:_settle", "unclean = leader_id != NO_LEADER", "unclean = False"
    ),
    "a lower minimum keeps who is eligible": Mutation(
        f"{ELECTIONS}:settings_changed", "elif eligible and len", "elif not eligible and len"
    ),
    "unclean election enabled without a new election": Mutation(
        f"{ELECTIONS}:settings_changed", "if partition.leader_id == NO_LEADER:", "if not alive:"
    ),
    "the log of a broker that comes back does not count": Mutation(
        f"{ELECTIONS}:broker_unfenced",
        "alive_brokers(image) | {node_id}",
        "alive_brokers(image)",
    ),
    "eligible with enough in sync": Mutation(
        "core.controller.eligible:eligible_after", "if len(in_sync) >= min", "if len(in_sync) > min"
    ),
    "a replica that was eligible before stays out": Mutation(
        "core.controller.eligible:eligible_after",
        "(*partition.eligible_leader_replicas, *partition.in_sync_replicas)",
        "partition.eligible_leader_replicas",
    ),
}


def run(seed: int, steps: int = STEPS, *, is_focused: bool = False) -> ElectionsWorld:
    world = ElectionsWorld(seed, is_focused=is_focused)
    for _ in range(steps):
        world.step()
    return world


@given(st.integers(0, 2**32))
def test_elections_keep_what_readers_saw(seed: int) -> None:
    """Rule 10 of docs/replication-rules.md."""
    run(seed)


@given(st.integers(0, 2**32))
def test_no_power_failure_takes_what_lies_on_enough_disks(seed: int) -> None:
    run(seed, is_focused=True)


def test_everything_happens() -> None:
    happened: Counter[str] = Counter()
    for seed in range(60):
        happened += run(seed).happened
    assert len(happened) == 24, happened
    assert min(happened.values()) > 2, happened


@pytest.mark.parametrize("name", BUGS)
def test_a_planted_bug_is_noticed(name: str) -> None:
    with planted((BUGS[name],)):
        for seed in (*FIRST_SEEDS, *range(SEEDS_PER_BUG)):
            try:
                run(seed)
                for part in range(8):
                    run(8 * seed + part, 2 * STEPS, is_focused=True)
            except (Violation, AssertionError):
                return
    pytest.fail(f"{name}: not noticed by {SEEDS_PER_BUG} seeds")
