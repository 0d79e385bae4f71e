"""The shipped member of a group in a world where messages are lost, doubled and late, coordinators
fail over, and programs die, freeze, hang, leave and change their topics: never two that have a
partition at one time, no row left out, commits that never go back, and all comes to rest.
"""

from __future__ import annotations

from typing import Any
from unittest import mock

import pytest

from tests.sim.mutations import Mutation, planted
from tests.support import group_programs
from tests.support.group_members import ShippedMember
from tests.support.group_world import Violation

SEEDS = 25
SEEDS_PER_BUG = 100
MEMBER = "client.groups.member:GroupMember"

BUGS = {
    "owned shrinks before it was committed": Mutation(
        f"{MEMBER}.answered",
        "self.owned = {**self.owned, **self.assignment}",
        "self.owned = {**self.assignment}",
    ),
    "an answer from before a loss counts": Mutation(
        f"{MEMBER}.answered", "if request is self._stale_beat or", "if False or"
    ),
    "a commit from before a loss is not waited for": Mutation(
        f"{MEMBER}.next_beat", "if self._has_stale_commit and", "if False and"
    ),
    "a member believes in its partitions after its session": Mutation(
        f"{MEMBER}.look_at_program", "if self.phase is not Phase.MEMBER or", "if True or"
    ),
}


def build(world: Any, group: str, *args: Any, **kwargs: Any) -> Any:
    kind = group_programs_program if kwargs["has_transactions"] else ShippedMember
    return kind(world, group, *args, **kwargs)


group_programs_program = group_programs.Program


def run(seed: int) -> None:
    with mock.patch.object(group_programs, "Program", build):
        group_programs.run_world(seed)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_what_is_promised_holds(seed: int) -> None:
    run(seed)


@pytest.mark.long
@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_noticed(bug: str) -> None:
    with planted((BUGS[bug],)):
        for seed in range(SEEDS_PER_BUG):
            try:
                run(seed)
            except (Violation, AssertionError):
                return
    pytest.fail(f"{bug}: not noticed in {SEEDS_PER_BUG} seeds")
