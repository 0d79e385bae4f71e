"""Registrations against an oracle of dictionaries: brokers are fenced, replaced, may stop.

Then the same with bugs planted: each must be noticed, or the model would prove nothing.
"""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.sim.mutations import Mutation, planted
from tests.support.registration_world import RegistrationWorld, Violation

STEPS = 400
SEEDS_PER_BUG = 600
MACHINE = "core.controller.registrations:Registrations"
SESSIONS = "core.controller.sessions:Sessions"

BUGS: dict[str, Mutation] = {
    "an earlier life's heartbeat counts": Mutation(
        f"{MACHINE}._registered_as", "broker.broker_epoch != broker_epoch", "False"
    ),
    "unfenced before it has caught up": Mutation(
        f"{MACHINE}.heartbeat", "beat.version >= self._must_know(image, broker)", "True"
    ),
    "unfenced before it knows that it was fenced": Mutation(
        f"{MACHINE}._must_know", "since = self._fenced[node_id]\n", "return broker.broker_epoch\n"
    ),
    "unfenced before its fencing is decided": Mutation(
        f"{MACHINE}._must_know", "return image.version + 1", "return 0"
    ),
    "a new controller forgets who was fenced": Mutation(
        f"{MACHINE}.begin", "self._fenced = {n", "self._fenced = {-1 - n"
    ),
    "unfenced although it is about to stop": Mutation(
        f"{MACHINE}.heartbeat", "and not broker.in_shutdown", ""
    ),
    "another disk replaces a live broker": Mutation(
        f"{MACHINE}._check_unique", "self.sessions.is_alive(before.node_id, now_us)", "False"
    ),
    "another disk never replaces a dead broker": Mutation(
        f"{MACHINE}._check_unique", "self.sessions.is_alive(before.node_id, now_us)", "True"
    ),
    "a copy of a disk replaces a live broker": Mutation(
        f"{MACHINE}._check_unique", "_addresses(before) & _addresses(newcomer)", "True"
    ),
    "a life that has ended keeps out one from elsewhere": Mutation(
        f"{MACHINE}._check_unique", "(before.fenced and before.in_shutdown)", "False"
    ),
    "a newcomer is not fenced": Mutation(
        "core.controller.registrations:_fenced", "fenced=True", "fenced=False"
    ),
    "a repeated request registers again": Mutation(
        f"{MACHINE}.register", "_is_same(before, newcomer) and not before.in_shutdown:",
        "False:",
    ),
    "a broker that is held for stopping never registers again": Mutation(
        f"{MACHINE}.register", "and not before.in_shutdown:", "and True:"
    ),
    "a new controller fences at once": Mutation(
        f"{SESSIONS}.begin", "last_contact_us.get(n, now_us)", "last_contact_us.get(n, 0)"
    ),
    "a controller that stood still fences those it has not read": Mutation(
        f"{SESSIONS}.silent", "self._suspect(session, now_us)\n        elif",
        "found.append(node_id)\n        elif",
    ),
    "a second stall is no stall": Mutation(
        f"{SESSIONS}.silent", "if late and session.suspicions < BROKER_SUSPICIONS_MAX:", "if False:"
    ),
    "suspicion outlives a heartbeat": Mutation(
        f"{SESSIONS}.renew", "session.suspect_us, session.suspicions = None, 0", "pass"
    ),
    "a silent broker is never fenced": Mutation(
        f"{SESSIONS}.silent", "now_us >= session.suspect_us + _SUSPECT_US:", "False:"
    ),
    "it stops before others have the metadata": Mutation(
        f"{MACHINE}._may_stop", "self.sessions.version_of(one.node_id) < since", "False"
    ),
    "it stops before it has the metadata itself": Mutation(
        f"{MACHINE}._may_stop",
        "is_controller = one.node_id == self.node_id",
        "is_controller = one.node_id in (node_id, self.node_id)",
    ),
    "it stops while it leads": Mutation(
        f"{MACHINE}._may_stop", "partition.leader_id == node_id", "False"
    ),
    "a heartbeat is answered from proposed records": Mutation(
        f"{MACHINE}.heartbeat", "held = image.brokers", "held = pending.brokers"
    ),
}  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32))
def test_the_rules_hold(seed: int) -> None:
    RegistrationWorld(random.Random(seed)).run(STEPS)


def test_the_runs_are_not_vacuous() -> None:
    happened: Counter[str] = Counter()
    for seed in range(30):
        world = RegistrationWorld(random.Random(seed))
        world.run(STEPS)
        happened += world.happened
    for what in (
        "registrations",
        "fenced",
        "unfenced",
        "stale",
        "duplicates",
        "refused copies",
        "stops",
    ):
        assert happened[what] > 30, happened


@pytest.mark.parametrize("name", BUGS)
def test_a_planted_bug_is_noticed(name: str) -> None:
    with planted((BUGS[name],)):
        for seed in range(SEEDS_PER_BUG):
            try:
                RegistrationWorld(random.Random(seed)).run(STEPS)
            except (Violation, AssertionError):
                return
    pytest.fail(f"{SEEDS_PER_BUG} runs did not notice: {name}")
