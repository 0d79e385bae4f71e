"""Produce: 1 MiB batches, one connection, no flush, against a bare receiver that writes the bytes.

Both servers get the same frames from the same load generator, one after the other with 4 in
flight. The bare one appends each body with one write and answers as many bytes as the broker
does; it checks nothing. The broker checks CRC, bounds and sequence, stamps, indexes and appends.
"""

from __future__ import annotations

import itertools
import tempfile

from benchmarks.baselines.process import bare_server
from benchmarks.harness import Comparison, Settings, interleave
from benchmarks.load import Load
from benchmarks.quiver import (
    expect_rows,
    largest_batch,
    numbered,
    open_load,
    produce_frame,
    produced,
    producer_id,
    running,
    temporary_topic,
)

MIB = 1024 * 1024
REQUESTS = 300
DEPTH = 4


def run(settings: Settings) -> list[Comparison]:
    requests = settings.scaled(REQUESTS)
    with running() as (broker, client), tempfile.TemporaryDirectory() as directory:
        batch, rows = largest_batch(MIB, schema_id=1)
        copies = numbered(batch, requests, producer_id=producer_id(client), rows=rows)
        rounds = itertools.count()
        with (
            temporary_topic(client, "sized", durability="memory") as topic,
            open_load(broker) as load,
        ):
            reply = load.exchange(produce_frame(topic, copies[0], 1))
            assert produced(reply).base_offset == 0

        def ours() -> float:
            name = f"produce-{next(rounds)}"
            with temporary_topic(client, name, durability="memory") as topic:
                frames = [produce_frame(topic, copy, n) for n, copy in enumerate(copies, 1)]
                with open_load(broker) as load:
                    seconds = load.pipeline(frames, depth=DEPTH)
                expect_rows(client, name, rows * requests)
            return requests * len(batch) / seconds / 1e6

        with bare_server("receive", directory, len(reply)) as address:

            def baseline() -> float:
                frames = [produce_frame(topic, copy, n) for n, copy in enumerate(copies, 1)]
                with Load(address) as load:
                    seconds = load.pipeline(frames, depth=DEPTH)
                return requests * len(batch) / seconds / 1e6

            measured = interleave(settings.rounds, ours, baseline)
    return [
        Comparison(
            "produce, 1 MiB batches, one connection, no flush",
            "MB/s",
            measured.ours,
            measured.baseline,
            budget=0.6,
            goal=0.85,
        )
    ]
