"""The garbage collector's policy: full collections stay short, and garbage is collected still."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Iterator

import pytest

from quiverlog.server.process import collector as process_collector
from quiverlog.server.process.collector import Collector


class Node:
    """One half of a cycle."""

    def __init__(self) -> None:
        self.other: Node = self


class Traffic:
    count = 0

    def __call__(self) -> int:
        return self.count


@pytest.fixture
def traffic() -> Traffic:
    return Traffic()


@pytest.fixture
def collector(traffic: Traffic) -> Iterator[Collector]:
    loop = asyncio.new_event_loop()
    made = Collector(traffic)

    async def start() -> None:
        made.start()

    loop.run_until_complete(start())
    yield made
    made.stop()
    loop.close()


def cycle() -> weakref.ref[Node]:
    one, two = Node(), Node()
    one.other, two.other = two, one
    return weakref.ref(one)


def test_what_survived_a_full_collection_is_not_looked_at_again(collector: Collector) -> None:
    before = gc.get_freeze_count()
    kept = [[number] for number in range(50_000)]
    gc.collect()
    assert gc.get_freeze_count() >= before + len(kept)
    assert len(gc.get_objects()) < 5_000, "the next one has little to look at"


def test_a_full_collection_comes_before_there_is_much_to_look_at(collector: Collector) -> None:
    """By itself, without a call of `gc.collect`.

    Python leaves out full collections until a quarter of what survived the last one is new, and
    the first of them has survived everything that this process holds.
    """
    bound = 40_000 + gc.get_freeze_count() // 4
    kept = []
    most = 0
    for number in range(200_000):
        kept.append([number])
        if number % 1_000 == 0:
            most = max(most, len(gc.get_objects()))
    assert most < bound < len(kept)


def test_cycles_are_collected(collector: Collector) -> None:
    refs = [cycle() for _ in range(100_000)]
    del refs[:-1_000]
    gc.collect()
    # One that was just being made during a full collection is frozen with what lives.
    assert sum(ref() is not None for ref in refs) <= 5


def test_a_cycle_that_was_frozen_is_collected_when_the_frozen_have_doubled(
    collector: Collector, traffic: Traffic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_collector, "GROWTH_MIN", 1_000)
    one, two = Node(), Node()
    one.other, two.other = two, one
    gc.collect()
    seen = weakref.ref(one)
    del one, two
    gc.collect()
    collector.look()
    collector.look()
    assert seen() is not None, "frozen, and little has grown"
    kept = [[number] for number in range(gc.get_freeze_count() + 2_000)]
    gc.collect()
    traffic.count += 1
    collector.look()
    assert seen() is not None, "clients are busy"
    collector.look()
    assert seen() is None
    assert kept


def test_a_broker_that_is_never_idle_looks_at_everything_at_last(
    collector: Collector, traffic: Traffic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_collector, "GROWTH_MIN", 1_000)
    one = Node()
    gc.collect()
    seen = weakref.ref(one)
    del one
    kept = [[number] for number in range(gc.get_freeze_count() + 2_000)]
    gc.collect()
    for _ in range(process_collector.PATIENCE):
        assert seen() is not None
        traffic.count += 1
        collector.look()
    assert seen() is None
    assert kept


def test_a_start_is_not_disturbed_and_what_it_made_is_frozen_unseen(traffic: Traffic) -> None:
    seen: list[int] = []

    def watch(phase: str, info: dict[str, int]) -> None:
        seen.append(info["generation"])

    loop = asyncio.new_event_loop()
    made = Collector(traffic)
    gc.collect()
    gc.callbacks.append(watch)

    async def run() -> None:
        made.rest()
        kept = [[number] for number in range(200_000)]
        made.start()
        assert seen == []
        assert gc.get_freeze_count() >= len(kept)

    try:
        loop.run_until_complete(run())
    finally:
        gc.callbacks.remove(watch)
        made.stop()
        loop.close()


def test_what_a_start_made_is_counted_when_it_matters(
    traffic: Traffic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Walking all of it takes as long as opening hundreds of logs; the number may not be needed."""
    counted: list[int] = []
    count = gc.get_freeze_count

    def counting() -> int:
        counted.append(count())
        return counted[-1]

    def walk(*_: object, generation: int | None = None) -> list[object]:
        assert generation is not None, "all objects are walked"
        return real_objects(generation=generation)

    real_objects = gc.get_objects
    monkeypatch.setattr(gc, "get_objects", walk)
    monkeypatch.setattr(gc, "get_freeze_count", counting)
    monkeypatch.setattr(process_collector, "GROWTH_MIN", 1_000)
    loop = asyncio.new_event_loop()
    made = Collector(traffic)
    kept: list[list[int]] = []

    async def run() -> None:
        made.start()
        made.look()
        assert counted == []
        for _ in range(3):
            kept.extend([number] for number in range(2_000))
            gc.collect()
            made.look()
        assert len(counted) == 1, "once, and not before as many were frozen as are always allowed"
        assert len(kept) < counted[0] - 2_000 < count()

    try:
        loop.run_until_complete(run())
    finally:
        made.stop()
        loop.close()


def test_a_start_that_fails_leaves_the_collector_as_it_was(traffic: Traffic) -> None:
    before = gc.get_threshold()
    made = Collector(traffic)
    made.rest()
    assert gc.get_threshold() > before
    made.stop()
    made.stop()
    assert gc.get_threshold() == before


def test_stopping_leaves_the_collector_as_it_was() -> None:
    before = gc.get_threshold(), list(gc.callbacks)
    loop = asyncio.new_event_loop()
    made = Collector(lambda: 0)

    async def run() -> None:
        made.start()
        assert (gc.get_threshold(), list(gc.callbacks)) != before
        made.stop()
        made.stop()

    loop.run_until_complete(run())
    loop.close()
    assert (gc.get_threshold(), list(gc.callbacks)) == before
    assert gc.get_freeze_count() == 0
