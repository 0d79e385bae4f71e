"""Standard streams that are closed or full, and a data directory that goes: the broker goes on.

A process that is started without standard streams gives their numbers to the first files that it
opens, and then what is meant for standard error is written into them.
"""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
from pathlib import Path

import pytest

from quiverlog.errors import OutcomeUnknown, QuiverlogError, StorageFault
from quiverlog.wire import messages as m
from tests.support.broker import COMMAND, BrokerFailed, BrokerProcess, ordinary_environment
from tests.support.ports import free_port
from tests.support.rawclient import RawClient, make_batch
from tests.support.until import until

pytestmark = pytest.mark.process


def answers(address: tuple[str, int]) -> bool:
    try:
        with RawClient(address):
            return True
    except (OSError, QuiverlogError):
        return False


@pytest.mark.parametrize(
    "streams",
    ["1>/dev/full", "2>/dev/full", "1>&-", "2>&-", "0<&- 1>&- 2>&-"],
)
def test_a_broker_without_its_streams_works_and_writes_into_no_file(
    tmp_path: Path, streams: str
) -> None:
    data = tmp_path / "data"
    address = ("127.0.0.1", free_port())
    listen = f"{address[0]}:{address[1]}"
    process = subprocess.Popen(
        [
            *("sh", "-c", f'exec "$@" {streams}', "sh", *COMMAND, "--data-dir", str(data)),
            *("--listen", listen, "--http-listen", "off"),
        ],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=ordinary_environment(),
    )
    try:
        until(lambda: answers(address) or process.poll() is not None)
        assert process.poll() is None, f"the broker ended with code {process.returncode}"
        with RawClient(address) as client:
            topic_id = client.create_topic("t")
            client.produce(topic_id, make_batch(0))
            process.send_signal(signal.SIGUSR1)  # the stacks of all threads, to standard error
            with socket.create_connection(address, timeout=10) as sock:
                sock.sendall(bytes(64))  # a line of the log
                while sock.recv(4096):
                    pass
            client.produce(topic_id, make_batch(10))
        process.terminate()
        assert process.wait(30) == 0
    finally:
        if process.poll() is None:
            process.kill()
        process.wait(10)
    for path in data.rglob("*"):
        if path.is_file():
            content = path.read_bytes()
            assert b"most recent call first" not in content, path
            assert b"level=" not in content, path
    with BrokerProcess(data) as broker, RawClient(broker.address) as client:
        assert [i for batch in client.read_all(topic_id) for i in batch.ids] == list(range(20))


def test_a_data_directory_that_is_removed_ends_nothing_but_writes(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        with RawClient(broker.address) as client:
            topic_id = client.create_topic("t")
            client.produce(topic_id, make_batch(0))
            shutil.rmtree(tmp_path / "data")
            # The rows of the first are appended, and then not flushed.
            for refusal in (OutcomeUnknown, StorageFault):
                with pytest.raises(refusal):
                    client.produce(topic_id, make_batch(10))
            until(lambda: "data directory lost" in broker.log_text)
            with pytest.raises(StorageFault):
                client.create_topic("u")
            assert [t.name for t in client.ask(m.MetadataRequest()).topics] == ["t"]
        assert "internal error" not in broker.log_text
        assert broker.stop() == 1


@pytest.mark.parametrize("used_before", [False, True])
def test_a_read_only_file_system_is_a_refusal(tmp_path: Path, used_before: bool) -> None:
    place = tmp_path / "place"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=8m", "none", str(place)]
    if shutil.which("mount") is None or subprocess.run(mount, check=False).returncode:
        pytest.skip("NOT TESTED on a read-only file system: mounting needs root")
    try:
        broker = BrokerProcess(place / "data")
        if used_before:
            with broker:
                pass
        subprocess.run(["mount", "-o", "remount,ro", str(place)], check=True)
        with pytest.raises(BrokerFailed, match="code 2") as caught:
            BrokerProcess(place / "data").start()
        assert f"{place}/data" in str(caught.value)
        assert "Read-only file system" in str(caught.value)
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)
