"""Small produce requests: 1 KiB batches, pipelined, against a bare framed echo.

64 requests in flight on one connection, each sent by itself, as producers send them. The echo
answers each with as many bytes as the broker does, and looks at nothing. A second figure, for
information, sends 16 requests per system call, which hides the sender's cost and shows the bare
cost of a request in each server.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from functools import partial

from benchmarks.baselines.process import bare_server
from benchmarks.harness import Comparison, Settings, interleave
from benchmarks.load import Frame, Load
from benchmarks.quiver import (
    Topic,
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

REQUESTS = 20_000
DEPTH = 64
JOINED = 16
Drive = Callable[[Load, Sequence[Frame]], float]


def run(settings: Settings) -> list[Comparison]:
    requests = settings.scaled(REQUESTS)
    with running() as (broker, client):
        batch, rows = largest_batch(1024, schema_id=1)
        copies = numbered(batch, requests, producer_id=producer_id(client), rows=rows)
        names = (f"small-{number}" for number in itertools.count())
        with (
            temporary_topic(client, "sized", durability="memory") as sized,
            open_load(broker) as load,
        ):
            reply = load.exchange(produce_frame(sized, copies[0], 1))
            assert produced(reply).base_offset == 0

        def frames(topic: Topic) -> list[Frame]:
            return [
                [b"".join(produce_frame(topic, copy, number))]
                for number, copy in enumerate(copies, 1)
            ]

        def ours(drive: Drive) -> float:
            name = next(names)
            with temporary_topic(client, name, durability="memory") as topic:
                prepared = frames(topic)
                with open_load(broker) as load:
                    seconds = drive(load, prepared)
                expect_rows(client, name, rows * requests)
            return requests / seconds

        with bare_server("echo", len(reply)) as address:

            def baseline(drive: Drive) -> float:
                prepared = frames(sized)
                with Load(address) as load:
                    return requests / drive(load, prepared)

            single, many = (
                interleave(settings.rounds, partial(ours, d), partial(baseline, d))
                for d in (one_by_one, joined)
            )
    return [
        Comparison(
            "small produce requests, 1 KiB, pipelined",
            "requests/s",
            single.ours,
            single.baseline,
            budget=0.5,
            goal=0.7,
        ),
        Comparison(
            f"the same, {JOINED} requests per system call of the sender",
            "requests/s",
            many.ours,
            many.baseline,
            budget=None,
        ),
    ]


def one_by_one(load: Load, frames: Sequence[Frame]) -> float:
    return load.pipeline(frames, depth=DEPTH)


def joined(load: Load, frames: Sequence[Frame]) -> float:
    chunks = [frames[at : at + JOINED] for at in range(0, len(frames), JOINED)]
    bursts = [(b"".join(frame[0] for frame in chunk), len(chunk)) for chunk in chunks]
    return load.bursts(bursts, ahead=DEPTH * 2 // JOINED)
