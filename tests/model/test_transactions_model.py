"""Transactions against their promises: the shipped cores among crashes, elections, power failures.

Then the same with bugs planted, in the cores and in the few lines of shell that the world has: each
must be noticed, or the model would prove nothing.
"""

from __future__ import annotations

import pytest

from quiverlog.errors import QuiverlogError
from tests.sim.bugs import Caught
from tests.sim.mutations import Mutation, planted
from tests.support.transaction_programs import run_world
from tests.support.transaction_world import Violation

SEEDS = 100
SEEDS_PER_BUG = 400
FIRST_SEEDS = {
    "COUNT_STAGED is answered without a lease": 22,
    "a commit is no sign of life": 47,
    "a late abort of a forgotten id is answered like any other": 52,
    "a new leader serves before its rows are on disks": 33,
    "a new life has no sign of life": 151,
    "an unknown id is called dead without a record": 39,
    "dead is answered before CLOSED is safe": 57,
    "rows are called lost without a look whether they are published": 64,
    "the publisher forgets pieces that were acknowledged": 40,
}
"""Where a hunt begins: of bugs that few seeds notice, one that did. Any change shifts them."""
COORDINATOR = "core.transactions.coordinator"
STAGED = "core.transactions.staged:Staged"
PUBLISHES = "core.partition.publishes:Publishes"
WORLD = "tests.support.transaction_world"

BUGS: dict[str, Mutation | tuple[Mutation, ...]] = {
    "no new epoch at open": Mutation(
        f"{COORDINATOR}:Coordinator.open", "else state.epoch)", "else state.epoch - 1)"
    ),
    "a replaced instance may open again": Mutation(
        f"{COORDINATOR}:_check_unseen", "in state.old_instances", "in ()"
    ),
    "a commit of an old epoch is taken": Mutation(
        f"{COORDINATOR}:_check_epoch", "epoch == state.epoch and state.closed is None", "True"
    ),
    "the last sequence is forgotten by the snapshot": Mutation(
        f"{COORDINATOR}:Coordinator._replay_snapshot",
        "self.applied[record.transactional_id] = record.change",
        "self.applied[record.transactional_id] = replace(record.change, last=None)",
    ),
    "a commit does not wait for the publish before": Mutation(
        f"{COORDINATOR}:Coordinator.check_commit", "state.publishing is not None", "False"
    ),
    "the reaper answers dead without a record": Mutation(
        f"{COORDINATOR}:Coordinator.resolve",
        "Resolving([_closing(tid, state, reason)], Resolved.DEAD)",
        "Resolving([], Resolved.DEAD)",
    ),
    "an unknown id is called dead without a record": Mutation(
        f"{COORDINATOR}:Coordinator.resolve",
        'Resolving([Record(tid, Closed(above, "unknown id"))], Resolved.DEAD)',
        "Resolving([], Resolved.DEAD)",
    ),
    "a live attempt is given up": Mutation(
        f"{COORDINATOR}:Coordinator.resolve",
        "if reason is None:\n        return Resolving([], Resolved.LIVE)",
        "if reason is None:\n        return Resolving([], Resolved.DEAD)",
    ),
    "an abort leaves no record": Mutation(
        f"{COORDINATOR}:Coordinator.abort",
        "return Aborting([_closing(tid, state)], had_committed)",
        "return Aborting([], had_committed)",
    ),
    "a forgotten id begins at epoch 1": Mutation(
        f"{COORDINATOR}:Coordinator.open", "self._pended_forgotten_epoch if state", "0 if state"
    ),
    "a late abort of a forgotten id is answered like any other": (
        Mutation(f"{COORDINATOR}:Coordinator._held", "if not state.instance:", "if False:"),
        Mutation(
            f"{COORDINATOR}:_after",
            "if before.closed is not None else before.epoch",
            "if before.closed is not None else before.epoch if state else change.epoch - 1",
        ),
    ),
    "a clock that is set forgets ids of single use": Mutation(
        f"{COORDINATOR}:Coordinator._is_expired",
        "now.mono_us - committed_us",
        "now.wall_us - state.last.committed_us",
    ),
    "a new life has no sign of life": Mutation(
        f"{COORDINATOR}:Coordinator._apply_one", "if self._find(tid) is None:", "if True:"
    ),
    "staged rows of other epochs count": Mutation(
        f"{STAGED}._transaction_slot", "holder, key.epoch, key.sequence", "holder, 0, key.sequence"
    ),
    "done is said of rows that are not known": Mutation(
        f"{STAGED}.publish", "log_start >= next_offset", "True"
    ),
    "the log start passes what is staged": Mutation(
        f"{STAGED}.trim_offset", "if first:", "if False:"
    ),
    "an older publish is appended": Mutation(
        f"{PUBLISHES}.stored", "publish_id < newest.publish_id", "False"
    ),
    "the stored prefix is not skipped": Mutation(f"{PUBLISHES}.stored", "count += 1", "pass"),
    "a gap is appended": Mutation(
        f"{PUBLISHES}.stored",
        "header.base_sequence == expected",
        "header.base_sequence >= expected",
    ),
    "a later publish overtakes": Mutation(
        "node.transactions.queues:Piece.__init__", "line.parts[0]", "line.parts[-1]"
    ),
    "the publisher forgets pieces that were acknowledged": Mutation(
        "node.transactions.queues:Queues.go_back",
        "expected < piece.sequence",
        "piece.line.safe_sequence <= expected < piece.sequence",
    ),
    "publishes are evicted like producers": Mutation(
        f"{PUBLISHES}._put",
        "len(table) > PUBLISH_STATES_MAX:",
        "len(table) > 1 and not table.pop(next(iter(table))):",
    ),
    # The few lines of shell that the world has, and a program's.
    "a snapshot without its end is believed": (
        Mutation(
            f"{WORLD}:Coordinating.snapshot",
            "self._propose(self.core.capture(), trim)",
            "[self._propose([one], trim) for one in self.core.capture()]",
        ),
        Mutation(
            f"{COORDINATOR}:Coordinator.begin",
            "if self._is_loading:",
            "if self._is_loading and self._finish_loading():",
        ),
    ),
    "a commit is no sign of life": Mutation(
        f"{WORLD}:Coordinating._may_commit", "self.core.sign_of_life(tid, self.moment)", "pass"
    ),
    "skipped tasks, and no COMMIT": Mutation(
        "tests.support.transaction_programs:Run._opened",
        "self._commit()",
        "self._committed(turn, (), None)",
    ),
    "decided without COUNT_STAGED": Mutation(
        f"{WORLD}:Coordinating.commit",
        "for number in list(asking.left):",
        "for number in asking.left.clear() or ():",
    ),
    "not looked at again after COUNT_STAGED": Mutation(
        f"{WORLD}:Coordinating._decide",
        "if not self._may_commit(asking):",
        "if False:",
    ),
    "rows are called lost without a look whether they are published": Mutation(
        f"{WORLD}:Coordinating._counted",
        "if self._may_commit(asking):",
        "if True:",
    ),
    "answered before COMMITTED is safe": Mutation(
        f"{WORLD}:Coordinating._decide",
        "self._propose(records, decided)",
        "self.world.send(asking.reply, None); self._propose(records, decided)",
    ),
    "COMMITTED is replicated only, and power fails": Mutation(
        f"{WORLD}:Coordinating._propose",
        "flushed=True",
        "flushed=False",
    ),
    "COUNT_STAGED is answered without a lease": Mutation(
        f"{WORLD}:Staging.count",
        "or not self.is_leader",
        "",
    ),
    "dead is answered before CLOSED is safe": Mutation(
        f"{WORLD}:Coordinating.resolve",
        "self._propose(found.records, lambda: self.world.send(reply, found.standing))",
        "self._propose(found.records, None); self.world.send(reply, found.standing)",
    ),
    "published before the publish row is safe": Mutation(
        f"{WORLD}:Staging.publish",
        "self.core.pend(row)",
        "self.core.pend(row); self._forward(row)",
    ),
    "the publish row is replicated only, and power fails": Mutation(
        f"{WORLD}:Staging.publish",
        "flushed=True",
        "flushed=False",
    ),
    "publishes are numbered anew by each leader": Mutation(
        f"{WORLD}:Staging.__init__",
        "epoch = self.epoch",
        "epoch = 0",
    ),
    "a target forgets publishes at an election": Mutation(
        f"{WORLD}:Target.__init__",
        "self.core.record",
        "(lambda *_: None)",
    ),
    "FORWARD is acknowledged before it is safe": Mutation(
        f"{WORLD}:Target.forward",
        "if not self.tail:",
        "if True:",
    ),
    "a new leader serves before its rows are on disks": Mutation(
        f"{WORLD}:Staging._serve",
        "self.log.flushed = len(self.rows)",
        "pass",
    ),
    "a new coordinator has not replayed all": Mutation(
        f"{WORLD}:Coordinating.__init__",
        "range(log.start, len(self.rows))",
        "range(log.start, max(log.start, len(self.rows) - 3))",
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
    [0, 25, *(pytest.param(first, marks=pytest.mark.long) for first in range(50, SEEDS, 25))],
)
def test_every_transaction_is_published_once_or_never(first: int) -> None:
    for seed in range(first, first + 25):
        run_world(seed)


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_noticed(bug: str) -> None:
    assert hunt_in_model(bug).seed is not None, bug
