"""One row after the other from topic through Spark to topic: how long each takes.

Rows are sent one by one at random moments, whether or not those before have arrived; the clock of a
row runs from before its send until a waiting consumer of the second topic has it. The first rows of
each turn, in which Spark starts what it needs, are left out. Owns how a turn is timed, and our side
of it; must not depend on what it is compared with.
"""

from __future__ import annotations

import random
import shutil
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.quiver import running, temporary_topic
from benchmarks.rows import make_batch

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery

PRIMING_ROWS_MAX = 60
WARMING_ROWS = 30
ARRIVAL_SECONDS_MAX = 60.0
ROWS_MAX = 500_000
"""Of all turns together, those that prime included."""

__all__ = ["WARMING_ROWS", "Side", "quiverlog_side", "turn"]


@dataclass
class Side:
    """One of the two systems: how a row is sent, what a poll has found, how the query starts."""

    name: str
    send: Callable[[int], None]
    poll: Callable[[], Sequence[int]]
    start: Callable[[str], StreamingQuery]
    latencies: list[list[float]] = field(default_factory=list)
    triggers: list[float] = field(default_factory=list)

    def at(self, share: int) -> list[float]:
        """Per turn, the latency that `share` percent of its rows kept, in milliseconds."""
        return [statistics.quantiles(found, n=100)[share - 1] for found in self.latencies]


def turn(side: Side, rows: int, rate: float, first: int, folder: Path | None = None) -> int:
    """Start the query, send rows numbered from `first`, wait for all of them, stop it.

    `rate`: rows per second, on average. `folder`: where the checkpoint is made. Returns the first
    number of the next turn.
    """
    checkpoint = tempfile.mkdtemp(prefix="quiverlog-bench-", dir=folder)
    query = side.start(checkpoint)
    sent: dict[int, float] = {}
    arrived: dict[int, float] = {}
    ended = threading.Event()

    def watch() -> None:
        while not ended.is_set():
            found = side.poll()
            now = time.perf_counter()
            for number in found:
                arrived.setdefault(number, now)

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        first = _prime(side, query, arrived, first)
        chance = random.Random(first)
        for number in range(first, first + rows):
            if number - first < WARMING_ROWS:
                _await(query, lambda: all(known in arrived for known in sent))
            time.sleep(chance.uniform(0.0, 2.0 / rate))
            sent[number] = time.perf_counter()
            side.send(number)
        _await(query, lambda: all(number in arrived for number in sent))
    finally:
        ended.set()
        watcher.join(10)
        progress = query.recentProgress
        query.stop()
        shutil.rmtree(checkpoint, ignore_errors=True)
    counted = range(first + WARMING_ROWS, first + rows)
    side.latencies.append([(arrived[n] - sent[n]) * 1e3 for n in counted])
    side.triggers += [
        float(p["durationMs"]["triggerExecution"]) for p in progress if p["numInputRows"]
    ][WARMING_ROWS:]
    return first + rows


def _prime(side: Side, query: StreamingQuery, arrived: dict[int, float], first: int) -> int:
    """Send until a row comes through: a query starts at its first look at the end of the topic.

    Returns the number of the next row.
    """
    for number in range(first, first + PRIMING_ROWS_MAX):
        side.send(number)
        began = time.monotonic()
        while time.monotonic() - began < 1.0 and not arrived:
            time.sleep(0.01)
        if arrived:
            return first + PRIMING_ROWS_MAX
        if not query.isActive:
            break
    raise RuntimeError(f"no row came through: {query.exception()}")


def _await(query: StreamingQuery, condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + ARRIVAL_SECONDS_MAX
    while not condition():
        if not query.isActive:
            raise RuntimeError(f"the query ended: {query.exception()}")
        if time.monotonic() > deadline:
            raise TimeoutError(f"rows did not arrive within {ARRIVAL_SECONDS_MAX:.0f} s")
        time.sleep(0.001)


@contextmanager
def quiverlog_side(spark: SparkSession) -> Iterator[Side]:
    """Our broker, topics and data source."""
    batch = make_batch(ROWS_MAX)
    with (
        running() as (broker, client),
        temporary_topic(client, "from", durability="memory"),
        temporary_topic(client, "to", durability="memory"),
        client.producer("from", linger=0.0) as producer,
        client.consumer("to", start="latest", follow=True) as consumer,
    ):
        address = {"bootstrap.servers": broker.bootstrap}

        def send(number: int) -> None:
            producer.send(batch.slice(number, 1))
            producer.flush()

        def poll() -> Sequence[int]:
            found = consumer.poll(0.2)
            return [] if found is None else found.data.column("id").to_pylist()

        def start(checkpoint: str) -> StreamingQuery:
            frame = spark.readStream.format("quiverlog").options(**address, subscribe="from").load()
            writer = frame.writeStream.format("quiverlog").options(**address, topic="to")
            writer = writer.option("deliveryMode", "at_least_once")  # as Kafka's sink
            return writer.option("checkpointLocation", checkpoint).start()

        yield Side("quiverlog", send, poll, start)
