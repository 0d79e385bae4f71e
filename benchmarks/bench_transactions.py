"""Small transactions, and leaders that begin with what others have left, on one broker.

A small transaction has one row for each of two topics. 32 ids do one after the other each, until it
is published; then one id alone, until it is decided. Their bounds are in the baseline's place.

A new leader of a partition of `__staged`, or of `__transactions`, reads what lies there before it
serves: the broker is restarted, with the files out of memory, and the clock runs from its first
line on until it takes rows, or opens the last id. The bound is for 10 GiB, and is no budget for
less: `--staged-gib 10` stages so much.
"""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import quiverlog
from benchmarks.bench_cluster import until
from benchmarks.harness import Comparison, Settings
from benchmarks.quiver import (
    BrokerProcess,
    Topic,
    expect_rows,
    largest_batch,
    open_load,
    running,
    temporary_topic,
)
from benchmarks.rows import SCHEMA
from benchmarks.staging import Holder, decode, ids_of, open_frame, send
from quiverlog.client.client import Client
from quiverlog.core.controller.internal_topics import STAGED, TRANSACTIONS
from quiverlog.limits import GIB, KIB, MIB
from quiverlog.wire import messages as m
from quiverlog.wire.transaction_messages import OpenTransactionResponse

IDS: Final = 32
SECONDS: Final = 5
SMALL_MIN, SMALL_GOAL = 1_000, 2_000
ONE_ID_MIN, ONE_ID_GOAL = 100, 250
STAGED_SECONDS_MAX, STAGED_SECONDS_GOAL = 5, 2
STAGED_BOUND_BYTES: Final = 10 * GIB
STAGED_BATCHES: Final = (2 * MIB, 64 * KIB)
HOLDERS: Final = 2
"""One id has at most half of the batches of a partition."""
COORDINATED_IDS: Final = 100_000
COORDINATOR_SECONDS_MAX, COORDINATOR_SECONDS_GOAL = 2, 1
OPENS_AT_ONCE: Final = 500
RESTARTS: Final = 3


def run(settings: Settings) -> list[Comparison]:
    return [
        *_small(settings),
        *(_staging_leader(settings, batch_bytes) for batch_bytes in STAGED_BATCHES),
        _coordinator(settings),
    ]


# --- small transactions ---------------------------------------------------------------------------
def _small(settings: Settings) -> list[Comparison]:
    seconds = settings.scaled(SECONDS)
    with (
        running() as (broker, client),
        ExitStack() as stack,
        temporary_topic(client, "one") as one,
        temporary_topic(client, "two") as two,
    ):
        (node_id,) = client.metadata([]).brokers
        holders = [Holder({node_id: broker}, client, stack) for _ in range(IDS)]
        doers = [
            Small(holder, node_id, number, (one, two)) for number, holder in enumerate(holders)
        ]
        many = [_per_second(doers, seconds, wait=1) for _ in range(settings.rounds)]
        alone = [_per_second(doers[:1], seconds, wait=0) for _ in range(settings.rounds)]
        doers[0].one(wait=1)
        done = sum(doer.done for doer in doers)
        for topic in ("one", "two"):
            expect_rows(client, topic, done)
    return [
        Comparison(
            f"transactions of a row to each of two topics, {IDS} ids, published",
            "1/s",
            many,
            [SMALL_MIN],
            1.0,
            SMALL_GOAL / SMALL_MIN,
        ),
        Comparison(
            "the same of one id, one after the other, decided",
            "1/s",
            alone,
            [ONE_ID_MIN],
            1.0,
            ONE_ID_GOAL / ONE_ID_MIN,
        ),
    ]


class Small:
    """One id, and the row that it writes to each topic again and again."""

    def __init__(self, holder: Holder, node_id: int, number: int, topics: Iterable[Topic]) -> None:
        self._holder = holder
        self._staged = holder.staged_on(node_id, number)
        self._load = holder.load(node_id)
        self._rows = [
            (topic, bytes(largest_batch(1, schema_id=topic.schema_id)[0]), 1) for topic in topics
        ]
        self.done = 0

    def one(self, *, wait: int) -> None:
        self._holder.begin()
        first, _ = send(self._load, self._holder.frames(self._staged, self._rows))
        count = len(self._rows)
        self._holder.commit(self._staged[1], first, first + count, count, wait=wait)
        self.done += 1


def _per_second(doers: list[Small], seconds: float, *, wait: int) -> float:
    before = sum(doer.done for doer in doers)
    began = time.perf_counter()

    def work(doer: Small) -> None:
        while time.perf_counter() < began + seconds:
            doer.one(wait=wait)

    threads = [threading.Thread(target=work, args=(doer,)) for doer in doers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return (sum(doer.done for doer in doers) - before) / (time.perf_counter() - began)


# --- new leaders ----------------------------------------------------------------------------------
def _staging_leader(settings: Settings, batch_bytes: int) -> Comparison:
    """Seconds from the broker's first line until it takes rows to a partition that has many."""
    count = settings.staged_bytes // batch_bytes
    with BrokerProcess() as broker:
        with quiverlog.connect(broker.bootstrap) as client, ExitStack() as stack:
            (node_id,) = client.metadata([]).brokers
            topic = _topic(client)
            batch, rows = largest_batch(batch_bytes, schema_id=topic.schema_id)
            holders = [Holder({node_id: broker}, client, stack) for _ in range(HOLDERS)]
            staged = holders[0].staged_on(node_id)
            for holder in holders:
                holder.begin()
                left = count // HOLDERS
                while left:
                    some = min(left, 1_000)
                    requests = holder.frames(staged, [(topic, bytes(batch), rows)], some)
                    send(holder.load(node_id), requests)
                    left -= some
            (last,) = holders[0].frames(staged, [(topic, bytes(batch), rows)])

        def takes_rows() -> bool:
            with open_load(broker) as load:
                load.send(last)
                response = decode(load.receive(), m.ProduceResponse)
                assert response.partitions, response
                return not response.partitions[0].error_code

        seconds = _restarts(settings, broker, STAGED, takes_rows)
    is_whole = settings.staged_bytes >= STAGED_BOUND_BYTES
    return Comparison(
        f"new leader of {settings.staged_bytes / GIB:g} GiB staged in batches of"
        f" {batch_bytes // KIB:,} KiB",
        "s",
        seconds,
        [STAGED_SECONDS_MAX],
        1.0 if is_whole else None,
        STAGED_SECONDS_MAX / STAGED_SECONDS_GOAL,
        bigger_is_better=False,
    )


def _topic(client: Client) -> Topic:
    client.create_topic("target", SCHEMA)
    info = client.metadata(["target"]).topics["target"]
    return Topic("target", info.topic_id, info.schema_id, info.partitions[0].leader_epoch)


def _coordinator(settings: Settings) -> Comparison:
    """Seconds from the broker's first line until it opens the last of many ids."""
    count = settings.scaled(COORDINATED_IDS)
    ids = list(itertools.islice(ids_of(0), count))
    with BrokerProcess() as broker:
        with quiverlog.connect(broker.bootstrap) as client, ExitStack() as stack:
            (node_id,) = client.metadata([]).brokers
            load = Holder({node_id: broker}, client, stack, ids[0]).load(node_id)
            requests = [open_frame(one, 1_000 + number) for number, one in enumerate(ids)]
            load.pipeline(requests, depth=OPENS_AT_ONCE)

        def opens(name: str) -> OpenTransactionResponse:
            with open_load(broker) as load:
                return decode(load.exchange(open_frame(name, 1)), OpenTransactionResponse)

        epochs = {opens(one).epoch for one in (ids[1], ids[-1])}
        assert epochs == {1}, "each id was opened once"

        def is_back() -> bool:
            response = opens(ids[-1])
            assert response.error_code or response.epoch == 1, "its epoch is remembered"
            return not response.error_code

        seconds = _restarts(settings, broker, TRANSACTIONS, is_back)
    return Comparison(
        f"new coordinator of {count:,} ids",
        "s",
        seconds,
        [COORDINATOR_SECONDS_MAX],
        1.0,
        COORDINATOR_SECONDS_MAX / COORDINATOR_SECONDS_GOAL,
        bigger_is_better=False,
    )


def _restarts(
    settings: Settings, broker: BrokerProcess, topic: str, serves: Callable[[], bool]
) -> list[float]:
    seconds: list[float] = []
    for _ in range(min(settings.rounds, RESTARTS)):
        broker.stop()
        for path in Path(broker.data_dir).glob(f"**/{topic}-*/*"):
            _out_of_memory(path)
        broker.start()
        began = time.perf_counter()
        until(serves, f"{topic} is served", every_seconds=0.005)
        seconds.append(time.perf_counter() - began)
    return seconds


def _out_of_memory(path: Path) -> None:
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(file)
