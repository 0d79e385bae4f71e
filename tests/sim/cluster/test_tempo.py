"""The time scales of a cluster's runs: what they change, and that it is put back."""

from __future__ import annotations

import ast
import inspect
import itertools
import random
from pathlib import Path

import pytest

import quiverlog
from quiverlog.core.partition.partition import PartitionState
from quiverlog.node.metadata import quorum
from quiverlog.node.replication import replica_fetcher
from quiverlog.node.runtime import peers
from quiverlog.storage.log import flushing
from tests.sim.scenario import Scenario
from tests.sim.world import World

from .run import simulate
from .tempo import SCALED, SHIPPED, Leisure, Tempo

_SLOW = Tempo(scale=30, quiet=4, hurry=10)


def _now() -> tuple[object, ...]:
    return (
        quorum.RaftConfig().election_timeout_us,
        replica_fetcher.REPLICA_FETCH_WAIT_MS,
        flushing.UNFLUSHED_MS_MAX,
        PartitionState.__init__.__kwdefaults__["lag_max_us"],
        peers.Peers.ask.__kwdefaults__["timeout_ms"],
    )


def test_timers_are_multiplied_for_the_length_of_a_run() -> None:
    before = _now()
    with _SLOW.timers():
        assert _now() == (22_500_000, 15_000, 3_000, 300_000_000, 300_000)
    assert _now() == before


def test_the_shipped_tempo_touches_nothing() -> None:
    before = quorum.RaftConfig
    with SHIPPED.timers():
        assert quorum.RaftConfig is before
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


@pytest.mark.long
def test_a_slow_cluster_keeps_every_promise() -> None:
    result = simulate(3, duration_ms=1_000, shape={"tempo": _SLOW})
    assert result.tempo is _SLOW
    assert result.simulated_s > _SLOW.stretch
    assert result.rows_acknowledged > 0


# --- no timer is forgotten ------------------------------------------------------------------------
_OTHERWISE = {
    "quiverlog.core.partition.partition": {"REPLICA_LAG_MS_MAX"},
    "quiverlog.core.raft.messages": {"RAFT_ELECTION_TIMEOUT_MS", "RAFT_HEARTBEAT_MS"},
    "quiverlog.node.runtime.config": {"BROKER_SESSION_MS_DEFAULT", "LEADER_BALANCE_PERIOD_MS"},
    "quiverlog.node.controller.controller_link": {"PEER_ANSWER_MS_DEFAULT"},
    "quiverlog.node.runtime.peers": {"PEER_ANSWER_MS_DEFAULT"},
}
"""Defaults of arguments and of configurations, which are multiplied as such."""


def _bound(tree: ast.Module) -> dict[str, set[str]]:
    """Names that a module imports or assigns, each with the names that it is made of."""
    found: dict[str, set[str]] = {}
    for node in tree.body:
        if isinstance(node, ast.ImportFrom):
            found |= {alias.name: {alias.name} for alias in node.names}
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value:
            found[node.target.id] = {node.target.id, *_names(node.value)}
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            found[node.targets[0].id] = {node.targets[0].id, *_names(node.value)}
    return found


def _names(tree: ast.AST) -> set[str]:
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}


def _asked(tree: ast.Module) -> set[str]:
    """Names that functions and classes read: not those that only other names are made of."""
    bodies = (one for one in tree.body if isinstance(one, ast.FunctionDef | ast.ClassDef))
    return set[str]().union(*map(_names, bodies))


def _unscaled(source: str, name: str, slow: set[str]) -> set[str]:
    """Which timers this module asks for as they are shipped, of those that are multiplied."""
    tree = ast.parse(source)
    scaled = {one for module, one in SCALED if module.__name__ == name}
    asked = _asked(tree) - scaled - _OTHERWISE.get(name, set())
    return {one for one, made_of in _bound(tree).items() if one in asked and made_of & slow}


def _slow() -> set[str]:
    """Limits, and names that others import, which are multiplied somewhere."""
    found = set[str]().union(*_OTHERWISE.values())
    for module, name in SCALED:
        found |= _bound(ast.parse(inspect.getsource(module))).get(name, set())
    return {one for one in found if one.endswith(_UNITS) and not one.startswith("_")}


_UNITS = ("_MS", "_US", "_S", "_MIN", "_MAX", "_DEFAULT")


def test_a_timer_is_multiplied_wherever_it_is_asked_for() -> None:
    """What is slow must not be judged by what is not: a rule that looks back for less than the
    time between two heartbeats finds everybody silent."""
    slow = _slow()
    assert {"LEADER_SILENCE_MS", "RAFT_HEARTBEAT_MS", "IN_SYNC_EVERY_S"} <= slow
    assert not {"int", "BROKER_HEARTBEATS_PER_SESSION"} & slow
    root = Path(quiverlog.__file__).parent
    parts = [*root.glob("core/**/*.py"), *root.glob("node/**/*.py"), *root.glob("client/**/*.py"),
             *root.glob("server/peers/*.py")]  # fmt: skip
    found = {}
    for path in parts:
        name = ".".join(("quiverlog", *path.relative_to(root).with_suffix("").parts))
        if names := _unscaled(path.read_text(), name, slow):
            found[name] = names
    assert not found


def test_a_copy_of_a_timer_is_found_and_one_made_of_it() -> None:
    copied = "from quiverlog.limits import RAFT_ELECTION_TIMEOUT_MS\ndef f(): return {}\n"
    slow = {"RAFT_ELECTION_TIMEOUT_MS"}
    asks = copied.format("RAFT_ELECTION_TIMEOUT_MS")
    assert _unscaled(asks, "x", slow) == {"RAFT_ELECTION_TIMEOUT_MS"}
    made = copied.format("_A_US") + "_A_US: int = RAFT_ELECTION_TIMEOUT_MS * 1000\n"
    assert _unscaled(made, "x", slow) == {"_A_US"}
    assert _unscaled(copied.format("1"), "x", slow) == set()
