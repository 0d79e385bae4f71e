"""The simulator as a test: a corpus of seeds, the planted bugs, and that neither is a sham."""

from __future__ import annotations

import functools
import os
import random
import subprocess
import sys
from collections import Counter
from itertools import chain

import pytest

from quiverlog.client.async_client import AsyncClient
from quiverlog.client.base.commands import Operation, Sleep
from quiverlog.errors import DiskFull, NotLeader, OffsetOutOfRange, StorageFault
from tests.support.once import once

from .bug import LOSSY_TOPIC, QUIET
from .bugs import hunt
from .mutations import NotThere
from .planted import BUGS, Bug
from .run import RunResult, simulate
from .scenario import Scenario
from .shipped import live_in
from .stats import MUST_HAPPEN

_SEEDS = 8
_CHUNK = 4
_SEEDS_MAX = 48
_FRESH_SEEDS = 1
_DURATION_MS = 4_000
_HUNT_SEEDS = 30
_HUNT_MS = 2_000
_FAULTS = (
    "bit flip in .log",
    "death between a job and its notice",
    "failed job",
    "full disk",
    "kill",
    "lost on the way to Host",
    "lost on the way to Producer",
    "power loss",
    "power loss inside a call",
    "power loss inside a job",
    "segment rolled",
    "slow job",
    "stop",
)
_HUNTED = (
    # durability
    "acknowledge before fsync",
    "failed fsync ignored",
    "trim that is not durable",
    "readers see rows that are not flushed",
    "rows of memory topics are never flushed",
    # recovery
    "a torn tail is kept",
    "cut at the first bad CRC below the flushed point",
    "files of a lost oldest segment are not missed",
    "offsets of a lost newest segment are given out again",
    "sequence state forgotten at restart",
    # topics
    "metadata acknowledged before its fsync",
    "directories of new topics are not flushed",
    "producer ids of an earlier life are given out again",
    # requests
    "off-by-one in a sliced fetch",
    "producer ids that were never given out are taken",
    "rows that no reader can decode pass the checks",
    "a long poll whose time is up is forgotten",
    "answers of one partition overtake each other",
    "bytes go and come back under a view",
    "retention takes a row younger than its bound",
    "files are removed on the loop",
)
"""One for each promise and check, the cheap ones; `make sim-bugs` hunts all."""
_HUNTED_LONG = (
    "a repetition is acknowledged before its flush",
    "an index entry inside damage is believed",
    "no new leader epoch after an unclean stop",
    "a reader of lost rows gets no error",
)
"""The others: seconds each."""
_BUGS = {bug.name: bug for bug in BUGS}
_REBUILT = (".index", ".snapshot", "leader-epochs", "recovery-point")


@functools.cache
def _run(seed: int) -> RunResult:
    return once((__name__, seed), lambda: simulate(seed, duration_ms=_DURATION_MS))


@pytest.mark.first
@pytest.mark.parametrize("first", range(0, _SEEDS, _CHUNK))
def test_every_promise_is_kept(first: int) -> None:
    for seed in range(first, first + _CHUNK):
        _run(seed)


def test_every_promise_is_kept_with_fresh_seeds() -> None:
    """A failure names its seed and the command that shows it again."""
    for _ in range(_FRESH_SEEDS):
        simulate(random.randrange(10_000, 2**31), duration_ms=_DURATION_MS)


def _kinds_flipped(faults: Counter[str]) -> int:
    return sum(faults[f"bit flip in {kind}"] > 0 for kind in _REBUILT)


@pytest.mark.first
def test_the_runs_are_not_vacuous() -> None:
    faults: Counter[str] = Counter()
    errors: Counter[int] = Counter()
    results = [_run(seed) for seed in range(_SEEDS)]
    for result in results:
        faults.update(result.faults)
        errors.update(result.errors)
    # Some are rare: any change of the broker shifts which runs have them.
    for seed in range(_SEEDS, _SEEDS_MAX):
        if _kinds_flipped(faults) >= 3 and all(faults[kind] for kind in _FAULTS):
            break
        faults.update(_run(seed).faults)
    assert not [kind for kind in _FAULTS if not faults[kind]]
    assert _kinds_flipped(faults) >= 3, faults
    assert {DiskFull.code, OffsetOutOfRange.code, StorageFault.code} <= errors.keys()
    assert sum(result.lives for result in results) > 3 * _SEEDS
    assert sum(result.power_losses for result in results) > _SEEDS
    assert sum(result.rows_acknowledged for result in results) > 500 * _SEEDS
    assert sum(result.rows_seen for result in results) > 500 * _SEEDS
    idle = [result.seed for result in results if not result.rows_acknowledged]
    assert len(idle) <= 2, f"nothing was written in {idle}"


_SHAPES: tuple[dict[str, object], ...] = (
    {
        "read_errors": 0.01,
        "write_errors": 0.01,
        "sync_errors": 0.002,
        "emfile_interval_ms": 500,
        "full_segments": 0.05,
    },
    {**QUIET, "topics": LOSSY_TOPIC, "followers": 2, "rows_max": 8},
)
"""What the drawn scenarios of so few seeds may leave out."""


@pytest.mark.first
def test_everything_that_is_simulated_happens() -> None:
    counts: Counter[str] = Counter()
    aimed = (
        simulate(seed, duration_ms=_DURATION_MS, shape=shape)
        for seed in range(8)
        for shape in _SHAPES
    )
    for result in chain((_run(seed) for seed in range(_SEEDS)), aimed):
        counts.update(result.faults)
        counts.update(result.events)
        if all(counts[kind] for kind in MUST_HAPPEN):
            return
    raise AssertionError([kind for kind in MUST_HAPPEN if not counts[kind]])


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


@pytest.mark.parametrize(
    "bug",
    [
        *(pytest.param(_BUGS[name], id=name) for name in _HUNTED),
        *(pytest.param(_BUGS[name], id=name, marks=pytest.mark.long) for name in _HUNTED_LONG),
    ],
)
def test_a_planted_bug_is_caught(bug: Bug) -> None:
    """By a seed that the healthy broker passes: its own in a short run, or one of some."""
    caught = hunt(bug, seeds=(), duration_ms=_HUNT_MS)
    if caught.seed is None:
        caught = hunt(bug, seeds=range(_HUNT_SEEDS), duration_ms=_DURATION_MS)
    if caught.report.startswith("cannot be planted"):
        pytest.skip(caught.report)
    assert caught.seed is not None


@pytest.mark.first
def test_a_seed_decides_the_whole_run() -> None:
    """The same frames at the same moments: again here, and where strings hash otherwise."""
    seed = 3
    scenario = Scenario.draw(seed, duration_ms=_DURATION_MS)
    assert min(scenario.client_producers, scenario.client_consumers) > 0, "the shipped clients too"
    code = (
        "from tests.sim.run import simulate;"
        f"print(simulate({seed}, duration_ms={_DURATION_MS}).trace)"
    )
    other = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONHASHSEED": other},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    again = simulate(seed, duration_ms=_DURATION_MS).trace
    assert _run(seed).trace == again == done.stdout.strip()
    assert _run(seed + 1).trace != again


def test_the_time_is_up_by_the_clock_of_the_world() -> None:
    """Seed 966688224: by the machine's, which had run for less long than the simulated cluster, no
    request was tried a second time, and a leader that had moved was never looked for."""
    client = AsyncClient("node-0:9292")
    live_in(client, lambda: 1e9, lambda: 0.5)
    tries = 0

    def attempt() -> Operation[int]:
        nonlocal tries
        yield from ()
        tries += 1
        if tries < 3:
            raise NotLeader("another broker leads.")
        return tries

    operation = client.cluster.retrying(attempt, timeout_s=60.0)
    commands = [next(operation), operation.send(None)]
    with pytest.raises(StopIteration) as ended:
        operation.send(None)
    assert all(isinstance(one, Sleep) for one in commands)
    assert ended.value.value == 3
