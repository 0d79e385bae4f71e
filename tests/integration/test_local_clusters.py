"""`quiverlog dev` and `quiverlog.testing`: clusters of real brokers on this machine."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import quiverlog.testing
from quiverlog.cli import main
from quiverlog.local.cluster import LocalCluster, racks_of
from quiverlog.local.failures import LocalClusterFailed
from quiverlog.local.ports import free_port
from quiverlog.local.process import ProcessState

pytestmark = pytest.mark.process
PAGE = Path(__file__).resolve().parents[2] / "docs" / "local-clusters.md"


class Dev:
    """The command; in processes of their own `up`, which leaves brokers behind, and `logs`, which
    becomes another program."""

    def __init__(self, directory: Path, capfd: pytest.CaptureFixture[str]) -> None:
        self.directory = directory
        self._capfd = capfd

    def __call__(self, verb: str, *words: str, code: int = 0) -> str:
        command = ["dev", verb, "-d", str(self.directory), *words]
        if verb in ("up", "logs"):
            done = subprocess.run(
                [sys.executable, "-m", "quiverlog", *command],
                capture_output=True, text=True, timeout=120, check=False,
            )  # fmt: skip
            ended, out, err = done.returncode, done.stdout, done.stderr
        else:
            self._capfd.readouterr()
            ended = main(command)
            out, err = self._capfd.readouterr()
        assert ended == code, err
        return out if code == 0 else err

    def beside(self) -> Dev:
        return Dev(self.directory / "other", self._capfd)

    def status(self) -> dict[int, dict[str, object]]:
        printed = json.loads(self("status", "--format", "json"))
        return {one["node_id"]: one for one in printed["brokers"]}

    def states(self) -> list[object]:
        return [one["process"] for one in self.status().values()]


@pytest.fixture
def dev(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Iterator[Dev]:
    directory = tmp_path / "dev"
    yield Dev(directory, capfd)
    found = LocalCluster.find(directory)
    if found is not None:
        found.remove()


def runs_a_program(pid: object) -> bool:
    """Whether there is such a process, and not just its remains for a parent that does not look."""
    path = Path(f"/proc/{pid}/cmdline")
    return path.exists() and path.read_bytes() != b""


def test_a_cluster_is_made_broken_stopped_brought_back_and_removed(dev: Dev) -> None:
    first = dev("up", "-n", "3")
    bootstrap = first.split()[-1]
    assert "ready after" in first
    found = dev.status()
    assert [one["rack"] for one in found.values()] == ["a", "b", "c"]
    assert sum("controller" in str(one["in_cluster"]) for one in found.values()) == 1
    pids = [int(str(one["pid"])) for one in found.values()]
    assert [os.getsid(pid) for pid in pids] == pids, "what ends with a terminal is of its session"
    with quiverlog.connect(bootstrap) as client:
        client.create_topic("t", pa.schema({"n": pa.int64()}), replication_factor=3)
        with client.producer("t", durability="replicated_flushed") as producer:
            producer.send([{"n": 1}])
    assert dev("kill", "2") == "killed broker 2\n"
    assert dev("kill", "2") == "broker 2 did not run\n"
    assert dev("pause", "3") == "paused broker 3\n"
    assert dev.states() == ["running", "ended", "paused"]
    assert dev("resume", "3") == "resumed broker 3\n"
    assert dev("start", "2") == "broker 2 is ready\n"
    assert dev("stop", "1") == "stopped broker 1\n"
    dev("pause", "2")
    dev("up")
    assert dev.states() == ["running"] * 3
    assert dev("stop").startswith("stopped 3 brokers")
    assert dev.states() == ["ended"] * 3
    assert json.loads(dev("up", "--format", "json"))["bootstrap_server"] == bootstrap
    with quiverlog.connect(bootstrap) as client:
        rows = [batch.data.to_pylist() for batch in client.consumer("t", start="earliest")]
    assert rows == [[{"n": 1}]]
    pids = [int(str(one["pid"])) for one in dev.status().values()]
    assert dev("down") == f"removed {dev.directory}\n"
    assert not dev.directory.exists()
    assert not [pid for pid in pids if runs_a_program(pid)]


def test_two_clusters_do_not_know_of_each_other(dev: Dev, tmp_path: Path) -> None:
    dev("up", "-n", "1")
    with quiverlog.testing.cluster(1) as other:
        dev("kill", "1")
        assert other.brokers[1].state is ProcessState.RUNNING
    assert dev.states() == ["ended"]


def test_a_number_that_was_given_to_another_program_is_left_alone(dev: Dev) -> None:
    dev("up", "-n", "1")
    dev("stop")
    mark = dev.directory / "broker-1" / "process.json"
    printed = json.loads(mark.read_text())
    mark.write_text(json.dumps({**printed, "pid": os.getpid()}))
    assert dev("kill", "1") == "broker 1 did not run\n"
    assert dev.states() == ["ended"]


def test_what_cannot_be_is_refused_with_what_to_do(dev: Dev) -> None:
    assert "`quiverlog dev up` makes one" in dev("status", code=1)
    dev.directory.mkdir()
    (dev.directory / "mine").write_text("kept")
    assert "is not empty" in dev("up", code=1)
    (dev.directory / "mine").unlink()
    port = free_port()
    dev("up", "-n", "1", "--port", str(port), "--set", "topic.defaults.retention.ms=1000")
    assert "there are: 1." in dev("kill", "2", code=1)
    assert "holds a cluster of 1" in dev("up", "-n", "2", code=1)
    taken = dev.beside()
    assert f"port {port}" in taken("up", "-n", "1", "--port", str(port), code=1)
    with quiverlog.connect(f"127.0.0.1:{port}") as client:
        client.create_topic("t", pa.schema({"n": pa.int64()}))
        assert client.describe_topic("t").configs["retention.ms"].value == "1000"
    (dev.directory / "mine").write_text("kept")
    dev("down")
    assert [one.name for one in dev.directory.iterdir()] == ["mine"]


def test_a_broker_that_does_not_start_prints_the_reason(dev: Dev) -> None:
    assert "its log" in dev("up", "-n", "1", "--set", "no.such.key=1", code=1)


def test_one_command_at_a_time(dev: Dev) -> None:
    made = LocalCluster.create(dev.directory, racks=racks_of(1))
    with made.locked():
        assert "Another command" in dev("kill", "1", code=1)
    assert dev("kill", "1") == "broker 1 did not run\n"


def test_logs_end_with_the_reader_and_with_ctrl_c(dev: Dev) -> None:
    dev("up", "-n", "1")
    assert "event=ready" in dev("logs", "1", "-n", "50")
    assert dev("logs", "1", "-n", "1").count("\n") == 1
    command = [sys.executable, "-m", "quiverlog", "dev", "logs", "1", "-f", "-d"]
    # What a shell runs in the background ignores Ctrl-C, and so does all that it starts.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with subprocess.Popen([*command, str(dev.directory)], stdout=subprocess.PIPE) as follower:
            assert follower.stdout is not None
            assert follower.stdout.readline()
            follower.send_signal(signal.SIGINT)
            follower.communicate(timeout=60)
    finally:
        signal.signal(signal.SIGINT, before)
    assert follower.returncode in (-signal.SIGINT, 130)


def test_an_unreadable_cluster_file_is_reported(dev: Dev) -> None:
    dev("up", "-n", "1")
    path = dev.directory / "cluster.json"
    kept = path.read_text()
    path.write_text(kept[:-10])
    assert "cannot be read" in dev("status", code=1)
    path.write_text(kept)
    assert dev.states() == ["running"]


def test_a_first_broker_whose_disk_was_lost_begins_no_second_cluster(dev: Dev) -> None:
    dev("up")
    assert dev("kill", "1", "--wipe") == "killed broker 1\n"
    assert not (dev.directory / "broker-1" / "data").exists()
    dev("up")  # which waits until three brokers are one quorum again
    assert all("ready" in str(one["in_cluster"]) for one in dev.status().values())


def test_a_cluster_grows_and_removes_only_unknown_processes(dev: Dev) -> None:
    dev("up", "-n", "1")
    assert "broker 2 has joined, in rack z: -b" in dev("add", "--rack", "z")
    found = dev.status()
    assert [one["in_cluster"] for one in found.values()] == ["ready, controller", "ready"]
    assert found[2]["rack"] == "z"
    assert "Broker 2 runs" in dev("remove", "2", code=1)
    dev("stop", "2")
    assert "quiverlog cluster decommission 2" in dev("remove", "2", code=1)
    assert "there are: 1, 2." in dev("remove", "3", code=1)
    dev("stop", "1")
    assert "do not answer" in dev("remove", "2", code=1)


@pytest.mark.parametrize("racks", [["a"], list("abc")])
def test_arguments_that_contradict_each_other_are_refused(racks: list[str]) -> None:
    with pytest.raises(ValueError, match="racks for 2"), quiverlog.testing.cluster(2, racks=racks):
        pass
    with pytest.raises(ValueError, match="from 1 to 9"), quiverlog.testing.cluster(10):
        pass


def test_a_cluster_that_does_not_come_up_leaves_nothing_behind() -> None:
    with (
        pytest.raises(LocalClusterFailed, match="ended"),
        quiverlog.testing.cluster(1, config={"no.such.key": "1"}),
    ):
        pass


def test_the_example_for_test_suites_passes(tmp_path: Path) -> None:
    (example,) = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    (tmp_path / "test_example.py").write_text(example)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", "."]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout
    assert "1 passed" in done.stdout
