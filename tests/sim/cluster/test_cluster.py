"""The simulator of a cluster as a test: fixed seeds, fresh ones, and that it is no sham."""

from __future__ import annotations

import functools
import random
from collections import Counter

import pytest

from tests.sim.bug import Bug
from tests.sim.bugs import hunt
from tests.sim.mutations import NotThere
from tests.support.once import once

from .planted import BUGS, UNPROVEN
from .run import ClusterResult, simulate
from .transaction_bugs import KILLS_OF_TRANSACTIONS

_SEEDS = 12
"""Sound code runs some fifty more seeds, aimed ones, when planted bugs are hunted."""
_CHUNK = 3
_FRESH_SEEDS = 2
_DURATION_MS = 3_000
_FRESH_MS = 3_000
"""Longer fresh ones fail now and then: tests/sim/README.md lists what is open."""
_HUNT_SEEDS = 6
_HUNT_MS = 3_000
_LONG_HUNT_MS = 6_000
_MUST_HAPPEN = (
    "clock jump",
    "kill",
    "lost on the way to ClusterHost",
    "partition",
    "pause",
    "power loss",
    "slow job",
    "stop",
)


@functools.cache
def _run(seed: int) -> ClusterResult:
    return once((__name__, seed), lambda: simulate(seed, duration_ms=_DURATION_MS))


@pytest.mark.long
@pytest.mark.parametrize("first", range(0, _SEEDS, _CHUNK))
def test_a_cluster_keeps_every_promise(first: int) -> None:
    for seed in range(first, first + _CHUNK):
        _run(seed)


@pytest.mark.long
def test_a_cluster_keeps_every_promise_with_fresh_seeds() -> None:
    """A failure names its seed and the command that shows it again."""
    for _ in range(_FRESH_SEEDS):
        simulate(random.SystemRandom().randrange(10**6, 10**9), duration_ms=_FRESH_MS)


@pytest.mark.long
@pytest.mark.timeout(600)  # One that runs them all anew: this test alone.
def test_much_happens_to_a_cluster() -> None:
    results = [_run(seed) for seed in range(_SEEDS)]
    faults = Counter[str]()
    for result in results:
        faults.update(result.faults)
    assert not [kind for kind in _MUST_HAPPEN if not faults[kind]], faults
    assert sum(result.rows_acknowledged for result in results) > 10_000
    assert sum(result.elections for result in results) > 40
    assert sum(result.compared for result in results) > 10_000


def test_a_cut_may_be_one_way() -> None:
    """The seeds above draw few cuts, and of these some; what they draw changes with the product."""
    shape = {"partition_interval_ms": 500, "one_way": 1.0, "nodes": 3}
    faults = simulate(0, duration_ms=2_000, shape=shape).faults
    assert faults["one-way partition"] > 0
    assert "partition" not in faults


def test_all_machines_may_lose_their_power_at_once() -> None:
    shape = {"all_power_interval_ms": 500, "nodes": 3}
    assert simulate(0, duration_ms=2_000, shape=shape).faults["power loss of all"] > 0


def test_programs_use_transactions_while_brokers_die() -> None:
    """Most seeds have none of them, and their faults are too many for short runs."""
    events = simulate(1, duration_ms=3_000, shape=KILLS_OF_TRANSACTIONS).events
    assert events["transactions found whole"] > 10, events
    rests = "a transactional program rests before its commit"
    happened = ("transaction aborted", "a transaction was left open", "CountStagedRequest", rests)
    assert all(events[what] for what in happened), events


def test_every_bug_of_replication_can_be_planted() -> None:
    """A change of a line that a bug changes has to change the bug too."""
    problems = []
    for bug in BUGS:
        try:
            for change in bug.changes:
                change.code()
        except NotThere as error:
            problems.append(f"{bug.name}: {error}")
    assert not problems, "\n".join(problems)


@pytest.mark.parametrize(
    "bug", [bug for bug in BUGS if bug.name not in UNPROVEN], ids=lambda bug: bug.name
)
def test_a_planted_bug_of_replication_is_caught(bug: Bug) -> None:
    """By a seed that sound nodes pass: its own in a short run, or one of some in longer ones."""
    caught = hunt(bug, seeds=(), duration_ms=_HUNT_MS, run=simulate)
    if caught.seed is None:
        caught = hunt(bug, seeds=range(_HUNT_SEEDS), duration_ms=_LONG_HUNT_MS, run=simulate)
    assert caught.seed is not None, caught.report


def test_a_seed_decides_the_whole_run_of_a_cluster() -> None:
    traces = [simulate(seed, duration_ms=2_000).trace for seed in (3, 3, 4)]
    assert traces[0] == traces[1] != traces[2]
