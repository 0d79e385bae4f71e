"""Ten thousand connections, five thousand partitions: bounded time, memory and idle work."""

from __future__ import annotations

import contextlib
import os
import resource
import selectors
import socket
import time
from collections.abc import Iterator

import pytest

from quiverlog.server.process.descriptors import OPERATORS_MAX
from quiverlog.wire import messages as m
from quiverlog.wire.frames import FrameReceiver, decode_error, encode
from tests.support.broker import BrokerProcess
from tests.support.rawclient import RawClient, make_batch
from tests.support.until import slack, until

pytestmark = pytest.mark.process

CONNECTIONS = 10_000
SOURCES = 4
"""Loopback addresses to connect from: one has fewer than 30,000 ports."""


@pytest.fixture
def many_files() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < CONNECTIONS + 500:
        pytest.skip(f"needs {CONNECTIONS + 500} open files, the hard limit is {hard}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (CONNECTIONS + 500, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def connect_many(address: tuple[str, int], sockets: list[socket.socket], count: int) -> None:
    for number in range(count):
        sock = socket.socket()
        sockets.append(sock)
        sock.bind((f"127.0.0.{1 + number % SOURCES}", 0))
        sock.connect(address)
        sock.sendall(encode(m.HelloRequest(client_id=f"c{number}"), 1))


def answers(sockets: list[socket.socket], timeout_s: float) -> int:
    """How many of them got a good answer to their HELLO."""
    good = 0
    deadline = time.monotonic() + timeout_s
    with selectors.DefaultSelector() as selector:
        for sock in sockets:
            selector.register(sock, selectors.EVENT_READ)
        while selector.get_map() and time.monotonic() < deadline:
            for key, _ in selector.select(1.0):
                sock = key.fileobj
                assert isinstance(sock, socket.socket)
                receiver = FrameReceiver(own_bodies=True)
                data = sock.recv(4096)
                receiver.get_buffer()[: len(data)] = data
                (frame,) = receiver.buffer_updated(len(data))
                good += decode_error(frame.header).error_code == 0
                selector.unregister(sock)
    return good


@pytest.mark.timeout(120)
@pytest.mark.parametrize("count", [2_000, pytest.param(CONNECTIONS, marks=pytest.mark.long)])
def test_thousands_of_connections(many_files: None, count: int) -> None:
    config = {"connections.max.per.address": count}
    with BrokerProcess(config=config) as broker, contextlib.ExitStack() as stack:
        good = stack.enter_context(RawClient(broker.address))
        topic_id = good.create_topic("t")
        before = memory_bytes(broker.pid)
        sockets: list[socket.socket] = []
        stack.callback(lambda: [sock.close() for sock in sockets])
        started = time.monotonic()
        connect_many(broker.address, sockets, count)
        assert answers(sockets, timeout_s=60) == count
        seconds = time.monotonic() - started
        each = (memory_bytes(broker.pid) - before) / count
        worst = 0.0
        for number in range(100):
            batch = make_batch(number * 10)  # the first loads pyarrow: not the broker's time
            begun = time.monotonic()
            good.produce(topic_id, batch)
            worst = max(worst, time.monotonic() - begun)
        cpu_share(broker.pid, 3.0)  # Each is looked at once, and what was made for it is collected.
        idle = cpu_share(broker.pid, 5.0)
        print(f"{count} connections in {seconds:.1f} s, {each / 1024:.1f} KiB each,", end="")
        print(f" idle CPU {idle:.1%}, worst produce beside them {worst * 1000:.1f} ms")
        assert each < 20 * 1024
        assert idle < 0.02
        assert worst < 2.0
        for sock in sockets:
            sock.close()
        sockets.clear()
        gone = f"quiverlog_connections {1.0}"
        until(lambda: gone in metrics(broker), "connections are forgotten")


def test_connections_beyond_the_limit(broker_of_five: BrokerProcess) -> None:
    # This machine has some more when clients have taken theirs.
    clients = [RawClient(broker_of_five.address) for _ in range(5 + OPERATORS_MAX)]
    for _ in range(20):
        with RawClient(broker_of_five.address, hello=False) as refused:
            refused.send(m.HelloRequest())
            response = refused.expect_refusal()
            assert "5 connections" in response.error_message
    clients.pop().close()
    until(lambda: is_served(broker_of_five), "the place of the one that has left")
    for client in clients:
        assert client.ask(m.MetadataRequest()).brokers
        client.close()


def is_served(broker: BrokerProcess) -> bool:
    with contextlib.suppress(Exception), RawClient(broker.address) as client:
        return bool(client.ask(m.MetadataRequest()).brokers)
    return False


@pytest.fixture
def broker_of_five() -> Iterator[BrokerProcess]:
    with BrokerProcess(config={"connections.max": 5}) as broker:
        yield broker


@pytest.mark.timeout(180)
def test_five_thousand_partitions() -> None:
    """The budget: start under 5 s, under 250 MB, under 2 % of a core while nothing happens."""
    with BrokerProcess() as broker:
        with RawClient(broker.address, timeout=120) as client:
            topic_ids = [client.create_topic(f"t{n}", partitions=500) for n in range(10)]
            for topic_id in topic_ids:
                for partition in range(0, 500, 50):
                    client.produce(topic_id, make_batch(0), partition)
        starts = []
        for kill in (False, True):
            broker.restart(kill=kill)
            starts.append(broker.start_seconds)
        memory = resident_bytes(broker.pid)
        idle = cpu_share(broker.pid, 12.0)  # a round of retention is in it
        print(f"starts {starts[0]:.2f} s clean, {starts[1]:.2f} s after a kill,", end=" ")
        print(f"{memory / 1e6:.0f} MB, idle CPU {idle:.2%}")
        with RawClient(broker.address) as client:
            assert len(client.ask(m.MetadataRequest()).topics) == 10
            assert sum(len(s.ids) for s in client.read_all(topic_ids[9], 450)) == 10
        assert max(starts) < 5 * slack()
        assert memory < 250e6
        assert idle < 0.02 * slack()


def metrics(broker: BrokerProcess) -> str:
    host, _, port = broker.http.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=10) as sock:
        sock.sendall(b"GET /metrics HTTP/1.0\r\nHost: x\r\n\r\n")
        data = b""
        while more := sock.recv(65_536):
            data += more
    return data.decode()


def memory_bytes(pid: int) -> int:
    return _status(pid, "RssAnon")


def resident_bytes(pid: int) -> int:
    return _status(pid, "VmRSS")


def _status(pid: int, name: str) -> int:
    with open(f"/proc/{pid}/status") as status:
        for line in status:
            if line.startswith(f"{name}:"):
                return int(line.split()[1]) * 1024
    raise AssertionError(name)


def cpu_share(pid: int, seconds: float) -> float:
    """The share of one core that a process takes over a while of doing nothing."""

    def ticks() -> int:
        with open(f"/proc/{pid}/stat") as stat:
            fields = stat.read().rpartition(")")[2].split()
        return int(fields[11]) + int(fields[12])

    before, started = ticks(), time.monotonic()
    time.sleep(seconds)  # this is the measurement
    return (ticks() - before) / os.sysconf("SC_CLK_TCK") / (time.monotonic() - started)
