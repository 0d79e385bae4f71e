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
ELECTIONS = "core.controller.elections"

REASSIGNMENT = "core.controller.reassignment"

BUGS: dict[str, Mutation] = {
    "a move ends before those that are added are in sync": Mutation(
        f"{REASSIGNMENT}:_ended",
        "not set(adding) <= set(kept) or len(kept) < min_in_sync(topic.config, partition)",
        "not kept",
    ),
    "a move keeps those that leave in sync": Mutation(
        f"{REASSIGNMENT}:_ended", "(n for n in in_sync if n in target)", "(in_sync)"
    ),
    "a leader that leaves hands over to one out of sync": Mutation(
        f"{REASSIGNMENT}:_change", "if node_id in in_sync", "if node_id >= 0"
    ),
    "a move hands over without a new epoch": Mutation(
        f"{REASSIGNMENT}:_change",
        "leader_epoch = partition.leader_epoch + 1",
        "leader_epoch = NO_EPOCH",
    ),
    "a move is given up although only new replicas have the rows": Mutation(
        f"{REASSIGNMENT}:_kept_in_sync", "not relied & set(replicas)", "not relied"
    ),
    "a fenced broker gets a partition": Mutation(
        f"{REASSIGNMENT}:_check", "if node_id not in alive:", "if node_id < 0:"
    ),
    "election outside the in-sync replicas": Mutation(
        f"{ELECTIONS}:_settle",
        "leader_id = _first(partition.replicas, alive, in_sync)",
        "leader_id = _first(partition.replicas, alive); in_sync = (*in_sync, leader_id)",
    ),
    "a fenced replica is elected": Mutation(
        f"{ELECTIONS}:_gone", "_alive(image) - {node_id}", "_alive(image)"
    ),
    "one that is about to stop is elected": Mutation(
        f"{ELECTIONS}:_alive", "if not one.in_shutdown", "if one.node_id >= 0"
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
        f"{ELECTIONS}:_leave", "if kept is not _Kept.ROWS:", "if kept is _Kept.NOTHING:"
    ),
    "the last replica, restarted uncleanly, is given up": Mutation(
        f"{ELECTIONS}:_leave", "if in_sync or others or kept is _Kept.NOTHING", "if True"
    ),
    "an election without a new epoch": Mutation(
        f"{ELECTIONS}:_change", "partition.leader_epoch + 1 if is_elected else NO_EPOCH", "NO_EPOCH"
    ),
    "unclean elections without being asked": Mutation(
        f"{ELECTIONS}:_settle", "(config.unclean_leader_election or may_be_unclean)", "True"
    ),
    "an unclean election that does not say so": Mutation(
        f"{ELECTIONS}:_settle", "unclean = leader_id != NO_LEADER", "unclean = False"
    ),
    "a lower minimum keeps who is eligible": Mutation(
        f"{ELECTIONS}:settings_changed", "elif eligible and len", "elif not eligible and len"
    ),
    "unclean election enabled, and nobody looks": Mutation(
        f"{ELECTIONS}:settings_changed", "if partition.leader_id == NO_LEADER:", "if not alive:"
    ),
    "who comes back is not looked at": Mutation(
        f"{ELECTIONS}:broker_unfenced", "_alive(image) | {node_id}", "_alive(image)"
    ),
    "eligible with enough in sync": Mutation(
        "core.controller.eligible:eligible_after", "if len(in_sync) >= min", "if len(in_sync) > min"
    ),
    "nobody becomes eligible who was so before": Mutation(
        "core.controller.eligible:eligible_after",
        "(*partition.eligible_leader_replicas, *partition.in_sync_replicas)",
        "partition.eligible_leader_replicas",
    ),
}


def run(seed: int, steps: int = STEPS) -> ElectionsWorld:
    world = ElectionsWorld(seed)
    for _ in range(steps):
        world.step()
    return world


@given(st.integers(0, 2**32))
def test_elections_keep_what_readers_saw(seed: int) -> None:
    """Rule 10 of docs/replication.md."""
    run(seed)


def test_everything_happens() -> None:
    happened: Counter[str] = Counter()
    for seed in range(60):
        happened += run(seed).happened
    assert len(happened) == 16, happened
    assert min(happened.values()) > 5, happened


@pytest.mark.parametrize("name", BUGS)
def test_a_planted_bug_is_noticed(name: str) -> None:
    with planted((BUGS[name],)):
        for seed in range(SEEDS_PER_BUG):
            try:
                run(seed)
            except (Violation, AssertionError):
                return
    pytest.fail(f"{name}: not noticed by {SEEDS_PER_BUG} seeds")
