"""One leader and its followers, as machines over lists: no row that was promised is ever lost.

Loss, reordering, repetition, deaths with and without rows, elections by a controller that keeps the
rules and is otherwise free. Then the same with bugs planted in the cores: each must be noticed, or
the model would prove nothing.
"""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.sim.mutations import Mutation, planted
from tests.support.replication_world import ReplicationWorld, Violation

STEPS = 600
SEEDS_PER_BUG = 1_000
FIRST_SEEDS = (19, 282, 397, 740)
"""Each notices what few others do."""
IN_SYNC = "core.partition.in_sync:InSync"
LEADERSHIP = "core.partition.leadership:Leadership"
FOLLOWER = "core.replication.follower"

BUGS: dict[str, tuple[Mutation, ...]] = {
    "truncate to the high watermark": (
        Mutation(
            f"{FOLLOWER}:Follower.answered",
            "result.diverging_epoch == NO_EPOCH",
            "result.diverging_epoch >= NO_EPOCH",
        ),
    ),
    "no second question (KIP-279)": (
        Mutation(
            f"{FOLLOWER}:cut_at",
            "return min(end_offset, log_end_offset)",
            "return min(diverging_end_offset, log_end_offset)",
        ),
        Mutation(
            f"{FOLLOWER}:Follower.cut",
            "self._begin()",
            "self._begin(); self.phase = Phase.FETCHING if self.has_leader else self.phase",
        ),
        Mutation(
            f"{FOLLOWER}:Follower.fetch_entry",
            "log.epochs.latest()[0],",
            "log.epochs.latest()[0] if self.phase is Phase.ASKING else NO_EPOCH,",
        ),
    ),
    "epoch list kept at the end (KAFKA-10706)": (
        Mutation(
            "storage.segment.epochs:LeaderEpochs.truncate_to",
            ">= offset:\n"
            "        del self._epochs[-1], self._starts[-1]\n"
            "        self.dirty = True\n"
            "    assert len(self._epochs) == len(self._starts)\n"
            "    assert not self._starts or self._starts[-1] < offset",
            "> offset:\n        del self._epochs[-1], self._starts[-1]\n",
        ),
    ),
    "joined without broker epoch": (
        Mutation(
            f"{LEADERSHIP}._is_fit",
            "brokers.fit_epoch(follower.broker_id) == follower.broker_epoch",
            "brokers.fit_epoch(follower.broker_id) is not None",
        ),
    ),
    "a fenced replica counts": (
        Mutation(
            f"{LEADERSHIP}._is_fit",
            "brokers.fit_epoch(follower.broker_id) == follower.broker_epoch",
            "brokers.fit_epoch(follower.broker_id) in (None, follower.broker_epoch)",
        ),
    ),
    "pending in-sync replicas ignored": (
        Mutation(
            f"{IN_SYNC}._count",
            "self.maximal = self.committed.union(*self._possible)",
            "self.maximal = self.committed",
        ),
    ),
    "a refusal reverts what may still arrive": (
        Mutation(f"{IN_SYNC}.refused", "if not self._possible[self._asked]:", "if True:"),
    ),
    "another epoch reverts what was proposed": (
        Mutation(
            f"{IN_SYNC}.refused",
            "self._asked = None\n        self.outdated = True",
            "self._asked = None\n        self._possible.clear()",
        ),
    ),
    "lag kept at the election": (
        Mutation(
            f"{LEADERSHIP}.set_replicas",
            "now_us if is_in_sync else NEVER_US",
            "NEVER_US",
        ),
    ),
    "high watermark moves with too few in sync": (
        Mutation(f"{LEADERSHIP}.replicated_offset", "if self.is_under_min:", "if False:"),
    ),
    "too few in sync are counted as they may be": (
        Mutation(
            f"{LEADERSHIP}.is_under_min",
            "len(self.in_sync.committed)",
            "len(self.in_sync.maximal)",
        ),
    ),
    "high watermark is the end after a restart": (
        Mutation(
            "core.partition.partition:PartitionState.__init__",
            "self.high_watermark = log_start_offset",
            "self.high_watermark = log_end_offset",
        ),
    ),
    "a follower shows rows above its high watermark": (
        Mutation(
            "core.partition.partition:PartitionState.on_leader_high_watermark",
            "min(high_watermark, self.log_end_offset)",
            "self.log_end_offset",
        ),
    ),
    "a follower joins without the rows of earlier leaders": (
        Mutation(
            f"{LEADERSHIP}._may_join",
            "has_rows and self.agreement.is_shown_by(follower)",
            "end >= high_watermark",
        ),
    ),
    "a follower whose log parts counts": (
        Mutation(
            "core.replication.serving:record_report",
            "check(state, epochs, session.broker_id, entry).error_code:",
            "entry.leader_epoch != state.leader_epoch or entry.offset > state.log_end_offset:",
        ),
    ),
    "a follower of another leadership counts": (
        Mutation(
            "core.replication.serving:_check",
            "state.check_leader_epoch(entry.leader_epoch)",
            "pass",
        ),
    ),
    "a report to another leader counts": (
        Mutation(
            "core.partition.partition:PartitionState.lead",
            "if leadership is None or leadership.leader_epoch != leader_epoch:",
            "if leadership is None:",
        ),
    ),
}
"""By name: what is changed in the cores."""


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32))
@example(275579)  # A copy without rows has led, and its list of epochs shows it.
def test_nothing_that_was_promised_is_lost(seed: int) -> None:
    """Rule 21 of docs/replication-rules.md."""
    ReplicationWorld(random.Random(seed)).run(STEPS)


def test_the_runs_are_not_vacuous() -> None:
    happened: Counter[str] = Counter()
    for seed in range(60):
        world = ReplicationWorld(random.Random(seed))
        world.run(STEPS)
        happened["rows acknowledged"] += len(world.acknowledged)
        happened["elections"] += world.controller.leader_epoch
        happened["lives"] += sum(one.lives for one in world.brokers)
        happened.update(world.happened)
    assert happened["rows acknowledged"] > 300
    assert happened["elections"] > 200
    assert happened["lives"] > 300
    for kind in ("cut", "died with rows lost", "in-sync replicas refused"):
        assert happened[kind] > 5, (kind, happened)


@pytest.mark.parametrize("name", BUGS)
def test_a_planted_bug_is_noticed(name: str) -> None:
    with planted(BUGS[name]):
        for seed in (*FIRST_SEEDS, *range(SEEDS_PER_BUG)):
            try:
                ReplicationWorld(random.Random(seed)).run(STEPS)
            except (Violation, AssertionError):
                return
    raise AssertionError(f"{SEEDS_PER_BUG} runs without a failure: {name}")
