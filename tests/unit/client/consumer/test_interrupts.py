"""Ctrl-C at every place of a consumer's call where it may come: the same consumer goes on.

The broker is the real node behind real sockets, on a real disk, in the test's process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

import quiverlog
from quiverlog.client.consumer.consumer import Consumer
from quiverlog.client.rows.decoding import ConsumerBatch
from tests.support.interrupts import interrupted_at, places_of
from tests.support.local_reads import EXPECTED, filled_broker

WAIT_S = 20.0
CALLS_MAX = 1_000


def by_next(consumer: Consumer) -> ConsumerBatch | None:
    return next(consumer, None)


def by_poll(consumer: Consumer) -> ConsumerBatch | None:
    return consumer.poll(0.2)


Step = Callable[[Consumer], ConsumerBatch | None]


@pytest.fixture(scope="module")
def client() -> Iterator[quiverlog.Client]:
    with filled_broker() as broker, quiverlog.connect(broker.bootstrap) as client:
        yield client


def consumer_of(client: quiverlog.Client) -> Consumer:
    return client.consumer("t", start="earliest", follow=False, fetch_bytes=64 * 1024)


def read_all(client: quiverlog.Client, step: Step, nth: int) -> list[int]:
    """All rows, by a consumer that is interrupted at the n-th place of all its calls."""
    found: list[int] = []
    with consumer_of(client) as consumer:
        for _ in range(CALLS_MAX):
            try:
                batch, nth = interrupted_at(nth, lambda: step(consumer))
            except KeyboardInterrupt:
                nth = 0
                continue
            if batch is not None:
                found += batch.data["id"].to_pylist()
            elif consumer.positions == {0: 50_000, 1: 50_000}:
                break
    return sorted(found)


# A connection without a reference is closed by the collector.
@pytest.mark.filterwarnings(
    "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)
@pytest.mark.parametrize(
    ("step", "is_last"),
    [(by_next, False), pytest.param(by_poll, True, marks=pytest.mark.long)],
)
def test_no_row_is_lost_or_doubled(client: quiverlog.Client, step: Step, is_last: bool) -> None:
    """The first time that the calls come by a place, or the last one."""
    with consumer_of(client) as consumer:
        places = places_of(lambda: [step(consumer) for _ in range(7)])
    times = enumerate(places, 1) if is_last else reversed(list(enumerate(places, 1)))
    chosen = {place: nth for nth, place in times if "quiverlog" in place[0]}
    assert len(chosen) > 100
    for place, nth in chosen.items():
        assert read_all(client, step, nth) == EXPECTED, place
