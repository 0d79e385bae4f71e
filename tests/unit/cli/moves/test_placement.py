"""The input of planners while others move the same partitions: not the brokers before and after."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from quiverlog.cli.console import waiting
from quiverlog.cli.moves import placement
from quiverlog.cli.moves import run as moves_run
from quiverlog.client.admin.replica_sizes import ReplicaSizes
from quiverlog.client.base.results import PartitionMove
from quiverlog.core.placement.moves import Move

MOVES = {"t": {0: PartitionMove((1, 2, 3), (1, 2), (3,), (2,))}}
BEFORE, MEANWHILE, AFTER = (1, 2), (1, 2, 3), (1, 3)


class Client:
    """Answers in their order, the last one again and again."""

    def __init__(self, moves: Sequence[Any], metadata: Sequence[tuple[int, Any]]) -> None:
        self.cluster = self
        self.moves, self.pictures = list(moves), list(metadata)

    def run(self, _operation: object) -> Any:
        return self.moves.pop(0) if len(self.moves) > 1 else self.moves[0]

    def describe_cluster(self) -> Any:
        return SimpleNamespace(brokers=[], metadata_version=7)

    def metadata(self) -> Any:
        version, replicas = self.pictures.pop(0) if len(self.pictures) > 1 else self.pictures[0]
        partition = SimpleNamespace(partition=0, replicas=replicas)
        topics = {"t": SimpleNamespace(partitions=[partition])}
        return SimpleNamespace(metadata_version=version, topics=topics)

    def describe_replicas(self) -> ReplicaSizes:
        return ReplicaSizes()


@pytest.mark.parametrize(
    ("moves", "metadata", "replicas", "coming"),
    [
        ([{}], [(7, BEFORE)], BEFORE, ()),
        ([MOVES], [(7, MEANWHILE)], AFTER, (3,)),
        # A move begins after those that move were asked for.
        ([{}, MOVES], [(8, MEANWHILE)], AFTER, (3,)),
        # A move ends: the moves are known, and the brokers that hold the partition then.
        ([MOVES, {}], [(8, AFTER)], AFTER, ()),
        # It has ended, and the broker that answers METADATA does not have that yet.
        ([{}], [(6, MEANWHILE), (7, AFTER)], AFTER, ()),
    ],
)
def test_replicas_are_those_of_one_moment(
    monkeypatch: pytest.MonkeyPatch,
    moves: list[Any],
    metadata: list[tuple[int, Any]],
    replicas: tuple[int, ...],
    coming: tuple[int, ...],
) -> None:
    monkeypatch.setattr(placement, "list_moves", lambda _cluster: None)
    monkeypatch.setattr(waiting.time, "sleep", lambda _seconds: None)
    found = placement.look(Client(moves, metadata))  # type: ignore[arg-type]
    (one,) = found.partitions
    assert (one.replicas, one.coming) == (replicas, coming)


@pytest.mark.parametrize(("after", "changes"), [((1, 3), False), ((1, 2, 3), True), ((1,), True)])
def test_a_plan_that_keeps_the_number_of_replicas_is_not_allowed_to_change_it(
    monkeypatch: pytest.MonkeyPatch, after: tuple[int, ...], changes: bool
) -> None:
    asked: list[bool] = []
    monkeypatch.setattr(
        moves_run,
        "reassign_partitions",
        lambda *_words, change_count, **_named: asked.append(change_count),
    )
    moves = [Move("t", 0, (1, 2), (2, 1)), Move("t", 1, (1, 2), after)]
    moves_run.start_plan(Client([None], []), moves, 0)  # type: ignore[arg-type]
    assert asked == [changes]
