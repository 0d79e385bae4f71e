"""5,000 partitions in one broker: time to start, idle CPU, memory.

Every partition holds a batch, so that each has its files to recover. The bounds are absolute; they
are in the baseline's place, and a budget of 1 means that the bound is kept. The start is timed from
the process's creation to its ready line, the interpreter's own start included.
"""

from __future__ import annotations

import time

import psutil

import quiverlog
from benchmarks.harness import Comparison, Settings
from benchmarks.quiver import BrokerProcess, largest_batch
from benchmarks.rows import SCHEMA

TOPICS = 10
PARTITIONS = 500
START_SECONDS_MAX = 5.0
IDLE_CPU_PERCENT_MAX = 2.0
MEMORY_MB_MAX = 250.0
SETTLE_SECONDS = 2.0
WATCH_SECONDS = 4.0
RESTARTS = 3
PATIENCE_SECONDS = 180.0  # a bound that is missed should be a figure, not a failure


def run(settings: Settings) -> list[Comparison]:
    starts: list[float] = []
    stops: list[float] = []
    crashes: list[float] = []
    idle: list[float] = []
    memory: list[float] = []
    topics = settings.scaled(TOPICS)
    with (
        BrokerProcess(start_timeout=PATIENCE_SECONDS) as broker,
        quiverlog.connect(broker.bootstrap, request_timeout=120.0) as client,
    ):
        for number in range(topics):
            name = f"many-{number}"
            client.create_topic(name, SCHEMA, partitions=PARTITIONS)
            batch, _ = largest_batch(1024, client.metadata([name]).topics[name].schema_id)
            client.raw_produce(name, {p: [bytearray(batch)] for p in range(PARTITIONS)})
        for _ in range(max(2, min(settings.rounds, RESTARTS))):
            began = time.monotonic()
            if broker.stop(PATIENCE_SECONDS) != 0:
                raise AssertionError(f"the broker did not stop cleanly:\n{broker.log_text}")
            stops.append(time.monotonic() - began)
            broker.start()
            starts.append(broker.start_seconds)
            process = psutil.Process(broker.pid)
            time.sleep(SETTLE_SECONDS)
            process.cpu_percent()
            time.sleep(WATCH_SECONDS)
            idle.append(process.cpu_percent())
            memory.append(process.memory_info().rss / 1e6)
        broker.kill()
        broker.start()
        crashes.append(broker.start_seconds)
        held = sum(detail.rows for detail in client.describe_topics().values())
        assert held >= topics * PARTITIONS, "rows were lost over the restarts"
        broker.stop(PATIENCE_SECONDS)
    what = f"{topics * PARTITIONS:,} partitions"
    return [
        _bounded(f"{what}: start", "s", starts, START_SECONDS_MAX),
        _bounded(f"{what}: idle CPU", "%", idle, IDLE_CPU_PERCENT_MAX),
        _bounded(f"{what}: memory", "MB", memory, MEMORY_MB_MAX),
        _shown(f"{what}: start after kill -9", crashes),
        _shown(f"{what}: clean stop, a batch in each since the start", stops[:1]),
        _shown(f"{what}: clean stop, nothing written", stops[1:]),
    ]


def _bounded(name: str, unit: str, figures: list[float], bound: float) -> Comparison:
    floor = bound / 100  # an idle CPU of 0 % must not divide
    return Comparison(
        name,
        unit,
        [max(figure, floor) for figure in figures],
        [bound],
        budget=1.0,
        bigger_is_better=False,
    )


def _shown(name: str, figures: list[float]) -> Comparison:
    """A time without a budget, beside the start's bound."""
    return Comparison(name, "s", figures, [START_SECONDS_MAX], budget=None, bigger_is_better=False)
