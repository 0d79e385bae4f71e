"""Signals and closed pipes against a real broker: it reloads or ignores, and never dies."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time
from pathlib import Path

import pytest

from quiverlog.server.process.descriptors import OPERATORS_MAX
from quiverlog.wire import messages as m
from tests.support.broker import COMMAND, READY, BrokerProcess, ordinary_environment
from tests.support.rawclient import RawClient, make_batch
from tests.support.until import until

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("as_typed")]


def configure(broker: BrokerProcess, **keys: object) -> None:
    """Write another configuration file under the running broker."""
    path = Path(f"/proc/{broker.pid}/cmdline").read_bytes().split(b"\0")
    config_file = Path(path[path.index(b"--config") + 1].decode())
    lines = (f"{key.replace('__', '.')} = {value!r}\n" for key, value in keys.items())
    config_file.write_text("".join(lines))


def test_a_hangup_takes_over_what_may_change_and_names_what_may_not() -> None:
    with BrokerProcess(config={"connections.max": 50}) as broker:
        with RawClient(broker.address) as client:
            configure(
                broker,
                connections__max=2,
                log__level="warning",
                memory__buffer__bytes=200_000_000,
                node__id=3,
                topic__defaults__retention__ms=60_000,
            )
            broker.signal(signal.SIGHUP)
            until(lambda: "configuration reloaded" in broker.log_text)
            line = broker.log_text.splitlines()[-1]
            assert "connections.max: 50 -> 2" in line
            assert "log.level: info -> warning" in line
            assert "topic.defaults.retention.ms: 604800000 -> 60000" in line
            assert "needs_restart=node.id " in line
            # The connection lives on, and the new limits hold.
            topic_id = client.create_topic("t")
            client.produce(topic_id, make_batch(0))
            assert "topic created" not in broker.log_text
            with contextlib.ExitStack() as crowd:
                for _ in range(1 + OPERATORS_MAX):
                    crowd.enter_context(RawClient(broker.address))
                with RawClient(broker.address, hello=False) as refused:
                    assert "2 connections" in refused.expect_refusal().error_message
        assert broker.stop() == 0


def test_a_hangup_with_a_bad_file_changes_nothing() -> None:
    bad = ["connections.max = 0\n", "no = = toml\n", "what.ever = 1\n"]
    with BrokerProcess(config={"connections.max": 50}) as broker:
        configure(broker)
        path = Path(f"/proc/{broker.pid}/cmdline").read_bytes().split(b"\0")
        for count, text in enumerate(bad, 1):
            Path(path[path.index(b"--config") + 1].decode()).write_text(text)
            broker.signal(signal.SIGHUP)
            until(lambda n=count: broker.log_text.count("configuration not reloaded") == n)
            with RawClient(broker.address) as client:
                client.ask(m.MetadataRequest())
        assert broker.stop() == 0


def test_a_hangup_with_a_fifo_for_a_file_holds_no_client_up() -> None:
    """The loop once hung until another program wrote into it."""
    with BrokerProcess() as broker:
        command = Path(f"/proc/{broker.pid}/cmdline").read_bytes().split(b"\0")
        path = Path(command[command.index(b"--config") + 1].decode())
        path.unlink()
        os.mkfifo(path)
        broker.signal(signal.SIGHUP)
        until(lambda: "not a regular file" in broker.log_text)
        with RawClient(broker.address) as client:
            client.ask(m.MetadataRequest())
        assert broker.stop() == 0


class BareBroker:
    """A broker without a configuration file, whose streams the test owns."""

    def __init__(self, data_dir: Path, **streams: int) -> None:
        self.process = subprocess.Popen(
            [
                *COMMAND,
                *("--data-dir", str(data_dir)),
                *("--listen", "127.0.0.1:0", "--http-listen", "off"),
            ],
            stdin=subprocess.DEVNULL,
            stdout=streams.get("stdout", subprocess.PIPE),
            stderr=streams.get("stderr", subprocess.PIPE),
            env=ordinary_environment(),
        )

    def __enter__(self) -> BareBroker:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        self.process.wait(10)
        for stream in (self.process.stdout, self.process.stderr):
            if stream is not None:
                stream.close()

    def ready(self) -> tuple[str, int]:
        assert self.process.stdout is not None
        found = READY.search(self.process.stdout.readline().decode())
        assert found is not None
        host, _, port = found["clients"].rpartition(":")
        return host, int(port)


def test_a_hangup_without_a_file_is_ignored_with_a_line(tmp_path: Path) -> None:
    with BareBroker(tmp_path / "data") as broker:
        address = broker.ready()
        broker.process.send_signal(signal.SIGHUP)
        with RawClient(address) as client:
            client.ask(m.MetadataRequest())
        broker.process.terminate()
        assert broker.process.wait(20) == 0
        assert broker.process.stderr is not None
        assert b"started without a file" in broker.process.stderr.read()


def test_a_hangup_during_the_start_does_not_kill(tmp_path: Path) -> None:
    with BareBroker(tmp_path / "data") as broker:
        for _ in range(40):  # from the interpreter's own start on, some come in each phase
            time.sleep(0.02)
            with contextlib.suppress(ProcessLookupError):
                if (tmp_path / "data").exists():
                    broker.process.send_signal(signal.SIGHUP)
        broker.ready()
        assert broker.process.poll() is None


def test_other_signals_do_not_end_a_broker() -> None:
    names = ("SIGUSR1", "SIGUSR2", "SIGALRM", "SIGPIPE", "SIGIO", "SIGPROF")
    with BrokerProcess() as broker:
        for name in names:
            for _ in range(3):
                broker.signal(signal.Signals[name])
            with RawClient(broker.address) as client:
                client.ask(m.MetadataRequest())
            assert broker.running, name
        until(lambda: "most recent call first" in broker.log_text)
        assert broker.stop() == 0


def test_closed_pipes_for_output_and_log_do_not_end_a_broker(tmp_path: Path) -> None:
    readable, writable = os.pipe()
    with BareBroker(tmp_path / "data", stderr=writable) as broker:
        os.close(writable)
        address = broker.ready()
        os.close(readable)
        assert broker.process.stdout is not None
        broker.process.stdout.close()
        broker.process.stdout = None
        for _ in range(3):  # each of these is a line that cannot be written
            with socket.create_connection(address, timeout=10) as sock:
                sock.sendall(bytes(64))
                while sock.recv(4096):
                    pass
        with RawClient(address) as client:
            topic_id = client.create_topic("t")
            client.produce(topic_id, make_batch(0))
        broker.process.terminate()
        assert broker.process.wait(20) == 0
