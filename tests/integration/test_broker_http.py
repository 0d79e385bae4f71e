"""The HTTP port of a real broker under clients that mean harm."""

from __future__ import annotations

import contextlib
import random
import re
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.broker import COMMAND, BrokerProcess
from tests.support.rawclient import RawClient, make_batch
from tests.support.tls import write_files
from tests.support.until import slack, until

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerProcess]:
    config = {"http.connections.max": 20, "http.timeout.ms": 1_000}
    with BrokerProcess(config=config) as process:
        yield process


def http_address(broker: BrokerProcess) -> tuple[str, int]:
    host, _, port = broker.http.rpartition(":")
    return host, int(port)


def talk(broker: BrokerProcess, data: bytes, timeout_s: float = 10.0) -> bytes:
    """Send, and read until the broker closes."""
    found = b""
    with socket.create_connection(http_address(broker), timeout=timeout_s) as sock:
        sock.sendall(data)
        with contextlib.suppress(ConnectionResetError):
            while piece := sock.recv(65_536):
                found += piece
    return found


def status_of(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1])


REQUEST = b"GET %s HTTP/1.1\r\nHost: x\r\n\r\n"


@pytest.mark.parametrize(
    "request_",
    [
        *(REQUEST % path for path in (b"/metrics", b"/healthz", b"/readyz", b"/nothing")),
        b"HEAD /healthz HTTP/1.1\r\nHost: x\r\n\r\n",
        b"POST /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n",
        b"nonsense\r\n\r\n",
        b"GET / HTTP/1.1\r\n\x00bad: 1\r\n\r\n",
    ],
    ids=lambda data: repr(bytes(data[:20])),
)
def test_no_answer_names_what_runs_here(broker: BrokerProcess, request_: bytes) -> None:
    head = talk(broker, request_).partition(b"\r\n\r\n")[0].lower()
    assert head.startswith(b"http/1.1 ")
    for word in (b"server:", b"python", b"aiohttp"):
        assert word not in head
    assert b"connection: close" in head


def head_of(size: int) -> bytes:
    """A good request of this many bytes, its longest field within aiohttp's bounds."""
    head = b"GET /healthz HTTP/1.1\r\nHost: x\r\nX: \r\nY: \r\n\r\n"
    filling = b"f" * (size - len(head))
    head = head.replace(b"X: ", b"X: " + filling[:4_000]).replace(b"Y: ", b"Y: " + filling[4_000:])
    assert len(head) == size
    return head


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (REQUEST % b"/healthz", 200),
        (b"HEAD /healthz HTTP/1.0\r\n\r\n", 200),
        (REQUEST % b"/nothing", 404),
        (b"POST / HTTP/1.1\r\nHost: x\r\n\r\n", 405),
        (b"POST /metrics HTTP/1.1\r\nHost: x\r\n\r\n", 405),
        (b"DELETE /metrics HTTP/1.1\r\nHost: x\r\n\r\n", 405),
        (b"GET /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello", 200),
        (b"GET /healthz HTTP/1.1\r\nHost: x\r\nContent-Length: 99\r\n\r\nhello", 200),
        (b"GET /metrics HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhe", 200),
        (b"POST /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 99\r\n\r\nhello", 405),
        (b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: upgrade\r\nUpgrade: h2c\r\n\r\n", 200),
        (b"GET /healthz HTTP/1.1\r\nHost: x\r\nExpect: something\r\n\r\n", 417),
        (b"GET /metrics HTTP/1.1\r\nno colon\r\n\r\n", 400),
        (b"GET /metrics HTTP/1.1\r\n\r\n", 400),
        (b"GET /metrics HTTP/1.1\r\nHost: x\r\nhost: y\r\n\r\n", 400),
        (b"GET metrics HTTP/1.1\r\n\r\n", 400),
        (b"GET /metrics HTTP/3.0\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(50), 400),
        (head_of(8_192), 200),
        (head_of(8_193), 431),
        (b"GET /metrics HTTP/1.1\r\nX: " + b"y" * 100_000, 431),
        (b"GET /healthz HTTP/1.1\r\n" + b"X: y\r\n" * 5_000, 431),
    ],
)
def test_what_is_answered_and_what_is_not(
    broker: BrokerProcess, request_: bytes, status: int
) -> None:
    answer = talk(broker, request_)
    assert status_of(answer) == status
    if request_.startswith(b"HEAD"):
        assert answer.endswith(b"\r\n\r\n")


def test_the_page_is_of_the_cluster_as_the_broker_finds_it(tmp_path: Path) -> None:
    """No listener is asked: here it takes no client without a certificate and a login."""
    config = write_files(tmp_path, "broker").settings("default", "required")
    with BrokerProcess(config=config | {"listeners.default.authentication": "required"}) as broker:
        answer = talk(broker, REQUEST % b"/")
    assert status_of(answer) == 200
    assert b"<title>quiverlog: healthy</title>" in answer
    assert b"<td>1 of 1 live</td>" in answer


def test_no_request_makes_the_web_framework_complain(broker: BrokerProcess) -> None:
    """A missing Host was once an error with a trace in the log, once per request."""
    rng = random.Random(1)
    paths = (b"/healthz", b"//", b"//[", b"/%zz", b"/%00", b"/:x", b"/?&=#", b"/..//;", b"/\\")
    fields = (
        b"Host: x", b"Host:", b"host: [", b"Host: a b", b"Host: \xff", b"Content-Length: 0",
        b"Connection: keep-alive, upgrade", b"Accept-Encoding: gzip;q=x", b"Cookie: \xff",
        b"Range: x", b"If-Modified-Since: x", b"Content-Type: x; charset=y", b"Content-Encoding: x",
        b"Sec-WebSocket-Key1: x", b"Keep-Alive: x", b"Authorization: Basic x",
    )  # fmt: skip
    for _ in range(300):
        chosen = rng.choices(fields, k=rng.randint(0, 4))
        line = rng.choice((b"GET %s HTTP/1.1", b"HEAD %s HTTP/1.1", b"GET %s HTTP/1.0"))
        request = b"\r\n".join((line % rng.choice(paths), *chosen, b"", b""))
        assert status_of(talk(broker, request)) in {200, 400, 404}, request
    lines = [line for line in broker.log_text.splitlines() if "aiohttp" in line]
    assert lines == []


def test_head_and_whole_request_are_bounded_in_time(broker: BrokerProcess) -> None:
    started = time.monotonic()
    assert status_of(talk(broker, b"GET /met")) == 408
    assert 0.5 < time.monotonic() - started < 8 * slack()
    # A reader that takes nothing of a large answer is cut off.
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2_048)
        sock.settimeout(20)
        sock.connect(http_address(broker))
        sock.sendall(REQUEST % b"/metrics")
        until_open(broker, 0)


def test_of_pipelined_requests_the_first_is_answered(broker: BrokerProcess) -> None:
    answer = talk(broker, REQUEST % b"/healthz" + REQUEST % b"/nothing" * 50)
    assert status_of(answer) == 200
    assert answer.count(b"HTTP/1.1") == 1


def test_what_comes_behind_a_request_is_not_kept(broker: BrokerProcess) -> None:
    """64 MiB behind a request whose answer is not read: as a body, and as more requests."""
    before = memory_bytes(broker)
    for behind in (b"b" * 65_536, REQUEST % b"/metrics" * 1_600):
        with socket.socket() as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2_048)
            sock.settimeout(20)
            sock.connect(http_address(broker))
            sock.sendall(REQUEST % b"/metrics")
            with contextlib.suppress(ConnectionError):
                for _ in range(1_024):
                    sock.sendall(behind)
            assert memory_bytes(broker) < before + (16 << 20)
            until_open(broker, 0)


def memory_bytes(broker: BrokerProcess) -> int:
    text = Path(f"/proc/{broker.pid}/status").read_text()
    return int(re.findall(r"VmRSS:\s+(\d+) kB", text)[0]) * 1024


@pytest.mark.parametrize(
    ("request_", "status"),
    [(REQUEST % b"/healthz", 200), (REQUEST % b"/metrics", 200), (b"GET /met", 408)],
    ids=["short", "long", "half"],
)
def test_a_client_may_close_its_sending_side(
    broker: BrokerProcess, request_: bytes, status: int
) -> None:
    with socket.create_connection(http_address(broker), timeout=10) as sock:
        sock.sendall(request_)
        sock.shutdown(socket.SHUT_WR)
        found = b""
        while piece := sock.recv(65_536):
            found += piece
    assert status_of(found) == status


def test_a_head_that_comes_byte_by_byte_has_its_time_together(broker: BrokerProcess) -> None:
    started = time.monotonic()
    with socket.create_connection(http_address(broker), timeout=10) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.sendall(b"GET /")
        sock.settimeout(0.05)
        found = b""
        while not found:
            sock.sendall(b"a")
            with contextlib.suppress(TimeoutError):
                found = sock.recv(65_536)
            assert time.monotonic() < started + 10
    assert status_of(found) == 408


def open_connections(broker: BrokerProcess) -> int:
    """Established connections to the HTTP port, as the broker's process has them."""
    port = f":{http_address(broker)[1]:04X}"
    lines = Path(f"/proc/{broker.pid}/net/tcp").read_text().splitlines()[1:]
    inodes = {line.split()[9] for line in lines if line.split()[1].endswith(port)}
    found = 0
    for link in Path(f"/proc/{broker.pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            match = re.fullmatch(r"socket:\[(\d+)\]", str(link.readlink()))
            found += match is not None and match[1] in inodes
    return found - 1  # the listener


def until_open(broker: BrokerProcess, most: int) -> None:
    until(lambda: open_connections(broker) <= most, f"at most {most} open connections")


def test_a_crowd_of_half_requests_keeps_no_client_out(broker: BrokerProcess) -> None:
    crowd = []
    try:
        for _ in range(200):
            sock = socket.create_connection(http_address(broker), timeout=10)
            sock.sendall(b"GET /metr")
            crowd.append(sock)
            assert open_connections(broker) <= 22
        for path in (b"/healthz", b"/metrics"):
            assert status_of(talk(broker, REQUEST % path)) == 200
    finally:
        for sock in crowd:
            sock.close()


def test_a_scraper_that_accepts_openmetrics_gets_it(broker: BrokerProcess) -> None:
    asked = b"GET /metrics HTTP/1.1\r\nHost: x\r\nAccept: %s\r\n\r\n"
    answer = talk(broker, asked % b"application/openmetrics-text;version=1.0.0,text/plain;q=0.5")
    assert b"Content-Type: application/openmetrics-text; version=1.0.0" in answer
    assert b"# EOF" in answer
    # Weights are obeyed, and may be in a field of their own.
    for accept in (
        b"*/*",
        b"application/openmetrics-text;q=0, text/plain",
        b"text/plain;q=0.9\r\nAccept: application/openmetrics-text;q=0.2",
    ):
        answer = talk(broker, asked % accept)
        assert b"Content-Type: text/plain; version=0.0.4" in answer, accept


def test_scrapes_at_once_share_one_rendering(broker: BrokerProcess) -> None:
    answers: list[bytes] = []
    threads = [
        threading.Thread(target=lambda: answers.append(talk(broker, REQUEST % b"/metrics")))
        for _ in range(20)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {status_of(answer) for answer in answers} <= {200, 503}
    assert sum(status_of(answer) == 200 for answer in answers) >= 15


def test_flushes_go_on_while_all_http_places_are_held() -> None:
    """With 256 descriptors, an attacker on the HTTP port once made fsync fail for good."""
    command = ("sh", "-c", 'ulimit -n 256; exec "$@"', "sh", *COMMAND)
    crowd = []
    with BrokerProcess(command=command) as broker:
        try:
            for _ in range(400):
                with contextlib.suppress(OSError):
                    sock = socket.create_connection(http_address(broker), timeout=10)
                    sock.sendall(b"GET /")
                    crowd.append(sock)
            with RawClient(broker.address) as client:
                topic_id = client.create_topic("t", partitions=50)
                for number in range(50):
                    client.produce(topic_id, make_batch(number * 10), partition=number)
        finally:
            for sock in crowd:
                sock.close()
        with RawClient(broker.address) as client:
            for number in range(50):
                client.produce(topic_id, make_batch(number * 10), partition=number)
        assert "job failed" not in broker.log_text
        assert "partition fault" not in broker.log_text
        assert broker.stop() == 0
