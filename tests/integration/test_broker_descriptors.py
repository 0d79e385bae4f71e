"""A broker under a low limit on open files: it fits itself to it, or reports why it cannot."""

from __future__ import annotations

import contextlib
import re
import socket

import pytest

from quiverlog.errors import TooManyConnections, error_class
from quiverlog.wire import messages as m
from quiverlog.wire.frames import decode_error, encode
from tests.support.broker import COMMAND, BrokerFailed, BrokerProcess
from tests.support.rawclient import RawClient, make_batch

pytestmark = pytest.mark.process

HELLO = encode(m.HelloRequest(client_id="crowd"), 1)


def limited(files: int) -> tuple[str, ...]:
    return ("sh", "-c", f'ulimit -n {files}; exec "$@"', "sh", *COMMAND)


def test_too_few_files_are_refused_with_what_would_do() -> None:
    broker = BrokerProcess(command=limited(64))
    with pytest.raises(BrokerFailed, match="exit code 2") as caught:
        broker.start()
    assert "(`ulimit -n`)" in str(caught.value)
    needed = re.search(r"needs at least (\d+)", str(caught.value))
    assert needed is not None
    with BrokerProcess(command=limited(int(needed[1]))) as enough, RawClient(enough.address):
        pass


@pytest.mark.parametrize("files", [256, pytest.param(1_024, marks=pytest.mark.long)])
def test_clients_are_refused_before_files_run_out(files: int) -> None:
    """With 256 files there was once room for one client; with 1,024 flushes ran out of them."""
    with BrokerProcess(command=limited(files)) as broker, contextlib.ExitStack() as clients:
        assert "fewer connections than configured" in broker.log_text
        first = clients.enter_context(RawClient(broker.address))
        topic_id = first.create_topic("t", partitions=64)
        crowd = 1
        refusal = None
        while refusal is None:
            client = clients.enter_context(RawClient(broker.address, hello=False))
            client.send_bytes(HELLO)
            frame = client.next_frame()
            assert frame is not None
            answer = decode_error(frame.header)
            refusal = answer if answer.error_code else None
            crowd += 1
            assert crowd < files
        assert error_class(refusal.error_code) is TooManyConnections
        assert crowd > files // 8
        # More of them than there are files at all, while every partition is flushed.
        for _ in range(files):
            with contextlib.suppress(OSError):
                clients.enter_context(socket.create_connection(broker.address, timeout=5))
        for number in range(64):
            first.produce(topic_id, make_batch(number * 10), partition=number)
        for problem in ("job failed", "partition fault", "cannot be accepted"):
            assert problem not in broker.log_text
        clients.close()
        assert broker.stop() == 0


@pytest.mark.timeout(180)
@pytest.mark.parametrize("files", [118, pytest.param(256, marks=pytest.mark.long)])
def test_a_load_with_attackers_on_both_ports_makes_nothing_faulty(files: int) -> None:
    """Topics come and go, segments roll, rows are read again, while both ports are under attack."""
    config = {"topic.defaults.segment.bytes": 65_536, "shutdown.timeout.ms": 60_000}
    with contextlib.ExitStack() as stack:
        broker = stack.enter_context(BrokerProcess(config=config, command=limited(files)))
        worker = stack.enter_context(RawClient(broker.address, timeout=60))
        host, _, port = broker.http.rpartition(":")
        held: list[socket.socket] = []

        def attack(address: tuple[str, int], data: bytes, count: int) -> None:
            for _ in range(count):
                with contextlib.suppress(OSError):
                    held.append(stack.enter_context(socket.create_connection(address, timeout=5)))
                    held[-1].sendall(data)

        topic_id = worker.create_topic("t", partitions=60)
        rows = 0
        for turn in range(4):
            attack(broker.address, HELLO, 40)
            attack((host, int(port)), b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n", 10)
            attack((host, int(port)), b"GET /met", 80)
            other = worker.create_topic(f"other-{turn}", partitions=40)
            for partition in range(60):
                batch = make_batch(rows, 100, text="x" * 500)
                worker.produce(topic_id, batch, partition)
                worker.produce(other, batch, partition % 40)
            rows += 100
            for partition in range(0, 60, 7):
                stored = worker.read_all(topic_id, partition)
                assert sum(len(batch.ids) for batch in stored) == rows
            deleted = worker.ask(m.DeleteTopicsRequest(names=[f"other-{turn}"]))
            assert deleted.topics[0].error_code == 0
        for problem in ("job failed", "partition fault", "failed", "level=error"):
            assert problem not in broker.log_text, broker.log_text
        stack.callback(held.clear)
        assert broker.stop(90) == 0
        broker.start()
        assert "clean=true" in broker.log_text.rsplit("event=started", 1)[1]
