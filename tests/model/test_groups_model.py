"""Groups against their promises: the shipped core among lost, doubled and late messages, elections,
members that die, freeze, leave, come back and change their topics.

Then the same with bugs planted, in the core and in the few lines of shell and of client that the
world has: each must be noticed, or the model would prove nothing.
"""

from __future__ import annotations

import pytest

from quiverlog.errors import QuiverlogError
from tests.sim.bugs import Caught
from tests.sim.mutations import Mutation, planted
from tests.support.group_programs import run_world
from tests.support.group_world import Violation

SEEDS = 60
SEEDS_PER_BUG = 200
FIRST_SEEDS = {
    "a late commit of a revoked partition is taken": 7,
    "a new coordinator has not replayed all": 1,
    "a repetition goes on like any other heartbeat": 11,
    "a target that could not be stored is not computed again": 45,
    "after a failover an older heartbeat counts": 40,
    "offsets are lost by a snapshot": 8,
    "offsets of another try are settled": 6,
    "rows between those of a snapshot are lost": 5,
    "the failure of an earlier try settles the next": 3,
    "what could not be stored stays": 1,
}
"""Where a hunt begins: of bugs that few seeds notice, one that did. Any change shifts them."""
COORDINATOR = "core.groups.coordinator:Coordinator"
GROUP = "core.groups.group:Group"
OFFSETS = "core.groups.offsets:Offsets"
RECONCILE = "core.groups.reconcile"
PROGRAM = "tests.support.group_programs:Program"
WORLD = "tests.support.group_world"

BUGS: dict[str, Mutation | tuple[Mutation, ...]] = {
    "given to B before A has revoked": Mutation(
        f"{RECONCILE}:advance", "holders.get(one, member_id) == member_id", "True"
    ),
    "owned ignored: what must be given up counts as given up": Mutation(
        f"{RECONCILE}:advance",
        "if revoking and (owned is None or any(one in owned for one in revoking)):",
        "if False:",
    ),
    "what is not in owned is free, whenever it was reported": Mutation(
        f"{RECONCILE}:advance", "if owned is None or one in owned", "if False"
    ),
    "the previous epoch is no repetition": Mutation(
        f"{RECONCILE}:check_epoch", "epoch == standing.previous_epoch", "False"
    ),
    "a repetition goes on like any other heartbeat": Mutation(
        f"{GROUP}._go_on",
        "asks_again = check_epoch(standing, beat.epoch, owned)",
        "check_epoch(standing, beat.epoch, owned)",
    ),
    "a late commit of a revoked partition is taken": Mutation(
        f"{GROUP}.committer", "if given is not None and given <= epoch <= standing.epoch:", "if 1:"
    ),
    "a commit is refused although the epoch was only raised": Mutation(
        f"{GROUP}.committer", "given <= epoch <= standing.epoch", "epoch == standing.epoch"
    ),
    "offsets are lost by a snapshot": Mutation(
        f"{GROUP}.rows", "yield from self.offsets.rows()", "pass"
    ),
    "rows between those of a snapshot are lost": Mutation(
        f"{COORDINATOR}._finish_loading", "for record in deferred:", "for record in ():"
    ),
    "a member is forgotten at failover": Mutation(
        f"{COORDINATOR}.begin", "group.index()", "group.index(); group.members.clear()"
    ),
    "a session is not restarted at failover": Mutation(
        f"{COORDINATOR}._see_all", "Live(now.mono_us)", "Live(0)"
    ),
    "an older heartbeat counts": Mutation(
        f"{GROUP}._check_newer", "if beat.beat < newest:", "if False:"
    ),
    "after a failover an older heartbeat counts": Mutation(
        f"{GROUP}._newest_beat",
        "max(seen, member.beat, self._standing(member_id).beat)",
        "max(seen, -1 if seen >= 0 else member.beat)",
    ),
    "a late join frees what a member holds": (
        Mutation(
            f"{GROUP}._check_newer",
            "if beat.beat < newest:",
            "if beat.beat < newest and beat.epoch:",
        ),
        Mutation(
            f"{GROUP}._go_on",
            "live.owned = None",
            "live.owned = None; records += [Record(Kind.CURRENT, self.name, member_id)]"
            " * (beat.epoch == JOINS)",
        ),
    ),
    "what a fenced member has is not freed": Mutation(
        f"{GROUP}._put_current", "if self.holders.get(one) == member_id and not", "if 0 and not"
    ),
    "offsets of another try are settled": Mutation(
        f"{OFFSETS}.settle", "bool(digest) and digest == pending.digest", "bool(digest)"
    ),
    "the failure of an earlier try settles the next": Mutation(
        f"{OFFSETS}.settle", "attempt < pending.attempt", "False"
    ),
    "a late PREPARE begins again what is over": Mutation(
        "core.groups.offsets:_check_newer", "if place > newest and not", "if 1 or not"
    ),
    "a pending offset is shown": Mutation(f"{OFFSETS}.fetch", "one in self._pending_of,", "False,"),
    "a pending offset is never settled after the death of its coordinator": Mutation(
        f"{COORDINATOR}.unsettled", "for name in self._with_pending", "for name in ()"
    ),
    "offsets of a deleted topic are those of the new one": Mutation(
        f"{OFFSETS}.fetch",
        "self.committed.get(one)",
        "max((v for k, v in self.committed.items() if k[1] == one[1]), default=None,"
        " key=lambda v: v.offset)",
    ),
    "the leader epoch of a commit is dropped": Mutation(
        f"{OFFSETS}._row", "one.leader_epoch", "-1"
    ),
    "what could not be stored stays": Mutation(
        f"{COORDINATOR}.drop_pending", "self._put(before)", "pass"
    ),
    "a target that could not be stored is not computed again": Mutation(
        f"{COORDINATOR}.tick", "group.target_due(now.mono_us + _RETRY_US)", "pass"
    ),
    # The few lines of shell and of client that the world has.
    "a commit is answered before it is safe": Mutation(
        f"{WORLD}:Coordinating.commit",
        "self._answer(done.records, reply, done.errors)",
        "self.world.send(reply, done.errors); self._propose(done.records)",
    ),
    "a heartbeat is answered before it is safe": Mutation(
        f"{WORLD}:Coordinating._beaten",
        "self._answer(answer.records, reply, answer, None)",
        "self.world.send(reply, answer, None); self._propose(answer.records)",
    ),
    "a new coordinator has not replayed all": Mutation(
        f"{WORLD}:Coordinating.__init__",
        "range(log.start, len(self.rows))",
        "range(log.start, max(log.start, len(self.rows) - 3))",
    ),
    "a member takes the answer to an earlier heartbeat": Mutation(
        f"{PROGRAM}._answered", "beat != self.beat or", ""
    ),
    "a member shrinks owned before it gives up": Mutation(
        f"{PROGRAM}._send_beat",
        "frozenset(self.owned) if tells_owned else None",
        "frozenset(self.owned) - self.giving",
    ),
    "a fenced member goes on": Mutation(
        f"{PROGRAM}._step",
        "if self.epoch != JOINS and not self.is_valid():",
        "self.valid_until += 1_000\n    if False:",
    ),
}


def hunt_in_model(name: str) -> Caught:
    """The first seed that notices a bug; sound code passes those of the test below."""
    changed = BUGS[name]
    with planted(changed if isinstance(changed, tuple) else (changed,)):
        for seed in (FIRST_SEEDS.get(name, 0), *range(SEEDS_PER_BUG)):
            try:
                run_world(seed)
            except (Violation, AssertionError, QuiverlogError, LookupError) as error:
                return Caught(name, seed, f"{type(error).__name__}: {error}", seed + 1)
    return Caught(name, None, "")


@pytest.mark.parametrize(
    "first",
    [0, *(pytest.param(first, marks=pytest.mark.long) for first in range(6, SEEDS, 6))],
)
def test_members_share_partitions_and_skip_no_row(first: int) -> None:
    for seed in range(first, first + 6):
        run_world(seed)


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_noticed(bug: str) -> None:
    assert hunt_in_model(bug).seed is not None, bug
