"""Three brokers: throughput and one row to three copies, and how long no write is acknowledged.

Both sides acknowledge when the row is in the page caches of all in-sync copies, at least two:
`acks=all` with `min.insync.replicas=2`; durability `replicated`, whose `min` is 2. Both sides are
driven by their ordinary clients: throughput by Kafka's own `ProducerPerformance` (Java, records of
1,000 bytes, after a tenth of them to warm it up) and by quiverlog's Python producer with Arrow
batches; one row at a time by confluent-kafka and by quiverlog's Python producer.
"""

from __future__ import annotations

import itertools
import re
import statistics
import subprocess
import time
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from benchmarks.bench_cluster import BROKERS, cluster, until
from benchmarks.kafka.brokers import Cluster, java
from benchmarks.kafka.measure import OURS, Plan, Row, both_clusters, in_turns
from benchmarks.quiver import BrokerProcess, expect_rows
from benchmarks.rows import SCHEMA, make_batch
from quiverlog.client.client import Client
from quiverlog.client.producer.producer import SendFuture
from quiverlog.errors import QuiverlogError

MIN_IN_SYNC = "2"
RECORD_BYTES = 1_000
SENT_BYTES = 200 * 1024 * 1024
BATCH_ROWS = 65_536
SINGLES = 400
WARM_SINGLES = 50
KILLS = 4
PACE_SECONDS = 0.005
SECONDS_MAX = 120.0

__all__ = ["failover", "replicated"]


# --- throughput, one row --------------------------------------------------------------------------
def replicated(plan: Plan) -> list[Row]:
    """MB/s to three copies, and milliseconds of one row after the other."""
    size = plan.scaled(SENT_BYTES)
    singles = plan.scaled(SINGLES, at_least=100)
    tails: dict[str, list[float]] = {}

    def p50(name: str, send: Callable[[], None]) -> float:
        times = [_seconds(send) * 1e3 for _ in range(WARM_SINGLES + singles)][WARM_SINGLES:]
        tails.setdefault(name, []).append(statistics.quantiles(times, n=100)[98])
        return statistics.median(times)

    with cluster() as (brokers, client), both_clusters(BROKERS) as clusters:
        copies = Copies(brokers, client)
        print("  throughput", flush=True)
        kafka = {name: partial(copies.their_rate, one, size) for name, one in clusters.items()}
        rates = in_turns(plan.rounds, {OURS: partial(copies.our_rate, size), **kafka})
        print("  one row", flush=True)
        senders = {OURS: copies.our_sender()} | {
            name: copies.their_sender(one) for name, one in clusters.items()
        }
        times = in_turns(
            plan.rounds, {name: partial(p50, name, send) for name, send in senders.items()}
        )
        copies.close()
    last = {name: found[-plan.rounds :] for name, found in tails.items()}
    return [
        Row("to three copies, large batches", "MB/s", rates),
        Row("one row to three copies: p50", "ms", times, bigger_is_better=False),
        Row("one row to three copies: p99", "ms", last, bigger_is_better=False),
    ]


class Copies:
    """What is sent to three brokers of either side."""

    def __init__(self, brokers: dict[int, BrokerProcess], client: Client) -> None:
        self._brokers = brokers
        self._client = client
        self._names = (f"copies-{number}" for number in itertools.count())
        self._producer: Any = None

    def our_rate(self, size: int) -> float:
        name = self._our_topic()
        batch = make_batch(BATCH_ROWS)
        count = max(1, size // batch.nbytes)
        with self._client.producer(name) as producer:
            for _ in range(max(1, count // 10)):
                producer.send(batch)
            producer.flush()
            began = time.perf_counter()
            for _ in range(count):
                producer.send(batch)
            producer.flush()
            seconds = time.perf_counter() - began
        expect_rows(self._client, name, (count + max(1, count // 10)) * batch.num_rows)
        self._client.delete_topic(name)
        return float(count * batch.nbytes / seconds / 1e6)

    def their_rate(self, one: Cluster, size: int) -> float:
        name = next(self._names)
        one.create_topic(name, 1, min_insync_replicas=MIN_IN_SYNC)
        count = size // RECORD_BYTES
        warm = count // 10
        settings = {"acks": "all", **one.tuning.producer}
        done = subprocess.run(
            [
                *java("org.apache.kafka.tools.ProducerPerformance", heap="-Xmx1g"),
                *("--bootstrap-server", one.bootstrap, "--topic", name, "--throughput", "-1"),
                *("--num-records", str(count + warm), "--record-size", str(RECORD_BYTES)),
                *("--warmup-records", str(warm)),
                *("--command-property", *(f"{key}={value}" for key, value in settings.items())),
            ],
            capture_output=True,
            text=True,
            timeout=SECONDS_MAX,
        )
        found = re.findall(r"^(\d+) (?:steady state )?records sent.*?\(([\d.]+) MB/sec\)",
                           done.stdout, re.MULTILINE)  # fmt: skip
        if done.returncode or not found:
            raise RuntimeError(f"ProducerPerformance failed: {done.stdout}{done.stderr}"[-2_000:])
        assert one.rows(name) == count + warm
        one.delete_topic(name)
        return float(found[-1][1]) * 1024 * 1024 / 1e6  # its MB are 2**20 bytes

    def our_sender(self) -> Callable[[], None]:
        self._producer = self._client.producer(self._our_topic(), linger=0.0)
        row = make_batch(1)

        def send() -> None:
            self._producer.send(row)
            self._producer.flush()

        return send

    def their_sender(self, one: Cluster) -> Callable[[], None]:
        name = next(self._names)
        one.create_topic(name, 1, min_insync_replicas=MIN_IN_SYNC)
        producer = kafka_producer(one)

        def send() -> None:
            producer.produce(name, bytes(28))
            left = producer.flush(SECONDS_MAX)
            assert not left, "a row was not acknowledged"

        return send

    def close(self) -> None:
        self._producer.close()

    def _our_topic(self) -> str:
        name = next(self._names)
        create_ours(self._client, name)
        return name


def kafka_producer(one: Cluster) -> Any:
    """Sends at once, waits for all in-sync copies."""
    from confluent_kafka import Producer

    return Producer(
        {"bootstrap.servers": one.bootstrap, "acks": "all", "linger.ms": 0, "log_level": 0}
        | {"enable.idempotence": True, "delivery.timeout.ms": int(SECONDS_MAX * 1_000)}
    )


def create_ours(client: Client, name: str) -> None:
    """A topic with three copies, all in sync."""
    config = {"durability": "replicated"}
    client.create_topic(name, SCHEMA, replication_factor=BROKERS, config=config)
    until(lambda: in_sync(client, name), f"three copies of {name}", every_seconds=0.02)


def in_sync(client: Client, name: str) -> bool:
    try:
        one = client.metadata([name]).topics[name].partitions[0]
    except QuiverlogError:
        return False
    return len(one.in_sync_replicas) == BROKERS


def _seconds(action: Callable[[], None]) -> float:
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


# --- failover -------------------------------------------------------------------------------------
def failover(plan: Plan) -> list[Row]:
    """Seconds from the kill of a leader to the acknowledgement of the first row sent after it."""
    kills = plan.scaled(KILLS, at_least=1)
    figures: dict[str, list[float]] = {}
    with cluster() as (brokers, client), both_clusters(BROKERS) as clusters:
        for number in range(kills):
            sides: dict[str, Callable[[], float]] = {
                name: partial(kill_theirs, one, f"hot-{number}") for name, one in clusters.items()
            }
            for name, kill in ({OURS: partial(kill_ours, brokers, client, number)} | sides).items():
                figures.setdefault(name, []).append(kill())
                print(
                    f"  kill {number + 1} of {kills}, {name}: {figures[name][-1]:.2f} s", flush=True
                )
    what = "leader killed, until the next acknowledged row"
    return [Row(what, "s", figures, bigger_is_better=False)]


def kill_ours(brokers: dict[int, BrokerProcess], client: Client, number: int) -> float:
    """Kill the leader while rows are sent, and start it again."""
    name = f"hot-{number}"
    create_ours(client, name)
    leader = brokers[client.metadata([name]).topics[name].partitions[0].leader]
    row = make_batch(1)
    waiting: deque[tuple[float, SendFuture]] = deque()
    with client.producer(name, linger=0.0, delivery_timeout=SECONDS_MAX) as producer:

        def send() -> Iterable[float]:
            waiting.append((time.perf_counter(), producer.send(row)))
            while waiting and waiting[0][1].done():
                sent, future = waiting.popleft()
                if future.exception() is None:
                    yield sent

        seconds = _pause(send, leader.kill)
    leader.start()
    until(lambda: in_sync(client, name), "three copies again", every_seconds=0.05)
    return seconds


def kill_theirs(one: Cluster, name: str) -> float:
    """The same with Kafka."""
    one.create_topic(name, 1, min_insync_replicas=MIN_IN_SYNC)
    leader = one.brokers[one.leader(name)]
    producer = kafka_producer(one)
    acknowledged: list[float] = []

    def send() -> Iterable[float]:
        def delivered(error: object, _: object, sent: float = time.perf_counter()) -> None:
            if error is None:
                acknowledged.append(sent)

        producer.produce(name, bytes(28), on_delivery=delivered)
        producer.poll(0)
        found = list(acknowledged)
        acknowledged.clear()
        return found

    seconds = _pause(send, leader.kill)
    producer.flush(SECONDS_MAX)
    leader.launch()
    leader.wait_ready()
    one.wait(lambda: one.is_in_sync(name, 1), "three copies again")
    return seconds


def _pause(send: Callable[[], Iterable[float]], kill: Callable[[], None]) -> float:
    """Send a row every 5 ms and kill after a second; seconds until a row sent after it is safe.

    `send` returns when the rows were sent that have been acknowledged since its last call.
    """
    began = time.perf_counter()
    killed = None
    while time.perf_counter() - began < SECONDS_MAX:
        acknowledged = list(send())
        now = time.perf_counter()
        if killed is not None and any(sent > killed for sent in acknowledged):
            return now - killed
        if killed is None and now - began > 1.0:
            kill()
            killed = time.perf_counter()
        time.sleep(PACE_SECONDS)
    raise TimeoutError(f"no row was acknowledged within {SECONDS_MAX:.0f} s")
