"""One client at full speed, or one that holds memory, against all others, on a real broker."""

from __future__ import annotations

import contextlib
import json
import socket
import statistics
import struct
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator

import pytest

from quiverlog.errors import error_class
from quiverlog.wire import messages as m
from quiverlog.wire.frames import encode
from tests.integration.test_broker_bad_clients import memory_bytes
from tests.support.broker import BrokerProcess
from tests.support.rawclient import RawClient, make_batch
from tests.support.until import until

pytestmark = pytest.mark.process

FLOOD = """
import socket, sys, time
host, port, seconds, greeting = sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), sys.argv[4]
sock = socket.create_connection((host, port), timeout=30)
sock.sendall(bytes.fromhex(greeting))
sock.setblocking(False)
ids, sent, taken, rest = 1, 0, 0, b""
deadline = time.monotonic() + seconds
print("flooding", flush=True)
while time.monotonic() < deadline and sent < 500_000_000:
    if not rest:
        # METADATA of no topic at all, 17 bytes each: prefix, array, api, version, correlation id.
        frames = []
        for _ in range(4_000):
            ids = ids % 2_000_000_000 + 1
            header = bytes([0x94, 1, 1, 0xCE]) + ids.to_bytes(4, "big") + b"\\x90"
            frames.append(
                (4 + len(header)).to_bytes(4, "little") + len(header).to_bytes(4, "little") + header
            )
        rest = b"".join(frames)
    try:
        count = sock.send(rest)
        sent += count
        rest = rest[count:]
    except BlockingIOError:
        time.sleep(0.0005)
    try:
        while piece := sock.recv(1 << 20):
            taken += len(piece)
    except BlockingIOError:
        pass
print(sent, taken, flush=True)
"""
"""A flooding client of its own process, bounded in time and bytes; takes its answers."""


@contextlib.contextmanager
def flooding(broker: BrokerProcess, processes: int, seconds: float) -> Iterator[None]:
    host, port = broker.address
    greeting = encode(m.HelloRequest(client_id="flood"), 2_100_000_000).hex()
    floods = [
        subprocess.Popen(
            [sys.executable, "-c", FLOOD, host, str(port), str(seconds), greeting],
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(processes)
    ]
    try:
        for flood in floods:
            assert flood.stdout is not None
            assert flood.stdout.readline() == "flooding\n"
        yield
        for flood in floods:
            assert flood.stdout is not None
            sent, taken = map(int, flood.stdout.read().split())
            assert sent > 100_000, "that was no flood"
            assert taken > 10_000, "the flooding client was not served at all"
            assert flood.wait(20) == 0
    finally:
        for flood in floods:
            flood.kill()
            flood.wait()
            assert flood.stdout is not None
            flood.stdout.close()


def percentile(samples: list[float], percent: int) -> float:
    return statistics.quantiles(samples, n=100)[percent - 1]


FLOOD_S = 5.0
STALL_S = 2.5
"""A fifth of what was seen; other load on the machine does not reach it."""


class Timed:
    """How long actions took, and how much of it a broker computed."""

    def __init__(self, pid: int) -> None:
        self._clock = (~pid << 3) | 2  # Linux: the clock of all CPU time of a process.
        self.seconds: list[float] = []
        self.computed: list[float] = []

    def __call__(self, action: Callable[[], object]) -> None:
        began_s, computed_s = time.monotonic(), time.clock_gettime(self._clock)
        action()
        self.seconds.append(time.monotonic() - began_s)
        self.computed.append(time.clock_gettime(self._clock) - computed_s)


def test_a_client_with_tiny_requests_at_full_speed_holds_no_other_up() -> None:
    """Such a client once stalled another for 10.7 s, and `/healthz` for 21 s.

    What is in front of a request is work of the broker, which other load on the machine stretches:
    so it is counted in the broker's own CPU time, and only a long stall in seconds.
    """
    with BrokerProcess() as broker, RawClient(broker.address) as client:
        topic_id = client.create_topic("t", durability="memory")
        batch = make_batch(0)  # not timed: what the test itself imports for its first takes seconds
        produced, healths = Timed(broker.pid), Timed(broker.pid)

        def healthy() -> None:
            with urllib.request.urlopen(f"http://{broker.http}/healthz", timeout=30) as answer:
                assert json.loads(answer.read()) == {"status": "ok"}

        healthy()  # The first request of a process waits for what HTTP imports.
        with flooding(broker, 1, FLOOD_S):
            deadline = time.monotonic() + FLOOD_S - 1.0
            while time.monotonic() < deadline:
                produced(lambda: client.produce(topic_id, batch))
                healths(healthy)
        assert len(produced.seconds) > 20
        assert percentile(produced.computed, 50) < 0.05
        assert percentile(produced.computed, 99) < 0.25
        assert percentile(healths.computed, 99) < 0.25
        assert max(produced.seconds + healths.seconds) < STALL_S


def test_unfinished_requests_stay_within_the_budget() -> None:
    """40 of them once held 1.9 GiB."""
    budget = 192 << 20
    with BrokerProcess(config={"memory.buffer.bytes": budget}) as broker:
        with RawClient(broker.address) as good:
            topic_id = good.create_topic("t", durability="memory")
            before = memory_bytes(broker.pid)
            most = 0
            clients: list[socket.socket] = []
            closed = 0
            try:
                for _ in range(40):
                    sock = socket.create_connection(broker.address, timeout=10)
                    clients.append(sock)
                    with contextlib.suppress(OSError):
                        sock.sendall(struct.pack("<II", 48 << 20, 100))
                        for _ in range(46):
                            sock.sendall(bytes(1 << 20))
                    most = max(most, memory_bytes(broker.pid))
                    good.produce(topic_id, make_batch(0))
                for sock in clients:
                    sock.setblocking(False)
                    try:
                        closed += sock.recv(1) == b""
                    except BlockingIOError:
                        pass
                    except ConnectionError:
                        closed += 1
            finally:
                for sock in clients:
                    sock.close()
        # The pool keeps buffers for later frames: 64 MiB.
        assert most - before < budget + (64 << 20) + (40 << 20)
        assert closed >= 30
        assert "reason=memory" in broker.log_text


def test_announcing_large_requests_costs_nothing() -> None:
    with BrokerProcess() as broker:
        before = memory_bytes(broker.pid)
        with contextlib.ExitStack() as clients:
            for _ in range(200):
                sock = clients.enter_context(socket.create_connection(broker.address, timeout=10))
                sock.sendall(struct.pack("<II", 63 << 20, 100) + bytes(40_000))
            with RawClient(broker.address) as good:
                good.ask(m.MetadataRequest())
                assert memory_bytes(broker.pid) - before < 60 << 20


def test_replies_that_no_client_takes_stay_within_the_budget() -> None:
    """30 clients that asked for METADATA and did not read once cost 1.2 GiB."""
    budget = 128 << 20
    with BrokerProcess(config={"memory.buffer.bytes": budget}) as broker:
        with RawClient(broker.address, timeout=60) as good:
            for number in range(40):
                good.create_topic(f"topic-{number}", partitions=100)
            before = memory_bytes(broker.pid)
            request = b"".join(encode(m.MetadataRequest(), i) for i in range(2, 300))
            most = 0
            clients = []
            try:
                for _ in range(30):
                    client = RawClient(broker.address, receive_bytes=4_096)
                    clients.append(client)
                    client.send_bytes(request)
                    good.ask(m.HelloRequest(client_id="good"))
                    most = max(most, memory_bytes(broker.pid))
                deadline = time.monotonic() + 3.0
                while time.monotonic() < deadline:
                    good.ask(m.HelloRequest(client_id="good"))
                    most = max(most, memory_bytes(broker.pid))
                    time.sleep(0.02)
            finally:
                for client in clients:
                    client.close()
        assert most - before < budget + (64 << 20)


def test_a_flood_of_bad_bytes_leaves_few_lines() -> None:
    with BrokerProcess() as broker:

        def offend() -> None:
            with socket.create_connection(broker.address, timeout=10) as sock:
                sock.sendall(bytes(64))
                with contextlib.suppress(ConnectionError):
                    while sock.recv(4_096):
                        pass

        for _ in range(25):
            threads = [threading.Thread(target=offend) for _ in range(8)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        assert broker.log_text.count('event="protocol error"') <= 30
        with urllib.request.urlopen(f"http://{broker.http}/metrics", timeout=30) as answer:
            text = answer.read().decode()
        assert 'quiverlog_connections_closed_total{reason="protocol"} 200.0' in text.splitlines()
        until(
            lambda: "left out" in broker.log_text or "left_out" in broker.log_text,
            "the lines that were left out are counted",
        )


def test_a_flood_of_bad_http_leaves_few_lines() -> None:
    """Each refused request is a line of a kind that clients can cause."""
    with BrokerProcess() as broker:
        host, port = broker.http.rsplit(":", 1)
        for number in range(200):
            with socket.create_connection((host, int(port)), timeout=10) as sock:
                sock.sendall(b"BREW /%d HTTP/9.9\r\n\r\n" % number)
                with contextlib.suppress(ConnectionError):
                    while sock.recv(4_096):
                        pass
        lines = broker.log_text.splitlines()
        assert 1 <= sum("http" in line and "event=" in line for line in lines) <= 40
        with urllib.request.urlopen(f"http://{broker.http}/metrics", timeout=30) as answer:
            counted = answer.read().decode()
        refused = next(x for x in counted.splitlines() if x.startswith("quiverlog_http_refused_t"))
        assert float(refused.split()[1]) >= 200


def test_refusals_name_no_path_of_this_machine() -> None:
    with BrokerProcess() as broker, RawClient(broker.address) as client:
        topic_id = client.create_topic("t", durability="memory")
        client.produce(topic_id, make_batch(0))
        log = next(broker.data_dir.rglob("*.log"))
        data = bytearray(log.read_bytes())
        data[-20] ^= 0xFF
        with open(log, "r+b") as file:
            file.seek(len(data) - 20)
            file.write(data[-20:-19])
        entry = m.RangePartition(topic_id=topic_id, partition=0, start_offset=0, end_offset=10)
        responses = [
            client.ask(client.fetch_request(topic_id, 0)),
            client.ask(m.DescribeRangesRequest(partitions=[entry])),
        ]
        for response in responses:
            for part in response.partitions:
                if part.error_code:
                    assert error_class(part.error_code)
                    assert str(broker.data_dir) not in part.error_message
