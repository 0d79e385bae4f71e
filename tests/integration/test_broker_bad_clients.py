"""Bad bytes and bad manners against a real broker, while a good client goes on producing."""

from __future__ import annotations

import contextlib
import random
import socket
import struct
import threading
import time
from collections.abc import Iterator

import pytest

from quiverlog.errors import CorruptFrame, FrameTooLarge, error_class
from quiverlog.wire import messages as m
from quiverlog.wire.frames import decode_error, encode
from tests.support.broker import BrokerProcess
from tests.support.rawclient import RawClient, make_batch
from tests.support.until import slack, until

pytestmark = pytest.mark.process

HELLO = encode(m.HelloRequest(client_id="bad"), 1)


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerProcess]:
    config = {
        "connections.frame.timeout.ms": 400,
        "connections.idle.ms": 1_500,
        "connections.write.stall.ms": 700,
        "connections.write.buffer.bytes": 1 << 20,
    }
    with BrokerProcess(config=config) as process:
        yield process


class GoodClient:
    """Produces all the time in a thread; at the end every row must be there, once, in order."""

    def __init__(self, broker: BrokerProcess, name: str) -> None:
        self.client = RawClient(broker.address)
        self.topic_id = self.client.create_topic(name)
        self.worst_s = 0.0
        self.acknowledged = 0
        self.error: BaseException | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                started = time.monotonic()
                self.client.produce(self.topic_id, make_batch(self.acknowledged * 10))
                self.worst_s = max(self.worst_s, time.monotonic() - started)
                self.acknowledged += 1
        except BaseException as error:
            self.error = error

    def __enter__(self) -> GoodClient:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        with self.client:
            if self.error is not None:
                raise self.error
            ids = [i for stored in self.client.read_all(self.topic_id) for i in stored.ids]
            assert ids == list(range(self.acknowledged * 10))
            assert self.acknowledged > 0


@pytest.fixture
def good(broker: BrokerProcess, request: pytest.FixtureRequest) -> Iterator[GoodClient]:
    name = "".join(c if c.isalnum() else "-" for c in request.node.name)
    with GoodClient(broker, name) as client:
        yield client


def frame(header: bytes, body: bytes = b"", *, size: int | None = None) -> bytes:
    total = 4 + len(header) + len(body) if size is None else size
    return struct.pack("<II", total, len(header)) + header + body


WRONG = {
    "http": (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "CORRUPT_FRAME"),
    "tls": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(50), "CORRUPT_FRAME"),
    "zeros": (bytes(64), "CORRUPT_FRAME"),
    "oversized": (struct.pack("<II", 65 << 20, 100), "FRAME_TOO_LARGE"),
    "huge": (struct.pack("<II", 0xFFFFFFFF, 100), "FRAME_TOO_LARGE"),
    "header-longer-than-frame": (struct.pack("<II", 20, 4000) + bytes(20), "CORRUPT_FRAME"),
    "header-too-long": (struct.pack("<II", 6 << 20, 5 << 20), "CORRUPT_FRAME"),
    "no-msgpack": (frame(b"\xc1" * 12), "CORRUPT_FRAME"),
    "no-array": (frame(b"\x83\x01\x01\x02\x02\x03\x03"), "CORRUPT_FRAME"),
    "bomb": (frame(b"\x93\x01\x01\x02" + b"\x91" * 100_000), "CORRUPT_FRAME"),
    "unknown-api": (frame(bytes([0x93, 99, 1, 7])), "UNKNOWN_API"),
    "wrong-version": (frame(bytes([0x93, 2, 100, 7])), "UNSUPPORTED_VERSION"),
    "wrong-types": (frame(bytes([0x95, 2, 1, 7, 0xA1, 0x61, 0xA1, 0x62])), "CORRUPT_FRAME"),
    "no-hello": (encode(m.MetadataRequest(), 7), "NOT_NEGOTIATED"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_no_protocol_is_answered_with_a_typed_error_and_closed(
    broker: BrokerProcess, good: GoodClient, name: str
) -> None:
    data, error = WRONG[name]
    for hello in (False,) if name == "no-hello" else (False, True):
        with RawClient(broker.address, hello=False) as client:
            if hello:
                client.ask(m.HelloRequest())
            client.send_bytes(data)
            response = client.expect_refusal()
            assert error_class(response.error_code).code_name() == error
            assert response.error_message


def test_random_and_bit_flipped_frames(broker: BrokerProcess, good: GoodClient) -> None:
    """Whatever comes: an answer, an error or a closed connection, and never a broken broker."""
    rng = random.Random(20_261_121)
    topic_id = good.topic_id
    batch = make_batch(-1000)
    entry = m.ProducePartition(topic_id=b"?" * 16, partition=0, batch_bytes=len(batch))
    fetch = m.FetchPartition(topic_id=topic_id, partition=0, bytes_max=1 << 16)
    templates = [
        encode(m.ProduceRequest(partitions=[entry]), 2, len(batch)) + batch,
        encode(m.FetchRequest(bytes_max=1 << 20, partitions=[fetch]), 2),
        encode(m.MetadataRequest(topics=["a", "b"]), 2),
        encode(m.CreateTopicsRequest(topics=[m.NewTopic(name="x", schema=b"zzz")]), 2),
        encode(m.ListOffsetsRequest(partitions=[m.ListOffsetsPartition(topic_id=topic_id)]), 2),
        encode(m.AlterTopicRequest(name="nothing", partitions=3), 2),
        encode(m.DescribeRangesRequest(partitions=[m.RangePartition(topic_id=topic_id)]), 2),
    ]
    for number in range(150):
        data = bytearray(rng.choice(templates))
        if number % 5 == 0:
            data = bytearray(rng.randbytes(rng.randrange(1, 2_000)))
        elif number % 5 == 1:
            data = data[: rng.randrange(1, len(data))]
        else:
            for _ in range(rng.choice((1, 1, 2, 8))):
                data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        with (
            socket.create_connection(broker.address, timeout=10) as sock,
            contextlib.suppress(ConnectionError),
        ):
            sock.sendall(HELLO + bytes(data))
            sock.shutdown(socket.SHUT_WR)
            while sock.recv(65_536):
                pass
    assert "internal error" not in broker.log_text
    assert broker.running


def test_a_batch_for_our_topic_with_any_bit_flipped_is_refused(broker: BrokerProcess) -> None:
    rng = random.Random(7)
    with RawClient(broker.address) as client:
        topic_id = client.create_topic("flipped")
        batch = make_batch(0, 5)
        entry = m.ProducePartition(topic_id=topic_id, partition=0, batch_bytes=len(batch))
        for _ in range(300):
            data = bytearray(batch)
            # Offset and epoch in front are the leader's to write; all the rest counts.
            data[rng.randrange(12, len(data))] ^= 1 << rng.randrange(8)
            result = client.ask(m.ProduceRequest(partitions=[entry]), bytes(data)).partitions[0]
            assert result.error_code, "taken in with a flipped bit"
        assert client.list_offset(topic_id) == 0
        client.produce(topic_id, batch)
        assert client.list_offset(topic_id) == 5


def test_silent_and_dripping_clients_are_closed(broker: BrokerProcess, good: GoodClient) -> None:
    silent = RawClient(broker.address, hello=False)
    dripping = RawClient(broker.address)
    started = time.monotonic()
    closed_after = None
    data = encode(m.MetadataRequest(topics=["x" * 200]), 9)
    for byte in data:
        try:
            dripping.send_bytes(bytes([byte]))
        except ConnectionError:
            closed_after = time.monotonic() - started
            break
        time.sleep(0.02)
    assert closed_after is not None, "a drip of one byte each 20 ms was served"
    assert 0.3 < closed_after < 3 * slack()
    assert silent.next_frame() is None
    assert time.monotonic() - started < 5 * slack()
    silent.close()
    dripping.close()


def test_idle_clients_are_closed_but_not_waiting_ones(broker: BrokerProcess) -> None:
    with RawClient(broker.address) as idle, RawClient(broker.address) as waiting:
        topic_id = waiting.create_topic("idle")
        waiting.send(waiting.fetch_request(topic_id, 0, max_wait_ms=3_000))
        assert idle.next_frame() is None
        _, response, _ = waiting.receive()
        assert response.error_code == 0


def test_a_reader_that_takes_nothing_is_closed_and_bounded(
    broker: BrokerProcess, good: GoodClient
) -> None:
    with RawClient(broker.address) as writer:
        topic_id = writer.create_topic("slow")
        for number in range(8):
            writer.produce(topic_id, make_batch(number * 1000, 1000, text="x" * 1000))
    before = memory_bytes(broker.pid)
    with RawClient(broker.address, receive_bytes=4096) as slow:
        request = slow.fetch_request(topic_id, 0)
        with contextlib.suppress(ConnectionError, TimeoutError):
            slow.socket.settimeout(3)
            for _ in range(2_000):
                slow.send(request)
        time.sleep(0.3)
        assert memory_bytes(broker.pid) - before < 150 << 20
        until(lambda: "reason=write" in broker.log_text, "the slow reader is closed")


def test_half_closed_and_vanished_clients_leave_nothing(
    broker: BrokerProcess, good: GoodClient
) -> None:
    clients = []
    for _ in range(50):
        client = RawClient(broker.address)
        client.send(client.fetch_request(good.topic_id, 1 << 40, max_wait_ms=60_000))
        clients.append(client)
    for number, client in enumerate(clients):
        if number % 2:
            client.socket.shutdown(socket.SHUT_WR)
        else:  # a reset instead of a goodbye
            linger = struct.pack("ii", 1, 0)
            client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            client.close()
    for client in clients[1::2]:
        while client.next_frame() is not None:
            pass
        client.close()


def memory_bytes(pid: int) -> int:
    """Anonymous resident memory: what the process itself holds, not the pages of mapped logs."""
    with open(f"/proc/{pid}/status") as status:
        for line in status:
            if line.startswith("RssAnon:"):
                return int(line.split()[1]) * 1024
    raise AssertionError("no RssAnon")


@pytest.mark.parametrize("bad", [bytes(8), struct.pack("<II", 1 << 30, 10)], ids=["zeros", "large"])
def test_what_was_asked_before_bad_bytes_is_answered(broker: BrokerProcess, bad: bytes) -> None:
    """An acknowledgement that waits for the disk, a long poll, a decision: then the error."""
    with RawClient(broker.address) as client:
        name = f"before-{len(bad)}-{bad[3]}"
        topic_id = client.create_topic(name)
        batch = make_batch(0)
        entry = m.ProducePartition(topic_id=topic_id, partition=0, batch_bytes=len(batch))
        produce = m.ProduceRequest(partitions=[entry])
        poll = client.fetch_request(topic_id, 0, max_wait_ms=60_000, min_bytes=1 << 20)
        sent = [
            encode(produce, 51, len(batch)) + batch,
            encode(poll, 52),
            encode(m.DeleteTopicsRequest(names=[name]), 53),
            bad,
        ]
        client.send_bytes(b"".join(sent))
        answers = {}
        while (frame := client.next_frame()) is not None:
            answer = decode_error(frame.header)
            answers[answer.correlation_id] = answer.error_code
            last = answer
        assert answers.keys() == {51, 52, 53, 0}
        assert answers[51] == answers[53] == 0
        assert last.correlation_id == 0
        assert error_class(last.error_code) in (CorruptFrame, FrameTooLarge)
