"""Simulated quorums as a test: fixed and fresh seeds, planted bugs, and that none is a sham."""

from __future__ import annotations

import functools
import random
from collections import Counter
from types import SimpleNamespace as Namespace
from typing import cast

import pytest

from quiverlog.core.raft.messages import EntryKind
from tests.sim.bug import Bug
from tests.sim.bugs import hunt
from tests.sim.checker import Violation
from tests.sim.mutations import NotThere

from .checker import Checker
from .host import Host
from .planted import BUGS, UNPROVEN
from .run import RunResult, simulate
from .world import World

_SEEDS = 16
_CHUNK = 4
_FRESH_SEEDS = 4
_DURATION_MS = 4_000
_HUNT_SEEDS = 40
_MUST_HAPPEN = (
    "crash",
    "crash in a write",
    "election won",
    "message cut off",
    "message doubled",
    "message lost",
    "partition",
    "pause",
    "refused: CHANGE_PENDING",
    "refused: NOT_CAUGHT_UP",
    "slow write",
    "snapshot installed",
    "snapshot taken",
    "voters: add",
    "voters: move",
    "voters: remove",
    "voters: transfer",
    "wiped disk",
)


@functools.cache
def _run(seed: int) -> RunResult:
    return simulate(seed, duration_ms=_DURATION_MS)


@pytest.mark.parametrize("first", range(0, _SEEDS, _CHUNK))
def test_every_promise_is_kept(first: int) -> None:
    for seed in range(first, first + _CHUNK):
        _run(seed)


def test_every_promise_is_kept_with_fresh_seeds() -> None:
    """A failure names its seed and the command that shows it again."""
    for _ in range(_FRESH_SEEDS):
        simulate(random.randrange(10_000, 2**31), duration_ms=_DURATION_MS)


def test_a_leader_that_is_elected_late_need_not_have_what_a_newer_term_has_decided() -> None:
    """Seed 31335: one was paused, and found the votes of its term when the next one had begun."""
    checker = Checker(cast(World, Namespace()))
    checker.committed = {n: (term, (EntryKind.DATA, b"")) for n, term in ((1, 2), (2, 4), (3, 4))}
    checker.commits, checker.commit = {2: 1, 4: 3}, 3

    def elected(term: int, *terms: int) -> Host:
        log = Namespace(first_index=1, last_index=len(terms), term=dict(enumerate(terms, 1)).get)
        return cast(Host, Namespace(raft=Namespace(term=term, log=log)))

    checker._check_complete(elected(3, 2, 3))
    checker._check_complete(elected(5, 2, 4, 4, 5))
    for wrong in (elected(3), elected(3, 1), elected(5, 2, 4), elected(5, 2, 4, 3)):
        with pytest.raises(Violation):
            checker._check_complete(wrong)


def test_the_runs_are_not_vacuous() -> None:
    counts: Counter[str] = Counter()
    for seed in range(_SEEDS):
        counts.update(_run(seed).counts)
    assert sum(_run(seed).acknowledged for seed in range(_SEEDS)) > 100 * _SEEDS
    # Some kinds are rare: any change of the Raft shifts which runs have them.
    for seed in range(_SEEDS, 3 * _SEEDS):
        if all(counts[kind] for kind in _MUST_HAPPEN):
            break
        counts.update(_run(seed).counts)
    assert not [kind for kind in _MUST_HAPPEN if not counts[kind]]


def test_every_bug_can_be_planted() -> None:
    """A change of a line that a bug changes has to change the bug too."""
    problems = []
    for bug in BUGS:
        try:
            for change in bug.changes:
                change.code()
        except NotThere as error:
            problems.append(f"{bug.name}: {error}")
    assert not problems, "\n".join(problems)


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_planted_bug_is_caught(bug: Bug) -> None:
    """By a seed that the sound Raft passes (`hunt` looks)."""
    if bug.name in UNPROVEN:
        pytest.skip("no run has caught it yet: see planted.UNPROVEN")
    caught = hunt(bug, seeds=range(_HUNT_SEEDS), duration_ms=_DURATION_MS, run=simulate)
    assert caught.seed is not None, caught.report


def test_a_seed_decides_the_whole_run() -> None:
    """The same messages at the same moments."""
    again = simulate(3, duration_ms=_DURATION_MS)
    assert again.trace == _run(3).trace
    assert again.counts == _run(3).counts
    assert again.trace != _run(4).trace
