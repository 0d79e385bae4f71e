"""Produce-to-consume latency of one row on an idle broker, in bare round trips.

A consumer's fetch waits at the broker; the clock runs from before the producer's send until the
consumer has the whole reply. A bare round trip is the same request echoed by a bare server, with
a reply as long as the consumer's. Both are spaced by a millisecond, as on an idle broker.

The budget is for durability `memory`. For `flushed` (the default), the bare server does what must
be done too: it writes the bytes and answers when fdatasync is through. That one is shown, and
promises nothing: the disk decides.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable

from benchmarks.baselines.process import bare_server
from benchmarks.harness import Comparison, Settings, interleave
from benchmarks.load import Frame, Load
from benchmarks.quiver import (
    BrokerProcess,
    Topic,
    fetch_frame,
    fetched,
    largest_batch,
    open_load,
    produce_frame,
    produced,
    running,
    temporary_topic,
)
from quiverlog.batch.header import peek

SAMPLES = 600
PAUSE_SECONDS = 0.001
FETCH_BYTES = 1024 * 1024
P50_ROUND_TRIPS_MAX = 3
P99_ROUND_TRIPS_MAX = 10


def run(settings: Settings) -> list[Comparison]:
    with running() as (broker, client), tempfile.TemporaryDirectory() as directory:
        with temporary_topic(client, "memory", durability="memory") as topic:
            p50, p99, echo = compare(settings, broker, topic, "echo")
        with temporary_topic(client, "flushed", durability="flushed") as topic:
            flushed_p50, _, flush = compare(settings, broker, topic, "flush", directory)
    return [
        Comparison(
            "produce to consume, one row, idle broker: p50 in bare round trips",
            "us",
            p50,
            echo,
            budget=round(1 / P50_ROUND_TRIPS_MAX, 4),
            bigger_is_better=False,
        ),
        Comparison(
            "produce to consume, one row, idle broker: p99 in bare round trips",
            "us",
            p99,
            echo,
            budget=round(1 / P99_ROUND_TRIPS_MAX, 4),
            bigger_is_better=False,
        ),
        Comparison(
            "the same, flushed, p50, against a bare round trip with fdatasync",
            "us",
            flushed_p50,
            flush,
            budget=None,
            bigger_is_better=False,
        ),
    ]


def compare(
    settings: Settings, broker: BrokerProcess, topic: Topic, mode: str, *options: str
) -> tuple[list[float], list[float], list[float]]:
    """Per round: our p50 and p99, and the median bare round trip, in microseconds."""
    samples = settings.scaled(SAMPLES, at_least=100)
    batch, rows = largest_batch(1, schema_id=topic.schema_id)
    assert rows == 1
    p99: list[float] = []
    with open_load(broker) as producer, open_load(broker) as consumer:
        passage = Passage(topic, bytes(batch), producer, consumer)
        passage.one()
        request = produce_frame(topic, batch, 1)
        with (
            bare_server(mode, *options, passage.reply_bytes) as address,
            Load(address) as bare,
        ):

            def ours() -> float:
                times = sample(passage.one, samples)
                p99.append(statistics.quantiles(times, n=100)[98])
                return statistics.median(times)

            def baseline() -> float:
                return statistics.median(sample(lambda: round_trip(bare, request), samples))

            measured = interleave(settings.rounds, ours, baseline)
    return measured.ours, p99[-settings.rounds :], measured.baseline


class Passage:
    """One row after the other from the producer to the consumer."""

    def __init__(self, topic: Topic, batch: bytes, producer: Load, consumer: Load) -> None:
        self._topic = topic
        self._batch = batch
        self._producer = producer
        self._consumer = consumer
        self._offset = 0
        self.reply_bytes = 0

    def one(self) -> float:
        """Microseconds from before the send until the consumer has the row."""
        produce = produce_frame(self._topic, self._batch, self._offset)
        self._consumer.send(
            fetch_frame(self._topic, self._offset, FETCH_BYTES, self._offset, max_wait_ms=10_000)
        )
        time.sleep(PAUSE_SECONDS)  # the fetch waits at the broker by now
        began = time.perf_counter()
        self._producer.send(produce)
        reply = self._consumer.receive()
        took = time.perf_counter() - began
        _, body = fetched(reply)
        assert peek(body)[0] == self._offset, "another row than the one just sent"
        assert produced(self._producer.receive()).base_offset == self._offset
        self.reply_bytes = len(reply)
        self._offset += 1
        return took * 1e6


def round_trip(bare: Load, request: Frame) -> float:
    time.sleep(PAUSE_SECONDS)
    began = time.perf_counter()
    bare.send(request)
    bare.receive()
    return (time.perf_counter() - began) * 1e6


def sample(once: Callable[[], float], count: int) -> list[float]:
    return [once() for _ in range(count)]
