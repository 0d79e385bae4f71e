"""What elections must keep true of every partition, checked after each step of a world.

Not here: what happened.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from quiverlog.core.controller.records import NO_LEADER

if TYPE_CHECKING:
    from .elections_world import ElectionsWorld

__all__ = ["Violation", "check", "check_all"]


class Violation(AssertionError):
    """What must not be."""


def check(holds: object, what: str, *facts: object) -> None:
    """Raise Violation unless it holds."""
    if not holds:
        raise Violation(f"{what}: {facts}")


def check_all(world: ElectionsWorld) -> None:
    """What holds of every partition after each step."""
    alive = world.alive()
    fenced = {n for n, one in world.image.brokers.items() if one.fenced}
    for key, logs in world.log.items():
        topic, partition = world.partition(key)
        leader, replicas = partition.leader_id, set(partition.replicas)
        in_sync = set(partition.in_sync_replicas)
        eligible = set(partition.eligible_leader_replicas)
        facts = (topic.name, partition.partition, leader, in_sync, eligible, fenced)
        check(in_sync <= replicas and eligible <= replicas, "not a replica", *facts)
        check(not in_sync & eligible, "in sync and eligible", *facts)
        check(not in_sync & fenced, "in sync and fenced", *facts)
        minimum = topic.config.min_in_sync_replicas
        moving = {*partition.adding_replicas, *partition.removing_replicas}
        check(moving <= replicas, "what moves is no replica", *facts)
        check(len(in_sync) < minimum or not eligible, "eligible with enough in sync", *facts)
        check((leader == NO_LEADER) == (not in_sync), "in sync without a leader", *facts)
        for node_id in in_sync | eligible:
            seen = world.seen[key]
            has = logs[node_id][: len(seen)] == seen
            may_lack = node_id in world.torn[key] or node_id in world.dark
            check(has or may_lack, "lacks what readers saw", node_id, *facts)
        check((leader == NO_LEADER) == (key in world.image.leaderless), "the index", *facts)
        if leader == NO_LEADER:
            check(not alive & eligible, "no leader, and one could lead", *facts)
            may_wait = len(replicas) > 1 or key in world.given_up
            check(eligible or may_wait, "no replica is left to lead", *facts)
            may_lose = topic.config.unclean_leader_election
            check(not (may_lose and alive & replicas), "no leader, and one may lead", *facts)
            continue
        check(leader in in_sync, "a leader out of sync", *facts)
        if leader not in world.dark:
            safe = world.safe[key]
            check(logs[leader][: len(safe)] == safe, "lacks what was acknowledged", *facts)
        known = world.leader_of.setdefault((key, partition.leader_epoch), leader)
        check(known == leader, "two leaders of one epoch", *facts)
        preferred = leader == partition.replicas[0]
        check(preferred == (key not in world.image.unpreferred), "the index", *facts)
