"""A broker as a process: start, one ready line, refusals in one line, clean and forced ends."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from quiverlog.errors import BrokerShuttingDown, QuiverlogError
from quiverlog.wire import messages as m
from quiverlog.wire.registry import api_ranges
from tests.support.broker import COMMAND, BrokerFailed, BrokerProcess
from tests.support.rawclient import RawClient, make_batch
from tests.support.until import slack, until

pytestmark = pytest.mark.process


def refused(broker: BrokerProcess, code: int = 2) -> str:
    """The one line in which a broker that cannot start gives the reason."""
    with pytest.raises(BrokerFailed, match=f"exit code {code}"):
        broker.start()
    lines = [line for line in broker.log_text.splitlines() if "level=info" not in line]
    assert len(lines) == 1, lines
    return lines[0]


def get(broker: BrokerProcess, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://{broker.http}{path}", timeout=10) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


@pytest.mark.usefixtures("as_typed")
def test_with_no_configuration_at_all_but_ports(tmp_path: Path) -> None:
    """`quiverlog broker` in an empty directory; the fixed ports are moved out of others' way."""
    with BrokerProcess() as broker:
        expected = (
            f"quiverlog broker 0 ready: clients {broker.bootstrap}, http {broker.http},"
            f" data {broker.data_dir}, durability flushed"
        )
        assert broker.stdout_text.splitlines() == [expected]
        mapped = Path(f"/proc/{broker.pid}/maps").read_text()
        assert "/pyarrow/" in mapped
        assert "/numpy/" not in mapped, "it takes 20 MB, and a third of what a start costs"
        with RawClient(broker.address, hello=False) as client:
            hello = client.ask(m.HelloRequest(client_id="test"))
            assert hello.node_id == 0
            served = [
                one for one in api_ranges(between_brokers=False) if one.api != m.Api.AUTHENTICATE
            ]
            assert hello.apis == served, "a lone broker serves no other, and takes no login"
            metadata = client.ask(m.MetadataRequest())
            assert [(b.host, b.port) for b in metadata.brokers] == [broker.address]


def test_sigterm_is_clean_and_the_next_start_reads_the_mark() -> None:
    with BrokerProcess() as broker:
        with RawClient(broker.address) as client:
            topic_id = client.create_topic("t", durability="memory")
            client.produce(topic_id, make_batch(0, 100))
        assert broker.stop() == 0
        assert "event=stopped clean=true" in broker.log_text
        broker.start()
        assert "clean=true" in [x for x in broker.log_text.splitlines() if "event=started" in x][-1]
        with RawClient(broker.address) as client:
            (stored,) = client.read_all(topic_id)
            assert stored.ids == list(range(100))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_stopping_answers_what_is_in_flight(number: int) -> None:
    with BrokerProcess() as broker, RawClient(broker.address) as client:
        topic_id = client.create_topic("t")
        waiting = {
            client.send(client.fetch_request(topic_id, 0, max_wait_ms=60_000, min_bytes=1 << 30))
        }
        waiting |= {client.send_produce(topic_id, make_batch(i * 10)) for i in range(20)}
        # Taken up, though not all are answered: the fetch waits for far more than there is.
        until(lambda: 'requests_total{api="produce"} 20.0' in get(broker, "/metrics")[1])
        started = time.monotonic()
        broker.signal(number)
        for _ in range(21):
            correlation_id, response, _ = client.receive()
            assert response.error_code in (0, BrokerShuttingDown.code)
            waiting.remove(correlation_id)
        with pytest.raises(ConnectionResetError):
            client.receive()
        assert broker.wait() == 0
        assert time.monotonic() - started < 10 * slack()


def test_a_second_signal_forces() -> None:
    with BrokerProcess(config={"shutdown.timeout.ms": 600_000}) as broker:
        client = RawClient(broker.address)
        client.create_topic("t")
        pid = broker.pid
        # Both are delivered before the loop looks: the second finds the broker stopping.
        os.kill(pid, signal.SIGSTOP)
        os.kill(pid, signal.SIGTERM)
        os.kill(pid, signal.SIGINT)
        os.kill(pid, signal.SIGCONT)
        assert broker.wait() == 1
        assert "second signal" in broker.log_text
        client.close()
        broker.start()


def test_port_in_use_is_found_before_the_data_is_touched(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        for flags in ({"listen": address}, {"http_listen": address}):
            broker = BrokerProcess(tmp_path / "data", **flags)  # type: ignore[arg-type]
            line = refused(broker)
            assert "ADDRESS_IN_USE" in line
            assert address in line
            assert not (tmp_path / "data").exists()


def test_an_address_that_this_machine_does_not_have() -> None:
    assert "192.0.2.1:9292" in refused(BrokerProcess(listen="192.0.2.1:9292"))


def test_data_directory_in_use() -> None:
    with BrokerProcess() as first:
        second = BrokerProcess(first.data_dir)
        assert "DATA_DIRECTORY_IN_USE" in refused(second)
        with RawClient(first.address) as client:
            client.create_topic("still-there")


def test_data_directory_of_another_cluster_or_node(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data", {"cluster.id": "mine"}) as broker:
        assert broker.stop() == 0
    other = BrokerProcess(tmp_path / "data", {"cluster.id": "theirs"})
    assert "FOREIGN_DATA_DIRECTORY" in refused(other)
    other = BrokerProcess(tmp_path / "data", {"cluster.id": "mine", "node.id": 7})
    assert "FOREIGN_DATA_DIRECTORY" in refused(other)
    with BrokerProcess(tmp_path / "data"):
        pass


def test_bad_configuration_is_one_line_with_its_place() -> None:
    broker = BrokerProcess(config={"node.id": 1, "connections.maximum": 5})
    with pytest.raises(BrokerFailed, match="exit code 2"):
        broker.start()
    (line,) = broker.log_text.splitlines()
    assert "quiverlog.toml:2: connections.maximum" in line
    assert "connections.max" in line


def test_restart_keeps_ports_ids_and_topics() -> None:
    with BrokerProcess() as broker:
        bootstrap, http = broker.bootstrap, broker.http
        with RawClient(broker.address) as client:
            topic_id = client.create_topic("t", partitions=3)
            cluster_id = client.ask(m.MetadataRequest()).cluster_id
        for kill in (False, True):
            broker.restart(kill=kill)
            assert (broker.bootstrap, broker.http) == (bootstrap, http)
            with RawClient(broker.address) as client:
                metadata = client.ask(m.MetadataRequest())
                assert metadata.cluster_id == cluster_id
                (topic,) = metadata.topics
                assert (topic.topic_id, len(topic.partitions)) == (topic_id, 3)
                assert {p.leader_epoch for p in topic.partitions} == {1 if kill else 0}


def test_listening_on_every_address_advertises_the_host_name() -> None:
    with BrokerProcess(listen="0.0.0.0:0") as broker:
        port = int(broker.bootstrap.rpartition(":")[2])
        with RawClient(("127.0.0.1", port)) as client:
            (endpoint,) = client.ask(m.MetadataRequest()).brokers
            assert (endpoint.host, endpoint.port) == (socket.gethostname(), port)
        assert "advertise" in broker.log_text


def test_advertise_differs_from_listen() -> None:
    with (
        BrokerProcess(config={"advertise": "broker.example:19292"}) as broker,
        RawClient(broker.address) as client,
    ):
        (endpoint,) = client.ask(m.MetadataRequest()).brokers
        assert (endpoint.host, endpoint.port) == ("broker.example", 19292)


def test_http(tmp_path: Path) -> None:
    with BrokerProcess() as broker:
        assert get(broker, "/healthz") == (200, '{"status": "ok"}')
        assert get(broker, "/readyz") == (200, '{"status": "ready"}')
        with RawClient(broker.address) as client:
            topic_id = client.create_topic("flights")
            client.produce(topic_id, make_batch(0, 100))
            list(client.read_all(topic_id))
            with pytest.raises(QuiverlogError):
                client.produce(b"x" * 16, make_batch(0))
            status, text = get(broker, "/metrics")
        assert status == 200
        for line in (
            'quiverlog_requests_total{api="produce"} 2.0',
            'quiverlog_topic_rows_in_total{topic="flights"} 100.0',
            'quiverlog_topic_rows_out_total{topic="flights"} 100.0',
            'quiverlog_log_partitions{topic="flights"} 1.0',
            "quiverlog_partitions_led 1.0",
            "quiverlog_connections 1.0",
            'quiverlog_errors_total{code="22",error="UNKNOWN_TOPIC_ID"} 1.0',
        ):
            assert line in text.splitlines(), line
        for name in ("event_loop_lag_seconds_count", "fsync_seconds_count", "disk_free_bytes"):
            (sample,) = [x for x in text.splitlines() if x.startswith(f"quiverlog_{name} ")]
            assert float(sample.split()[1]) > 0
        assert get(broker, "/nothing")[0] == 404


def not_ready(broker: BrokerProcess) -> str:
    """The reason that `/readyz` gives with its 503; empty as long as no process listens."""
    try:
        status, text = get(broker, "/readyz")
    except OSError:
        return ""
    return str(json.loads(text)["reason"]) if status == 503 else ""


HELD_RECOVERY = """
import os, runpy
from quiverlog.node.node import Node

def held(node, clocks, *, start=Node.start):
    open(os.environ["GATE"]).close()
    return start(node, clocks)

Node.start = held
runpy.run_module("quiverlog", run_name="__main__", alter_sys=True)
"""
"""A recovery lasts until the gate (a pipe with a name) is opened: else it may end before HTTP is
imported."""


def test_not_ready_while_recovering_and_while_stopping(tmp_path: Path) -> None:
    os.mkfifo(gate := tmp_path / "gate")
    command = (sys.executable, "-c", HELD_RECOVERY, "broker")
    broker = BrokerProcess(command=command, env={"GATE": str(gate)})
    with contextlib.ExitStack() as stack:
        stack.callback(broker.kill)
        broker.launch()
        until(lambda: not_ready(broker) == "recovering")
        assert get(broker, "/healthz")[0] == 200
        gate.open("w").close()  # The reader may be gone before a write.
        broker.wait_ready()
        assert get(broker, "/readyz")[0] == 200
        with RawClient(broker.address, receive_bytes=4096) as client:
            topic_id = client.create_topic("t")
            for i in range(4):
                client.produce(topic_id, make_batch(10 * i, text="x" * 100_000))
            for _ in range(4):  # replies that no client takes keep it for a moment
                client.send(client.fetch_request(topic_id, 0))
            until(lambda: 'requests_total{api="fetch"} 4.0' in get(broker, "/metrics")[1])
            broker.terminate()
            until(lambda: not_ready(broker) == "stopping")
            assert get(broker, "/healthz")[0] == 200
            assert broker.wait() == 0


def test_http_can_be_switched_off() -> None:
    with BrokerProcess(http_listen="off") as broker:
        assert ", http off," in broker.ready_line


def test_log_lines_as_json() -> None:
    with BrokerProcess(config={"log.format": "json"}) as broker:
        events = [json.loads(line)["event"] for line in broker.log_text.splitlines()]
        assert "ready" in events


def test_fault_of_a_whole_disk_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a directory")
    assert str(tmp_path / "file") in refused(BrokerProcess(tmp_path / "file"))


@pytest.mark.usefixtures("as_typed")
def test_environment_variables_reach_the_broker() -> None:
    with (
        BrokerProcess(env={"QUIVERLOG_NODE_ID": "12"}) as broker,
        RawClient(broker.address) as client,
    ):
        assert client.ask(m.MetadataRequest()).brokers[0].node_id == 12
    done = subprocess.run(
        [*COMMAND, "--http-listen", "off"],
        env={**os.environ, "QUIVERLOG_LISTEN": "nowhere"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode != 0
    assert "QUIVERLOG_LISTEN is 'nowhere'" in done.stderr
    assert sys.executable == COMMAND[0]
