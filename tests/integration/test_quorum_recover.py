"""`quiverlog quorum recover` with broker processes: two of three are thrown away."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pyarrow as pa
import pytest

import quiverlog
from quiverlog.cli import main
from quiverlog.errors import QuiverlogError
from tests.support.broker import BrokerProcess
from tests.support.until import until

pytestmark = pytest.mark.process

ROWS = [{"x": n} for n in range(500)]
SCHEMA = pa.schema({"x": pa.int64()})
SEEDS = "controller.quorum.bootstrap.servers"


class Brokers:
    """Brokers 1 to 3, all voters, with rows on all and rows on the first alone."""

    def __init__(self, stack: ExitStack) -> None:
        self.by_id: dict[int, BrokerProcess] = {}
        for node_id in (1, 2, 3):
            config: dict[str, object] = {"node.id": node_id, "cluster.id": "recovered"}
            if self.by_id:
                config[SEEDS] = f"1@{self.by_id[1].bootstrap}"
            broker = BrokerProcess(config=config)
            self.by_id[node_id] = stack.enter_context(broker)
            if node_id == 1:
                self.write("alone", 1)
        until(lambda: self.voters() == {1, 2, 3}, "three voters")
        self.write("copied", 3)
        until(lambda: self.in_sync("copied") == 3, "all are in sync")

    @property
    def first(self) -> BrokerProcess:
        return self.by_id[1]

    def write(self, name: str, replicas: int) -> None:
        with quiverlog.connect(self.first.bootstrap) as client:
            client.create_topic(name, schema=SCHEMA, partitions=2, replication_factor=replicas)
            with client.producer(name) as producer:
                producer.send(ROWS)

    def voters(self) -> set[int]:
        try:
            with quiverlog.connect(self.first.bootstrap, request_timeout=5.0) as client:
                return {one.node_id for one in client.describe_cluster().voters}
        except QuiverlogError:
            return set()

    def in_sync(self, name: str) -> int:
        with quiverlog.connect(self.first.bootstrap, request_timeout=5.0) as client:
            found = client.describe_topic(name)
            return min(len(one.in_sync_replicas) for one in found.partitions)

    def throw_away(self, *node_ids: int) -> None:
        for node_id in node_ids:
            self.by_id[node_id].kill()
            shutil.rmtree(self.by_id[node_id].data_dir)

    def recover(self, *options: str) -> subprocess.CompletedProcess[str]:
        where = ("--data-dir", str(self.first.data_dir))
        command = (sys.executable, "-m", "quiverlog", "quorum", "recover", *where, *options)
        return subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            stdin=subprocess.DEVNULL,
        )

    def has_all_rows_again(self) -> bool:
        """The operator gives up what only the lost brokers may have had."""
        elect = ("partition", "elect", "copied", "--unclean", "--yes")
        alone = ("config", "set", "min.insync.replicas=1", "--topic", "copied")
        for words in (elect, alone):
            main([*words, "-b", self.first.bootstrap])
        return self.has_rows_of("alone", "copied")

    def has_rows_of(self, *names: str) -> bool:
        try:
            with quiverlog.connect(self.first.bootstrap, request_timeout=5.0) as client:
                found = [client.read(name).to_arrow().num_rows for name in names]
        except QuiverlogError:
            return False
        return found == [len(ROWS)] * len(names)


@pytest.fixture
def brokers() -> Iterator[Brokers]:
    with ExitStack() as stack:
        yield Brokers(stack)


def test_two_of_three_are_thrown_away_and_the_third_goes_on(brokers: Brokers) -> None:
    brokers.throw_away(2, 3)
    brokers.first.kill()
    shown = brokers.recover("--dry-run")
    assert shown.returncode == 0, shown.stderr
    assert "would become the only voter; nothing was changed" in shown.stdout
    refused = brokers.recover()
    assert refused.returncode != 0, "no confirmation was given"
    done = brokers.recover("--yes", "--format", "json")
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert (answer["cluster_id"], answer["node_id"]) == ("recovered", 1)
    assert (answer["voters"], answer["is_only_voter"], answer["answering"]) == ([1], True, {})
    again = brokers.recover("--yes")
    assert again.returncode == 0
    assert "is the only voter already" in again.stdout
    brokers.first.start()
    assert brokers.voters() == {1}
    until(lambda: brokers.has_rows_of("alone"), "what it held alone, without an operator")
    until(brokers.has_all_rows_again, "all rows")
    brokers.write("new", 1)


def test_it_is_refused_while_this_broker_or_another_voter_lives(brokers: Brokers) -> None:
    refused = brokers.recover("--yes", "--force")
    assert refused.returncode == 1
    assert "DATA_DIRECTORY_IN_USE" in refused.stderr
    brokers.first.stop()
    brokers.throw_away(2)
    for suspended in (False, True):
        third = brokers.by_id[3]
        if suspended:
            third.signal(signal.SIGSTOP)
        refused = brokers.recover("--yes")
        assert refused.returncode == 1
        silent = f"something accepts connections at {third.bootstrap} and does not answer HELLO"
        answer = f"voter 3: {silent}" if suspended else f"voter 3 answers at {third.bootstrap}"
        assert answer in refused.stderr
        assert "Nothing was changed" in refused.stderr
        if suspended:
            third.signal(signal.SIGCONT)
    brokers.first.start()
    until(lambda: brokers.voters() == {1, 2, 3}, "nothing was changed")
    brokers.first.stop()
    forced = brokers.recover("--yes", "--force")
    assert forced.returncode == 0, forced.stderr
    brokers.throw_away(3)
    brokers.first.start()
    assert brokers.voters() == {1}
    until(brokers.has_all_rows_again, "all rows")


@pytest.mark.parametrize("is_there", [True, False])
def test_an_empty_directory_is_no_advice(tmp_path: Path, *, is_there: bool) -> None:
    if is_there:
        (tmp_path / "empty").mkdir()
    command = (sys.executable, "-m", "quiverlog", "quorum", "recover", "--yes")
    where = ("--data-dir", str(tmp_path / "empty"))
    refused = subprocess.run(
        (*command, *where), capture_output=True, text=True, timeout=60, check=False
    )
    assert refused.returncode == 1
    answer = " ".join(refused.stderr.split())
    assert "give the directory of a broker that voted and is left" in answer
    assert "or to an empty one" not in answer


@pytest.mark.long
def test_killed_at_each_write_it_can_be_typed_again(tmp_path: Path, brokers: Brokers) -> None:
    """A real process, ended behind each of its writes, flushes and renames."""
    brokers.throw_away(2, 3)
    brokers.first.stop()
    kept = tmp_path / "kept"
    shutil.copytree(brokers.first.data_dir, kept)
    calls = 0
    for nth in range(1, 40):
        shutil.rmtree(brokers.first.data_dir)
        shutil.copytree(kept, brokers.first.data_dir)
        command = (sys.executable, str(DYING), str(nth), str(brokers.first.data_dir))
        ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        if ended.returncode == 0:
            break
        assert ended.returncode == -signal.SIGKILL, ended.stderr
        calls += 1
        done = brokers.recover("--yes", "--format", "json")
        assert done.returncode == 0, (nth, done.stderr)
        assert json.loads(done.stdout)["is_only_voter"]
    assert calls >= 3, "a state, an entry, and their flushes"
    brokers.first.start()
    until(brokers.has_all_rows_again, "all rows")


DYING = Path(__file__).resolve().parents[1] / "support" / "dying_recovery.py"
assert os.path.exists(DYING)
