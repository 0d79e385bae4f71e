"""Connections that break, stall or drip at every point of a conversation, against a real broker.

After each the broker serves others at once, and everything that it counts is back where it was: no
connection, waiter, job, byte or descriptor is left behind. Acknowledged rows are stored once.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest

from quiverlog.limits import MIB
from quiverlog.wire import messages as m
from quiverlog.wire.frames import encode
from tests.support.broker import BrokerProcess
from tests.support.ends import ENDS
from tests.support.metrics import metrics
from tests.support.places import directory_on_disk
from tests.support.rawclient import SCHEMA, RawClient, make_batch, serialize_schema

pytestmark = pytest.mark.process

QUIET_S: Final = 60.0
SERVED_S: Final = 20.0
"""No client hangs; how fast it is on a machine with other work is not judged."""
QUIET: Final = (
    "connections", "memory_bytes", "turns_waiting", "jobs_running", "parked_requests",
    "parked_entries", "internal_errors_total",
)  # fmt: skip
"""What is 0 while no client is connected."""
CONFIG: Final = {
    "connections.write.stall.ms": 1_000,
    "connections.write.buffer.bytes": 1 << 20,
    "topic.defaults.segment.bytes": 1 << 20,
}
HELLO: Final = encode(m.HelloRequest(client_id="breaks"), 1)
BIG: Final = "big"
"""A topic with more rows than kernels buffer."""
BIG_BATCHES, BIG_ROWS = 16, 500
MANY: Final = 1_000
"""Partitions, whose directories are made long after others were served."""


class Scene:
    """A broker, and what the conversations need."""

    def __init__(self, broker: BrokerProcess, wide_partitions: int = 2_000) -> None:
        self.broker = broker
        self.serial = 0
        with RawClient(broker.address) as client:
            self.big = client.create_topic(BIG)
            for number in range(BIG_BATCHES):
                batch = make_batch(number * BIG_ROWS, BIG_ROWS, text="x" * 1_000)
                client.produce(self.big, batch)
            client.create_topic("wide-" + "w" * 200, wide_partitions)
            self.own = client.create_topic("own")
        self.sockets = 0
        self.sockets = sockets(broker)

    def name(self) -> str:
        self.serial += 1
        return f"t{self.serial}"

    def serves(self) -> None:
        """Another client is served, at once and with the right answers."""
        started = time.monotonic()
        with RawClient(self.broker.address) as other:
            offset = other.list_offset(self.own)
            assert other.produce(self.own, make_batch(offset)).base_offset == offset
            ids = [i for stored in other.read_all(self.own) for i in stored.ids]
            assert ids == list(range(offset + 10))
        assert time.monotonic() - started < SERVED_S

    def is_quiet(self) -> None:
        """Everything is back where it was before the first conversation."""
        deadline = time.monotonic() + QUIET_S
        while True:
            found = metrics(self.broker)
            left = {name: found[name] for name in QUIET if found[name]}
            if not left and sockets(self.broker) <= self.sockets:
                return
            assert time.monotonic() < deadline, f"{left}, {sockets(self.broker)} sockets"
            time.sleep(0.02)

    def clear(self) -> None:
        """The topics of one conversation go."""
        with RawClient(self.broker.address) as client:
            topics = client.ask(m.MetadataRequest()).topics
            names = [topic.name for topic in topics if re.fullmatch(r"t\d+", topic.name)]
            if names:
                client.ask(m.DeleteTopicsRequest(names=names))


def sockets(broker: BrokerProcess) -> int:
    found = 0
    for entry in Path(f"/proc/{broker.pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            found += os.readlink(entry).startswith("socket:")
    return found


@pytest.fixture(scope="module")
def anywhere() -> Iterator[Scene]:
    # On a busy machine a client that reads again may have rested for more than a second.
    patient = {**CONFIG, "connections.write.stall.ms": 20_000}
    with BrokerProcess(config=patient) as broker:
        yield Scene(broker)
        end(broker)


@pytest.fixture(scope="module")
def on_disk() -> Iterator[Scene]:
    with directory_on_disk() as path, BrokerProcess(path, config=CONFIG) as broker:
        yield Scene(broker, wide_partitions=1)
        end(broker)


def end(broker: BrokerProcess) -> None:
    assert broker.stop() == 0
    assert not complaints(broker)
    assert len(broker.log_text.splitlines()) < 1_000


@pytest.fixture
def scene(request: pytest.FixtureRequest) -> Scene:
    """Rows in memory are never cold; all else is faster there."""
    is_cold = getattr(request.node, "callspec", None) and "cold_reads" in request.node.callspec.id
    found: Scene = request.getfixturevalue("on_disk" if is_cold else "anywhere")
    return found


@pytest.fixture(scope="module")
def stopped() -> Iterator[Scene]:
    with directory_on_disk() as path, BrokerProcess(path, config=CONFIG) as broker:
        yield Scene(broker)


def complaints(broker: BrokerProcess) -> list[str]:
    bad = ("level=error", "Traceback", "internal error")
    return [line for line in broker.log_text.splitlines() if any(word in line for word in bad)]


# --- what is under way ----------------------------------------------------------------------------
def _connected(scene: Scene, client: RawClient) -> None:
    pass


def _half_header(scene: Scene, client: RawClient) -> None:
    client.send_bytes(HELLO[:6])


def _greeting(scene: Scene, client: RawClient) -> None:
    client.send_bytes(HELLO)


def _half_body(scene: Scene, client: RawClient) -> None:
    batch = make_batch(0, 1_000, text="x" * 1_000)
    entry = m.ProducePartition(topic_id=scene.own, partition=0, batch_bytes=len(batch))
    data = HELLO + encode(m.ProduceRequest(partitions=[entry]), 2, len(batch)) + batch
    client.send_bytes(data[: len(data) // 2])


def _produces(scene: Scene, client: RawClient) -> None:
    client.ask(m.HelloRequest())
    topic_id = client.create_topic(scene.name())
    for number in range(300):
        client.send_produce(topic_id, make_batch(number * 10))


def _checked_produces(scene: Scene, client: RawClient) -> None:
    """Rows that a job looks at before they are stored."""
    client.ask(m.HelloRequest())
    topic_id = client.create_topic(scene.name())
    for number in range(5):
        client.send_produce(topic_id, make_batch(number * 4_000, 4_000, text="y" * 500))


def _long_polls(scene: Scene, client: RawClient) -> None:
    client.ask(m.HelloRequest())
    for _ in range(200):
        client.send(client.fetch_request(scene.own, 1 << 40, max_wait_ms=300_000))
        client.send(client.fetch_request(scene.big, 8_000, max_wait_ms=300_000, min_bytes=MIB))


def _as_many_long_polls_as_may_wait(scene: Scene, client: RawClient) -> None:
    """More than may be unanswered: the broker reads no further."""
    client.ask(m.HelloRequest())
    request = client.fetch_request(scene.big, 8_000, max_wait_ms=300_000, min_bytes=MIB)
    for _ in range(1_100):
        client.send(request)


def _cold_reads(scene: Scene, client: RawClient) -> None:
    for path in scene.broker.data_dir.glob("data/*/*.log"):
        with open(path, "rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    client.ask(m.HelloRequest())
    for number in range(BIG_BATCHES):
        client.send(client.fetch_request(scene.big, number * BIG_ROWS, max_wait_ms=1_000))


def _creation(scene: Scene, client: RawClient) -> None:
    client.ask(m.HelloRequest())
    topic = m.NewTopic(name=scene.name(), schema=serialize_schema(SCHEMA), partitions=MANY)
    client.send(m.CreateTopicsRequest(topics=[topic]))


def _deletion(scene: Scene, client: RawClient) -> None:
    client.ask(m.HelloRequest())
    name = scene.name()
    client.create_topic(name, MANY)
    client.send(m.DeleteTopicsRequest(names=[name]))


def _bad_bytes(scene: Scene, client: RawClient) -> None:
    """The error comes after the answers."""
    client.ask(m.HelloRequest())
    client.send(client.fetch_request(scene.big, 8_000, max_wait_ms=300_000, min_bytes=MIB))
    client.send_produce(scene.own, b"")
    client.send_bytes(bytes(64))


def _untaken(scene: Scene, client: RawClient, request: m.Request, count: int) -> None:
    """Ask until the broker reads no more, or so often."""
    client.ask(m.HelloRequest())
    client.socket.settimeout(0.3)
    with contextlib.suppress(TimeoutError):
        for _ in range(count):
            client.send(request)
    client.socket.settimeout(20)


def _untaken_rows(scene: Scene, client: RawClient) -> None:
    _untaken(scene, client, client.fetch_request(scene.big, 0), 20)  # 160 MB


def _untaken_metadata(scene: Scene, client: RawClient) -> None:
    _untaken(scene, client, m.MetadataRequest(), 500)


def _untaken_acknowledgements(scene: Scene, client: RawClient) -> None:
    client.ask(m.HelloRequest())
    topic_id = client.create_topic(scene.name(), durability="memory")
    batch = make_batch(0, 1)
    client.socket.settimeout(0.3)
    with contextlib.suppress(TimeoutError):
        for _ in range(20_000):
            client.send_produce(topic_id, batch)
    client.socket.settimeout(20)


Conversation = Callable[[Scene, RawClient], None]
UNDER_WAY: Final[dict[str, Conversation]] = {
    function.__name__.strip("_"): function
    for function in (
        _connected, _half_header, _greeting, _half_body, _produces, _checked_produces, _long_polls,
        _as_many_long_polls_as_may_wait, _cold_reads, _creation, _deletion, _bad_bytes,
        _untaken_rows, _untaken_metadata, _untaken_acknowledgements,
    )
}  # fmt: skip


@contextlib.contextmanager
def begun(scene: Scene, what: str) -> Iterator[RawClient]:
    small = 4_096 if what.startswith("untaken") else None
    with RawClient(scene.broker.address, hello=False, receive_bytes=small) as client:
        UNDER_WAY[what](scene, client)
        yield client


@pytest.mark.parametrize(
    ("what", "end"),
    [
        pytest.param(what, end, marks=[pytest.mark.long] * (i % len(ENDS) != j))
        for i, what in enumerate(UNDER_WAY)
        for j, end in enumerate(ENDS)
    ],
)
def test_a_connection_that_ends_leaves_nothing_behind(scene: Scene, what: str, end: str) -> None:
    with begun(scene, what) as client:
        scene.serves()
        ENDS[end](client.socket)
        scene.serves()
    scene.is_quiet()
    scene.clear()


@pytest.mark.parametrize("what", ["untaken_metadata", "untaken_acknowledgements"])
def test_a_client_that_reads_again_gets_each_answer_once(scene: Scene, what: str) -> None:
    with begun(scene, what) as client:
        asked = set(client._apis)
        got: list[int] = []
        while len(got) < len(asked) - 1:  # The last may have been sent in part.
            correlation_id, response, _ = client.receive()
            assert not response.error_code
            got.append(correlation_id)
        assert len(set(got)) == len(got) > 100
        assert set(got) <= asked
    scene.is_quiet()
    scene.clear()


def test_http_connections_that_end_leave_nothing(scene: Scene) -> None:
    host, _, port = scene.broker.http.rpartition(":")
    whole = b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"
    for end in ENDS.values():
        for sent in (b"", whole[:9], whole[:-2], whole, whole * 3, b"\0" * 100):
            sock = socket.create_connection((host, int(port)), timeout=20)
            with contextlib.suppress(OSError):
                sock.sendall(sent)
            end(sock)
    scene.is_quiet()


@pytest.mark.parametrize(
    "what",
    [
        "checked_produces",
        "long_polls",
        *(
            pytest.param(w, marks=pytest.mark.long)
            for w in ("half_body", "creation", "untaken_rows")
        ),
    ],
)
def test_a_stop_meanwhile_is_clean(stopped: Scene, what: str) -> None:
    with begun(stopped, what):
        assert stopped.broker.stop() == 0, stopped.broker.log_text
    stopped.broker.start()
    stopped.serves()
    assert not complaints(stopped.broker)
