"""One partition that is written to, beside 2,000 that rest: what they cost its throughput.

The same requests, 1 KiB batches with 64 in flight, to two brokers in turns: one holds the other
partitions, too. The budget is the share of the throughput that has to be left.
"""

from __future__ import annotations

import itertools
from contextlib import ExitStack

from benchmarks.harness import Comparison, Settings, interleave
from benchmarks.quiver import (
    BrokerProcess,
    expect_rows,
    largest_batch,
    numbered,
    open_load,
    produce_frame,
    producer_id,
    running,
    temporary_topic,
)
from benchmarks.rows import SCHEMA
from quiverlog.client.client import Client

TOPICS = 4
PARTITIONS = 500
REQUESTS = 20_000
DEPTH = 64
LEFT_MIN = 0.9
"""2,000 idle partitions cost at most 10 %."""
ROUNDS_FACTOR = 4
"""A round is half a second, and rounds lie up to 50 % apart: the median of five is no figure for a
bound of 10 %."""


def run(settings: Settings) -> list[Comparison]:
    topics = settings.scaled(TOPICS)
    requests = settings.scaled(REQUESTS)
    names = itertools.count()
    with ExitStack() as stack:
        crowded, alone = (stack.enter_context(running()) for _ in range(2))
        for number in range(topics):
            name = f"idle-{number}"
            crowded[1].create_topic(name, SCHEMA, partitions=PARTITIONS)
            batch, _ = largest_batch(1024, crowded[1].metadata([name]).topics[name].schema_id)
            crowded[1].raw_produce(name, {p: [bytearray(batch)] for p in range(PARTITIONS)})

        def speed(side: tuple[BrokerProcess, Client]) -> float:
            broker, client = side
            name = f"hot-{next(names)}"
            with temporary_topic(client, name, durability="memory") as topic:
                batch, rows = largest_batch(1024, schema_id=topic.schema_id)
                copies = numbered(batch, requests, producer_id=producer_id(client), rows=rows)
                frames = [produce_frame(topic, copy, n) for n, copy in enumerate(copies, 1)]
                with open_load(broker) as load:
                    seconds = load.pipeline(frames, depth=DEPTH)
                expect_rows(client, name, rows * requests)
            return requests / seconds

        rounds = settings.rounds if settings.quick else settings.rounds * ROUNDS_FACTOR
        measured = interleave(rounds, lambda: speed(crowded), lambda: speed(alone))
    return [
        Comparison(
            f"small produce requests beside {topics * PARTITIONS:,} idle partitions",
            "requests/s",
            measured.ours,
            measured.baseline,
            budget=LEFT_MIN,
        )
    ]
