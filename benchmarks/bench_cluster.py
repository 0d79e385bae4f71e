"""Three local brokers: what 2,000 idle partitions cost, and reading from a follower.

2,000 partitions with three copies each hold a batch and then rest. What their first flushes cost,
which come in the background within half a minute, is for information; a partition rests when it has
nothing left to flush. From then on the processor time of each broker is counted over some seconds;
the bound is in the baseline's place. So is how often followers ask: their fetch sessions leave out
what has not moved, and wait for news.

Reading from a follower is for information: the same rows from the leader, on the same machine. What
replication costs is in `bench_replication`.
"""

from __future__ import annotations

import re
import secrets
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial

import psutil

import quiverlog
from benchmarks.harness import Comparison, Settings, interleave
from benchmarks.load import Load
from benchmarks.quiver import (
    BrokerProcess,
    Topic,
    fetch_frame,
    fetched,
    header_of,
    largest_batch,
    numbered,
    open_load,
    produce_frame,
    producer_id,
)
from benchmarks.rows import SCHEMA
from quiverlog.client.client import Client
from quiverlog.errors import QuiverlogError
from quiverlog.limits import UNFLUSHED_MS_MAX
from quiverlog.wire import frames
from quiverlog.wire import messages as m

BROKERS = 3
TOPICS = 4
PARTITIONS = 500
IDLE_CPU_PERCENT_MAX = 3.0
SETTLE_SECONDS = 5.0
FLUSH_SECONDS = UNFLUSHED_MS_MAX / 1000 + 5.0
WATCH_SECONDS = 10.0
BATCH_BYTES = 64 * 1024
BATCHES = 400
DEPTH = 4
PATIENCE_SECONDS = 60.0


def run(settings: Settings) -> list[Comparison]:
    with cluster() as (brokers, client):
        return [
            *_idle(brokers, client, settings),
            _read(brokers, client, settings),
        ]


@contextmanager
def cluster() -> Iterator[tuple[dict[int, BrokerProcess], Client]]:
    """Brokers by node id, and a client of all."""
    settings = {"cluster.id": secrets.token_hex(8)}
    with ExitStack() as stack:
        first = stack.enter_context(BrokerProcess(config={"node.id": 1, **settings}))
        settings["controller.quorum.bootstrap.servers"] = f"1@{first.bootstrap}"
        brokers = {1: first}
        for node_id in range(2, BROKERS + 1):
            config = {"node.id": node_id, **settings}
            brokers[node_id] = stack.enter_context(BrokerProcess(config=config))
        bootstrap = ",".join(one.bootstrap for one in brokers.values())
        client = stack.enter_context(quiverlog.connect(bootstrap, request_timeout=120.0))
        # With fewer voters the loss of one may stop the quorum, and that is not what is measured.
        until(lambda: len(client.describe_cluster().voters) == BROKERS, "all brokers are voters")
        yield brokers, client


def until(condition: Callable[[], bool], what: str, *, every_seconds: float = 0.1) -> None:
    """Wait for it, a bounded time."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {PATIENCE_SECONDS:.0f} s: {what}")
        time.sleep(every_seconds)


# --- idle -----------------------------------------------------------------------------------------
def _idle(
    brokers: dict[int, BrokerProcess], client: Client, settings: Settings
) -> list[Comparison]:
    topics = settings.scaled(TOPICS)
    for number in range(topics):
        name = f"idle-{number}"
        client.create_topic(name, SCHEMA, partitions=PARTITIONS, replication_factor=BROKERS)
        until(partial(_is_filled, client, name), "every partition has a batch")
    until(lambda: _in_sync(client), "every copy is in sync")
    time.sleep(SETTLE_SECONDS)
    flushing = _busiest_percent(brokers, FLUSH_SECONDS)
    time.sleep(SETTLE_SECONDS)
    busiest: list[float] = []
    asked: list[float] = []
    for _ in range(min(settings.rounds, 3)):
        asked_before = [_asked_by_followers(one) for one in brokers.values()]
        busiest.append(_busiest_percent(brokers, WATCH_SECONDS))
        more = [
            _asked_by_followers(one) - b
            for one, b in zip(brokers.values(), asked_before, strict=True)
        ]
        asked.append(sum(more) / WATCH_SECONDS)
    what = f"{topics * PARTITIONS:,} idle partitions with {BROKERS} copies"
    bound = IDLE_CPU_PERCENT_MAX
    return [
        Comparison(
            f"{what}: CPU of the busiest broker while their first batches are flushed",
            "%",
            [flushing],
            [bound],
            budget=None,
            bigger_is_better=False,
            note="not idle yet; mean of the half minute in which they are flushed",
        ),
        Comparison(
            f"{what}: CPU of the busiest broker",
            "%",
            [max(figure, bound / 100) for figure in busiest],
            [bound],
            budget=1.0,
            bigger_is_better=False,
        ),
        Comparison(
            f"{what}: fetches between brokers",
            "1/s",
            asked,
            [topics * PARTITIONS],
            budget=None,
            bigger_is_better=False,
            note="beside one for each partition and second",
        ),
    ]


def _busiest_percent(brokers: dict[int, BrokerProcess], seconds: float) -> float:
    """Share of a processor, over `seconds` from now on."""
    before = [_cpu_seconds(one) for one in brokers.values()]
    time.sleep(seconds)
    spent = [_cpu_seconds(one) - b for one, b in zip(brokers.values(), before, strict=True)]
    return 100 * max(spent) / seconds


def _is_filled(client: Client, name: str) -> bool:
    """Send a batch to each partition. False while a leader has not opened all of its own."""
    batch, _ = largest_batch(1024, client.metadata([name]).topics[name].schema_id)
    try:
        client.raw_produce(name, {p: [bytearray(batch)] for p in range(PARTITIONS)})
    except QuiverlogError as error:
        if not error.retriable:
            raise
        return False
    return True


def _in_sync(client: Client) -> bool:
    topics = client.metadata().topics.values()
    return all(len(p.in_sync_replicas) == BROKERS for t in topics for p in t.partitions)


def _cpu_seconds(broker: BrokerProcess) -> float:
    """The processor time of all threads, in nanoseconds where the kernel counts them."""
    total = 0
    for thread in psutil.Process(broker.pid).threads():
        with open(f"/proc/{broker.pid}/task/{thread.id}/schedstat") as found:
            total += int(found.read().split()[0])
    return total / 1e9


def _asked_by_followers(broker: BrokerProcess) -> float:
    with urllib.request.urlopen(f"http://{broker.http}/metrics", timeout=10) as found:
        text = found.read().decode()
    counted = re.search(
        r'^quiverlog_requests_total\{api="replica_fetch"\} (\S+)$', text, re.MULTILINE
    )
    return float(counted[1]) if counted else 0.0


# --- topics and reading ---------------------------------------------------------------------------
@contextmanager
def topic_on(
    brokers: dict[int, BrokerProcess], client: Client, name: str, copies: int
) -> Iterator[tuple[Topic, BrokerProcess, BrokerProcess]]:
    """A topic of one partition, its leader, and another broker: a follower, if there are copies."""
    durability = "memory" if copies == 1 else "replicated"
    client.create_topic(name, SCHEMA, replication_factor=copies, config={"durability": durability})
    info = client.metadata([name]).topics[name]
    one = info.partitions[0]
    others = [broker for node_id, broker in brokers.items() if node_id != one.leader]
    try:
        topic = Topic(name, info.topic_id, info.schema_id, one.leader_epoch)
        with open_load(brokers[one.leader]) as load:
            until(partial(is_open, load, topic), "the leader has opened it")
        yield topic, brokers[one.leader], others[0]
    finally:
        client.delete_topic(name)


def is_open(load: Load, topic: Topic) -> bool:
    answer = load.exchange(fetch_frame(topic, 0, BATCH_BYTES, 0))
    response = frames.decode_response(header_of(answer), m.Api.FETCH)
    assert isinstance(response, m.FetchResponse)
    return not response.partitions[0].error_code


def _read(brokers: dict[int, BrokerProcess], client: Client, settings: Settings) -> Comparison:
    count = settings.scaled(BATCHES)
    with topic_on(brokers, client, "read", BROKERS) as (topic, leader, follower):
        batch, rows = largest_batch(BATCH_BYTES, schema_id=topic.schema_id)
        batches = numbered(batch, count, producer_id=producer_id(client), rows=rows)
        with open_load(leader) as load:
            load.pipeline(
                [produce_frame(topic, one, n) for n, one in enumerate(batches, 1)], depth=DEPTH
            )
        asked = [
            fetch_frame(topic, n * rows, len(batch), n, from_follower=True) for n in range(count)
        ]
        with open_load(leader) as at_leader, open_load(follower) as at_follower:

            def is_there() -> bool:
                result, _ = fetched(at_follower.exchange(asked[-1]))
                return result.high_watermark == count * rows

            until(is_there, "the follower shows all rows")

            def speed(load: Load) -> float:
                return count * len(batch) / load.pipeline(asked, depth=DEPTH) / 1e6

            measured = interleave(
                settings.rounds, lambda: speed(at_follower), lambda: speed(at_leader)
            )
    return Comparison(
        "64 KiB batches read from a follower, beside the leader",
        "MB/s",
        measured.ours,
        measured.baseline,
        budget=None,
    )
