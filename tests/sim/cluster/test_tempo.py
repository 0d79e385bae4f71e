"""The time scales of a cluster's runs: what they change, and that it is put back."""

from __future__ import annotations

import itertools
import random

from quiverlog.core.partition.partition import PartitionState
from quiverlog.node import quorum_duties, replica_requests
from quiverlog.storage import flushing
from tests.sim.scenario import Scenario
from tests.sim.world import World

from .run import simulate
from .tempo import SHIPPED, Leisure, Tempo

_SLOW = Tempo(scale=30, quiet=4, hurry=10)


def _now() -> tuple[object, ...]:
    return (
        quorum_duties.RaftConfig().election_timeout_us,
        replica_requests.REPLICA_FETCH_WAIT_MS,
        flushing.UNFLUSHED_MS_MAX,
        PartitionState.__init__.__kwdefaults__["lag_max_us"],
    )


def test_timers_are_multiplied_for_the_length_of_a_run() -> None:
    before = _now()
    with _SLOW.timers():
        assert _now() == (22_500_000, 15_000, 3_000, 300_000_000)
    assert _now() == before


def test_the_shipped_tempo_touches_nothing() -> None:
    before = quorum_duties.RaftConfig
    with SHIPPED.timers():
        assert quorum_duties.RaftConfig is before
    assert SHIPPED.is_shipped
    assert SHIPPED.stretch == 1


def test_half_of_all_seeds_have_the_shipped_tempo() -> None:
    drawn = [Tempo.draw(seed) for seed in range(400)]
    assert 160 < sum(tempo == SHIPPED for tempo in drawn) < 240
    assert {tempo.scale for tempo in drawn} == {1, 3, 10, 30}


def test_clients_rest_in_quiet_hours_and_go_on_when_the_world_is_calm() -> None:
    world = World(Scenario.draw(1))
    world.calm = False
    leisure = Leisure(world, Tempo(scale=3, quiet=20), random.Random(7))
    done: list[int] = []

    def work() -> None:
        done.append(world.mono_us)
        leisure.at(100_000, work)

    leisure.at(100_000, work)
    world.run(1_200_000_000)
    pauses = [after - before for before, after in itertools.pairwise(done)]
    assert min(pauses) == 300_000
    assert max(pauses) > 60_000_000
    while not leisure.is_quiet:
        world.run(1_000_000)
    count = len(done)
    world.calm = True
    leisure.wake()
    world.run(1_000_000)
    assert len(done) > count


def test_quiet_hours_are_not_without_load() -> None:
    world = World(Scenario.draw(1))
    leisure = Leisure(world, Tempo(scale=3, quiet=60, quiet_load=0.03), random.Random(7))
    done: list[bool] = []

    def work() -> None:
        done.append(leisure.is_quiet)
        leisure.at(100_000, work)

    leisure.at(100_000, work)
    world.run(3_600_000_000)
    in_quiet, at_work = sum(done), len(done) - sum(done)
    # An hour of quiet at 3 % of 12,000 actions, on average; and a minute of work.
    assert 200 < in_quiet < 600
    assert 100 < at_work < 1_000
    while not leisure.is_quiet:
        world.run(1_000_000)
    world.run(1_000_000)
    count = len(done)
    world.calm = True
    leisure.wake()
    world.run(1_000)
    assert len(done) == count + 1, "once, and not a second time when it would have been done"


def test_no_seed_has_hours_without_faults_and_load() -> None:
    for seed in range(400):
        tempo = Tempo.draw(seed)
        assert not tempo.quiet or (tempo.quiet_faults > 0 and tempo.quiet_load > 0)


def test_a_slow_cluster_keeps_every_promise() -> None:
    result = simulate(3, duration_ms=3_000, shape={"tempo": _SLOW})
    assert result.tempo is _SLOW
    assert result.simulated_s > 3 * _SLOW.stretch
    assert result.rows_acknowledged > 0
