"""What three copies cost: throughput, latency and catching up, on three brokers of one machine.

Each row has two opponents. *One `memory` broker* is a broker of its own that takes the same batches
in one copy. *Three bare hops* are a bare server that writes what comes to a file and sends it on to
two more, and answers when both have: what any copying must do, without checks of leadership, of the
in-sync set or of the bytes. Three brokers, their opponents and the load share the processors, so
that nothing here predicts what three machines would do.

Topics take their first batches before the clock starts. Latency is one row at a time.
"""

from __future__ import annotations

import itertools
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from typing import Final

from benchmarks.baselines.process import bare_server
from benchmarks.bench_cluster import BROKERS, cluster, is_open, topic_on, until
from benchmarks.harness import Comparison, Settings, interleave
from benchmarks.load import Frame, Load
from benchmarks.quiver import (
    BrokerProcess,
    Topic,
    expect_rows,
    fetch_frame,
    largest_batch,
    numbered,
    open_load,
    produce_frame,
    producer_id,
    running,
    temporary_topic,
)
from quiverlog.client.client import Client

BATCH_BYTES: Final = 64 * 1024
BATCHES: Final = 1_000
DEPTHS: Final = (4, 16)
"""Batches in flight; the budget is for the first."""
SINGLES: Final = 400
WARM_BATCHES: Final = 40
OF_MEMORY_MIN: Final = 0.25
CATCH_UP_BYTES: Final = 256 * 1024 * 1024
LARGE_BYTES: Final = 1024 * 1024
OF_FETCH_MIN: Final = 0.5

Side = Callable[[], float]


def run(settings: Settings) -> list[Comparison]:
    with cluster() as (brokers, client), running() as alone, _three_hops() as hops:
        bench = Bench(brokers, client, alone, hops, settings)
        return [
            *(row for depth in DEPTHS for row in bench.throughput(depth)),
            *bench.latency(),
            bench.catch_up(),
        ]


@contextmanager
def _three_hops() -> Iterator[Callable[[int], tuple[str, int]]]:
    """Makes the address of a bare server with two copies and replies of this size."""
    with ExitStack() as stack:
        directory = stack.enter_context(tempfile.TemporaryDirectory())

        def make(reply_bytes: int) -> tuple[str, int]:
            start = partial(_started, stack, directory, reply_bytes)
            ports = [start("receive")[1] for _ in range(BROKERS - 1)]
            return start("relay", *ports)

        yield make


def _started(
    stack: ExitStack, directory: str, reply_bytes: int, mode: str, *ports: int
) -> tuple[str, int]:
    return stack.enter_context(bare_server(mode, directory, reply_bytes, *ports))


class Bench:
    """The three kinds of brokers, and what is sent to them."""

    def __init__(
        self,
        brokers: dict[int, BrokerProcess],
        client: Client,
        alone: tuple[BrokerProcess, Client],
        hops: Callable[[int], tuple[str, int]],
        settings: Settings,
    ) -> None:
        self._brokers = brokers
        self._client = client
        self._alone = alone
        self._settings = settings
        self._names = itertools.count()
        self._hops_address: tuple[str, int] | None = None
        self._make_hops = hops

    # --- produce -------------------------------------------------------------------------------
    def throughput(self, depth: int) -> list[Comparison]:
        """MB/s of 64 KiB batches, with this many in flight."""
        count = self._settings.scaled(BATCHES)

        def send(load: Load, requests: list[Frame]) -> float:
            return len(requests) * BATCH_BYTES / load.pipeline(requests, depth=depth) / 1e6

        three, one, bare = self._in_turns(BATCH_BYTES, count, send)
        what = f"64 KiB batches to three copies, `replicated`, {depth} in flight"
        budget = OF_MEMORY_MIN if depth == DEPTHS[0] else None
        return [
            Comparison(f"{what}: beside one `memory` broker", "MB/s", three, one, budget),
            Comparison(f"{what}: beside three bare hops", "MB/s", three, bare, None),
        ]

    def latency(self) -> list[Comparison]:
        """Microseconds of one row after the other, acknowledged as `replicated`."""
        tails: list[list[float]] = []

        def one_by_one(load: Load, requests: list[Frame]) -> float:
            times = []
            for frame in requests:
                began = time.perf_counter()
                load.exchange(frame)
                times.append((time.perf_counter() - began) * 1e6)
            tails.append([statistics.quantiles(times, n=100)[98]])
            return statistics.median(times)

        three, one, bare = self._in_turns(1, self._settings.scaled(SINGLES), one_by_one)
        rounds = len(three)
        # The sides take turns, A B C then C B A, after the warm-up.
        p99 = [tails[3 * n + (0 if n % 2 == 0 else 2)][0] for n in range(1, rounds + 1)]
        what = "one row to three copies, `replicated`"
        rows = (("p50", three, one, "one `memory` broker"), ("p50", three, bare, "three bare hops"))
        return [
            *(
                Comparison(f"{what}, {part}: beside {name}", "us", ours, theirs, None, None, False)
                for part, ours, theirs, name in rows
            ),
            Comparison(f"{what}, p99: beside p50 of three bare hops", "us", p99, bare, None, None,
                       False),
        ]  # fmt: skip

    def _in_turns(
        self, size: int, count: int, send: Callable[[Load, list[Frame]], float]
    ) -> tuple[list[float], list[float], list[float]]:
        """Three copies, one `memory` broker and three bare hops, in turns within each round."""
        sides: list[tuple[Side, list[float]]] = [
            (lambda: self._replicated(size, count, send), []),
            (lambda: self._memory(size, count, send), []),
            (lambda: self._bare(size, count, send), []),
        ]
        for number in range(self._settings.rounds + 1):
            for measure, figures in sides if number % 2 == 0 else reversed(sides):
                figure = measure()
                if number:
                    figures.append(figure)
        three, one, bare = (figures for _, figures in sides)
        return three, one, bare

    def _replicated(
        self, size: int, count: int, send: Callable[[Load, list[Frame]], float]
    ) -> float:
        name = f"sent-{next(self._names)}"
        with topic_on(self._brokers, self._client, name, BROKERS) as (topic, leader, _):
            figure, rows = self._sent(self._client, leader, topic, size, count, send)
            expect_rows(self._client, name, rows)
        return figure

    def _memory(self, size: int, count: int, send: Callable[[Load, list[Frame]], float]) -> float:
        name = f"sent-{next(self._names)}"
        broker, client = self._alone
        with temporary_topic(client, name, durability="memory") as topic:
            figure, rows = self._sent(client, broker, topic, size, count, send)
            expect_rows(client, name, rows)
        return figure

    def _sent(
        self,
        client: Client,
        broker: BrokerProcess,
        topic: Topic,
        size: int,
        count: int,
        send: Callable[[Load, list[Frame]], float],
    ) -> tuple[float, int]:
        """The figure, and how many rows were sent."""
        batch, rows = largest_batch(size, schema_id=topic.schema_id)
        total = WARM_BATCHES + count
        batches = numbered(batch, total, producer_id=producer_id(client), rows=rows)
        requests = [produce_frame(topic, one, n) for n, one in enumerate(batches, 1)]
        with open_load(broker) as load:
            reply = load.exchange(requests[0])
            if self._hops_address is None:
                self._hops_address = self._make_hops(len(reply))
            load.pipeline(requests[1:WARM_BATCHES], depth=DEPTHS[0])
            return send(load, requests[WARM_BATCHES:]), rows * total

    def _bare(self, size: int, count: int, send: Callable[[Load, list[Frame]], float]) -> float:
        assert self._hops_address is not None, "a broker has answered before"
        topic = Topic("bare", bytes(16), 1, 0)
        batch, _ = largest_batch(size, schema_id=1)
        requests = [produce_frame(topic, batch, n) for n in range(WARM_BATCHES + count)]
        with Load(self._hops_address) as load:
            load.pipeline(requests[:WARM_BATCHES], depth=DEPTHS[0])
            return send(load, requests[WARM_BATCHES:])

    # --- catching up ---------------------------------------------------------------------------
    def catch_up(self) -> Comparison:
        """MB/s at which a partition moves to a broker without it, beside fetches of its rows."""
        count = self._settings.scaled(CATCH_UP_BYTES // LARGE_BYTES)
        with topic_on(self._brokers, self._client, "whole", 2) as (topic, leader, _):
            batch, rows = largest_batch(LARGE_BYTES, schema_id=topic.schema_id)
            batches = numbered(batch, count, producer_id=producer_id(self._client), rows=rows)
            with open_load(leader) as load:
                load.pipeline(
                    [produce_frame(topic, one, n) for n, one in enumerate(batches, 1)], depth=4
                )

            def filled() -> float:
                began = time.perf_counter()
                self._move()
                seconds = time.perf_counter() - began
                return count * len(batch) / seconds / 1e6

            def fetched() -> float:
                # Each move begins a leader epoch: under the one before nothing would be fetched.
                one = self._client.metadata(["whole"]).topics["whole"].partitions[0]
                now = replace(topic, leader_epoch=one.leader_epoch)
                asked = [fetch_frame(now, n * rows, len(batch), n) for n in range(count)]
                with open_load(leader) as load:
                    until(lambda: is_open(load, now), "the leader gives rows")
                    return count * len(batch) / load.pipeline(asked, depth=4) / 1e6

            measured = interleave(self._settings.rounds, filled, fetched)
        return Comparison(
            f"an empty replica of {count} MiB is filled and in sync, beside fetching them",
            "MB/s",
            measured.ours,
            measured.baseline,
            budget=OF_FETCH_MIN,
        )

    def _held(self) -> tuple[int, ...]:
        return tuple(self._client.metadata(["whole"]).topics["whole"].partitions[0].replicas)

    def _move(self) -> None:
        """The copy goes to the broker that has none; the leader stays."""
        (leader, copy), everybody = self._held(), set(self._brokers)
        target = (leader, *(everybody - {leader, copy}))
        self._client.reassign_partitions("whole", {0: target})
        until(lambda: self._is_held_by(target), f"{target} hold it", every_seconds=0.005)

    def _is_held_by(self, target: tuple[int, ...]) -> bool:
        one = self._client.metadata(["whole"]).topics["whole"].partitions[0]
        return set(one.in_sync_replicas) == set(target) == set(one.replicas)
