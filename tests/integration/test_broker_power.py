"""Three broker processes whose machines lose their power: what they had not flushed is gone."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest

import quiverlog
from quiverlog.errors import QuiverlogError
from tests.support.broker import BrokerProcess

from .test_broker_five_voters import CLUSTER, SCHEMA, Growing, Producing, read_ids, until

pytestmark = pytest.mark.process

ROWS = 200
NOTING = Path(__file__).parents[1] / "support" / "power_broker.py"


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as found:
        yield found


class Powered(Growing):
    """Three brokers that note what they flush. `cut_bytes`: so much was taken so far."""

    def __init__(self, stack: ExitStack, place: Path, seed: int) -> None:
        self._place = place
        self._rng = random.Random(seed)
        self.cut_bytes = 0
        super().__init__(stack)
        self.add()
        self.add()
        until(lambda: self.has_voters(3), "three voters")

    def add(self) -> None:
        node_id = len(self.by_id) + 1
        config: dict[str, object] = {"node.id": node_id, "cluster.id": CLUSTER}
        if self.by_id:
            seeds = ",".join(f"{n}@{one.bootstrap}" for n, one in self.by_id.items())
            config["controller.quorum.bootstrap.servers"] = seeds
        command = (sys.executable, str(NOTING), str(self._ledger(node_id)), "broker")
        broker = BrokerProcess(config=config, command=command)
        self.by_id[node_id] = self._stack.enter_context(broker)

    def _ledger(self, node_id: int) -> Path:
        return self._place / f"flushed-{node_id}"

    def create(self, durability: str, minimum: int) -> None:
        config = {"min.insync.replicas": str(minimum), "durability": durability}
        with quiverlog.connect(self.bootstrap) as client:
            client.create_topic("t", SCHEMA, replication_factor=3, config=config)
        until(self.is_whole, "three copies")

    def leader(self) -> int:
        with quiverlog.connect(self.bootstrap) as client:
            return client.describe_topic("t").partitions[0].leader

    def lose_power(self, node_ids: Sequence[int]) -> None:
        """At the same moment. What was not flushed is gone, from somewhere on."""
        for node_id in node_ids:
            self.by_id[node_id].signal(signal.SIGSTOP)
        for node_id in node_ids:
            self.by_id[node_id].kill9()
            self._cut(node_id)

    def _cut(self, node_id: int) -> None:
        flushed: dict[tuple[int, int], int] = {}
        for line in self._ledger(node_id).read_text().splitlines():
            device, inode, size = map(int, line.split())
            flushed[device, inode] = size
        for path in sorted(self.by_id[node_id].data_dir.rglob("*.log")):
            found = path.stat()
            kept = min(flushed.get((found.st_dev, found.st_ino), 0), found.st_size)
            if kept < found.st_size:
                kept = self._rng.randint(kept, found.st_size)
                self.cut_bytes += found.st_size - kept
                os.truncate(path, kept)

    def start(self, node_ids: Sequence[int]) -> None:
        """At once: one alone has no majority, and would not be ready."""
        for node_id in node_ids:
            self.by_id[node_id].launch()
        for node_id in node_ids:
            self.by_id[node_id].wait_ready()

    def end(self) -> None:
        for one in self.by_id.values():
            assert "internal error" not in one.log_text
            assert one.stop() == 0, one.log_text


def more_rows(producing: Producing) -> None:
    before = producing.acknowledged
    until(lambda: producing.acknowledged >= before + ROWS or producing.error, "rows")
    assert producing.error is None, producing.error


@pytest.mark.parametrize("times", [1, pytest.param(3, marks=pytest.mark.long)])
def test_no_row_on_two_disks_is_lost_when_all_machines_lose_their_power(
    stack: ExitStack, tmp_path: Path, times: int
) -> None:
    """`replicated_flushed`: again and again, under load; the longest log leads each time."""
    three = Powered(stack, tmp_path, seed=1)
    three.create("replicated_flushed", 2)
    producing = Producing(three.bootstrap, "t")
    for _ in range(times):
        more_rows(producing)
        three.lose_power((1, 2, 3))
        three.start((1, 2, 3))
        until(three.is_whole, "three copies again")
    more_rows(producing)
    sent = producing.end()
    assert read_ids(three.bootstrap, "t") == Counter(range(sent))
    three.end()


@pytest.mark.parametrize("times", [1, pytest.param(2, marks=pytest.mark.long)])
def test_no_replicated_row_is_lost_with_the_power_of_one_machine(
    stack: ExitStack, tmp_path: Path, times: int
) -> None:
    """`replicated`: the leader's, under load, which had flushed next to nothing."""
    three = Powered(stack, tmp_path, seed=2)
    three.create("replicated", 2)
    producing = Producing(three.bootstrap, "t")
    for _ in range(times):
        more_rows(producing)
        led = three.leader()
        before = three.cut_bytes
        three.lose_power((led,))
        assert three.cut_bytes > before, "rows without a waiting producer were not flushed"
        more_rows(producing)
        three.start((led,))
        until(three.is_whole, "three copies again")
    sent = producing.end()
    assert read_ids(three.bootstrap, "t") == Counter(range(sent))
    three.end()


def test_the_way_out_where_too_few_machines_come_back(stack: ExitStack, tmp_path: Path) -> None:
    """`min.insync.replicas` = 1: all replicas are needed, or the operator gives rows up."""
    three = Powered(stack, tmp_path, seed=3)
    three.create("replicated", 1)
    producing = Producing(three.bootstrap, "t")
    more_rows(producing)
    producing.end()
    lost = three.leader()
    back = [node_id for node_id in three.by_id if node_id != lost]
    three.lose_power((1, 2, 3))
    three.start(back)

    def has_no_leader() -> bool:
        try:
            return three.leader() == -1
        except QuiverlogError:
            return False

    until(has_no_leader, "a partition without a leader")
    assert typed("topic", "describe", "t", "-b", three.bootstrap)
    typed("topic", "elect", "t", "--unclean", "--yes", "-b", three.bootstrap)
    until(lambda: three.leader() in back, "a leader")
    with quiverlog.connect(three.bootstrap) as client, client.producer("t") as producer:
        producer.send([{"id": -1}]).result(timeout=60)
    assert read_ids(three.bootstrap, "t")[-1] == 1
    three.start((lost,))
    until(three.is_whole, "three copies again")
    assert read_ids(three.bootstrap, "t")[-1] == 1
    three.end()


def typed(*words: str) -> str:
    """What a person types, and what is shown."""
    done = subprocess.run(
        [sys.executable, "-m", "quiverlog", *words], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
