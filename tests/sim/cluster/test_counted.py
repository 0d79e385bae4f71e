"""The rules of what the metadata record of replicas: what is right passes, nothing else does."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tests.sim.checker import Violation

from .aimed import AimPlan
from .counted import Counted
from .invariants import Invariants
from .run import simulate
from .shapes import FLUSHED, HANDED, JOINING, LEAN, NEWBORN, NO_CONTROLLER, STRANDED


def test_counted_replicas_have_all_that_readers_saw() -> None:
    Counted.check_rows("t-0 on a", "in sync", 9, 9)
    with pytest.raises(Violation, match="is eligible with rows up to 8, committed is 9"):
        Counted.check_rows("t-0 on a", "eligible", 8, 9)


def test_no_fenced_replica_is_in_sync() -> None:
    Counted.check_fenced("t-0", (0, 1), {2})
    with pytest.raises(Violation, match=r"fenced \[1\]"):
        Counted.check_fenced("t-0", (0, 1), {1})


def test_a_broker_that_is_fenced_alone_is_still_in_sync() -> None:
    """The entry names no partition: they are looked at all the same."""
    topic = SimpleNamespace(topic_id=b"t", name="t", partitions=[_partition()])
    image = SimpleNamespace(version=1, brokers=_brokers(fenced=()), topics={"t": topic})
    counted = Counted()
    counted.is_lossy = lambda key: True  # No rule about rows here.
    counted.look_at_image(image, 0, lambda key: 0)
    image.version, image.brokers = 2, _brokers(fenced=(2,))
    counted.look_at_image(image, 0, lambda key: 0)
    image.version, image.brokers = 3, _brokers(fenced=(1, 2))
    with pytest.raises(Violation, match=r"fenced \[1, 2\]"):
        counted.look_at_image(image, 0, lambda key: 0)


def _brokers(*, fenced: tuple[int, ...]) -> dict[int, SimpleNamespace]:
    return {
        n: SimpleNamespace(incarnation=bytes(16), fenced=n in fenced, in_shutdown=False)
        for n in range(3)
    }


def _partition() -> SimpleNamespace:
    return SimpleNamespace(
        partition=0,
        in_sync_replicas=(0, 1),
        eligible_leader_replicas=(),
        replicas=(0, 1),
        leader_id=0,
        leader_epoch=0,
    )


def test_no_replica_is_dropped_before_the_lag_time() -> None:
    Counted.check_patience("t-0", set(), 5, 10)
    Counted.check_patience("t-0", {1}, 10, 10)
    with pytest.raises(Violation, match="s after the election"):
        Counted.check_patience("t-0", {1}, 9, 10)


def test_the_list_of_epochs_agrees_with_the_batches() -> None:
    Invariants.check_epoch("a", 3, 3)
    Invariants.check_epoch("a", -1, 3)
    with pytest.raises(Violation, match="has epoch 2, it is 3"):
        Invariants.check_epoch("a", 2, 3)


@pytest.mark.parametrize(
    ("shape", "what"),
    [
        (STRANDED, "leader stranded"),
        (LEAN, "leader lean"),
        (HANDED, "handovers"),
        (FLUSHED, "power lost after a cut"),
        pytest.param(NEWBORN, "leader stranded", marks=pytest.mark.long),
        pytest.param(JOINING, "joiner lost", marks=pytest.mark.long),
        pytest.param(NO_CONTROLLER, "cut off from the controller", marks=pytest.mark.long),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_aimed_faults_strike_and_cost_nothing_that_was_promised(
    shape: dict[str, object], what: str
) -> None:
    assert shape["aims"] != AimPlan()
    seeds = range(3, 6)  # A short run need not give each aim its moment.
    assert any(simulate(seed, duration_ms=8_000, shape=shape).faults[what] for seed in seeds)
