"""What TLS costs: the same frames to the same broker, at a listener with TLS and at a plain one.

Batches of 1 MiB are written and read with 4 requests in flight, batches of 1 KiB written with 64;
then four threads make connections, each with a whole handshake and a HELLO. Last, the time of
METADATA by TLS in quiet, and while another process fetches 16 MiB at a time by TLS: what an answer
is encrypted in may hold up no other. TLS 1.3, P-256, no tickets. The clients share the machine, and
decrypt on it.
"""

from __future__ import annotations

import itertools
import re
import socket
import ssl
import statistics
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

from benchmarks.harness import Comparison, Rounds, Settings, interleave
from benchmarks.load import Frame, Load
from benchmarks.quiver import (
    Topic,
    expect_rows,
    fetch_frame,
    fetched,
    greeting,
    largest_batch,
    numbered,
    produce_frame,
    producer_id,
    running,
    temporary_topic,
)
from quiverlog.client.client import Client
from quiverlog.tls import client_context
from quiverlog.wire import frames
from quiverlog.wire import messages as m
from tests.support.ports import free_address
from tests.support.tls import write_files
from tests.support.until import until

MIB = 1024 * 1024
BATCHES = 128
DEPTH = 4
REQUESTS = 10_000
REQUESTS_DEPTH = 64
CONNECTIONS = 400
CONNECTING = 4
CONNECTIONS_PER_SECOND_MIN = 400
WRITE_MIN, READ_MIN, SMALL_MIN = 0.25, 0.15, 0.3
LARGE_BATCHES = 16
SAMPLES = 1_000
PAUSE_SECONDS = 0.001
P99_TIMES_MAX = 3


@dataclass(frozen=True)
class Listeners:
    client: Client
    plain: tuple[str, int]
    tls: tuple[str, int]
    context: ssl.SSLContext
    ca: str
    http: str

    def open(self, *, by_tls: bool) -> Load:
        address = self.tls if by_tls else self.plain
        return Load(address, greeting(), tls=self.context if by_tls else None)

    def compare(self, settings: Settings, measure: Callable[[bool], float]) -> Rounds:
        return interleave(settings.rounds, lambda: measure(True), lambda: measure(False))


def run(settings: Settings) -> list[Comparison]:
    with listeners() as made:
        written, read = large(made, settings)
        small_written = small(made, settings)
        connections = settings.scaled(CONNECTIONS)
        connected = [
            connections / connecting(made, connections) for _ in range(settings.rounds + 1)
        ][1:]
        beside, quiet = metadata(made, settings)
    return [
        Comparison("TLS: produce, 1 MiB", "MB/s", written.ours, written.baseline, budget=WRITE_MIN),
        Comparison("TLS: fetch, 1 MiB", "MB/s", read.ours, read.baseline, budget=READ_MIN),
        Comparison(
            "TLS: small produce requests, 1 KiB, pipelined",
            "requests/s",
            small_written.ours,
            small_written.baseline,
            budget=SMALL_MIN,
        ),
        Comparison(
            f"TLS: connections, {CONNECTING} at a time",
            "connections/s",
            connected,
            [CONNECTIONS_PER_SECOND_MIN],
            budget=1.0,
        ),
        Comparison(
            "TLS: METADATA beside fetches of 16 MiB, p99",
            "us",
            beside,
            quiet,
            budget=round(1 / P99_TIMES_MAX, 4),
            bigger_is_better=False,
        ),
    ]


@contextmanager
def listeners() -> Iterator[Listeners]:
    with tempfile.TemporaryDirectory() as folder:
        files = write_files(Path(folder), "broker")
        where = free_address("127.0.0.1:0")
        config = {"listeners.tls.bind": where} | files.settings("tls")
        with running(**config) as (broker, client):
            host, _, port = where.rpartition(":")
            context = client_context(files.ca, "", "")
            yield Listeners(
                client, broker.address, (host, int(port)), context, files.ca, broker.http
            )


def large(made: Listeners, settings: Settings) -> tuple[Rounds, Rounds]:
    batches = settings.scaled(BATCHES)
    names = (f"large-{number}" for number in itertools.count())
    batch, rows = largest_batch(MIB, schema_id=1)
    copies = numbered(batch, batches, producer_id=producer_id(made.client), rows=rows)
    moved = batches * len(batch) / 1e6

    def write(by_tls: bool) -> float:
        name = next(names)
        with temporary_topic(made.client, name, durability="memory") as topic:
            requests = [produce_frame(topic, copy, n) for n, copy in enumerate(copies)]
            with made.open(by_tls=by_tls) as load:
                seconds = load.pipeline(requests, depth=DEPTH)
            expect_rows(made.client, name, rows * batches)
        return moved / seconds

    written = made.compare(settings, write)
    with temporary_topic(made.client, "read", durability="memory") as topic:
        with made.open(by_tls=False) as load:
            load.pipeline([produce_frame(topic, c, n) for n, c in enumerate(copies)], depth=DEPTH)
        asked = [fetch_frame(topic, n * rows, len(batch), n) for n in range(batches)]

        def read(by_tls: bool) -> float:
            with made.open(by_tls=by_tls) as load:
                check(load, asked[0], copies[0])
                return moved / load.pipeline(asked, depth=DEPTH)

        return written, made.compare(settings, read)


def check(load: Load, request: Frame, copy: bytearray) -> None:
    _, body = fetched(load.exchange(request))
    if body[16:] != memoryview(copy)[16:]:  # the first 16 bytes are the leader's
        raise AssertionError("the broker sent other bytes than it was given")


def small(made: Listeners, settings: Settings) -> Rounds:
    requests = settings.scaled(REQUESTS)
    names = (f"small-{number}" for number in itertools.count())
    batch, rows = largest_batch(1024, schema_id=1)
    copies = numbered(batch, requests, producer_id=producer_id(made.client), rows=rows)

    def joined(topic: Topic) -> list[Frame]:
        return [[b"".join(produce_frame(topic, copy, n))] for n, copy in enumerate(copies)]

    def write(by_tls: bool) -> float:
        name = next(names)
        with temporary_topic(made.client, name, durability="memory") as topic:
            prepared = joined(topic)
            with made.open(by_tls=by_tls) as load:
                seconds = load.pipeline(prepared, depth=REQUESTS_DEPTH)
            expect_rows(made.client, name, rows * requests)
        return requests / seconds

    return made.compare(settings, write)


def connecting(made: Listeners, connections: int) -> float:
    """Return the seconds for that many connections, each greeted and closed."""
    hello = greeting()

    def connect(_number: int) -> None:
        with socket.create_connection(made.tls) as plain:
            # Else HELLO waits for an acknowledgement of the handshake's end: 40 ms.
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with made.context.wrap_socket(plain, server_hostname=made.tls[0]) as secured:
                secured.sendall(hello)
                assert secured.recv(MIB)

    # One client alone spends half of the time on its own side of the handshake.
    with ThreadPoolExecutor(CONNECTING) as threads:
        began = time.perf_counter()
        list(threads.map(connect, range(connections)))
        return time.perf_counter() - began


def metadata(made: Listeners, settings: Settings) -> tuple[list[float], list[float]]:
    """Return the p99 of each round beside fetches, and in quiet, in microseconds."""
    samples = settings.scaled(SAMPLES)
    batch, rows = largest_batch(MIB, schema_id=1)
    copies = numbered(batch, LARGE_BATCHES, producer_id=producer_id(made.client), rows=rows)
    with (
        temporary_topic(made.client, "beside", durability="memory") as topic,
        made.open(by_tls=True) as load,
    ):
        load.pipeline([produce_frame(topic, c, n) for n, c in enumerate(copies)], depth=DEPTH)
        frame = fetch_frame(topic, 0, LARGE_BATCHES * MIB, 1)

        def beside() -> float:
            fetching = get_context("spawn").Process(
                target=fetch_on, args=(made.tls, made.ca, frame), daemon=True
            )
            fetching.start()
            try:
                received = fetches(made)
                until(lambda: fetches(made) >= received + 2, "fetches are under way")
                return p99(load, samples)
            finally:
                fetching.terminate()
                fetching.join()

        measured = interleave(settings.rounds, beside, lambda: p99(load, samples))
    return measured.ours, measured.baseline


def fetches(made: Listeners) -> int:
    """Return the bytes sent to the other process, in answers of 16 MiB."""
    with urllib.request.urlopen(f"http://{made.http}/metrics") as answer:
        text = answer.read().decode()
    (sent,) = re.findall(r"^quiverlog_network_sent_bytes_total (\S+)$", text, re.MULTILINE)
    return int(float(sent)) // (LARGE_BATCHES * MIB)


def fetch_on(address: tuple[str, int], ca: str, frame: Frame) -> None:
    with Load(address, greeting(), tls=client_context(ca, "", "")) as load:
        while True:
            load.pipeline([frame], depth=1)


def p99(load: Load, samples: int) -> float:
    frame = [frames.encode(m.MetadataRequest(topics=[]), 1)]
    taken = []
    for _ in range(samples):
        began = time.perf_counter()
        load.exchange(frame)
        taken.append((time.perf_counter() - began) * 1e6)
        time.sleep(PAUSE_SECONDS)
    return statistics.quantiles(taken, n=100)[-1]
