"""A cluster grows from one broker to five under produce, loses two of five voters, goes on, and the
quorum shrinks to one voter again, which is the leader's vote each time."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pyarrow as pa
import pytest

import quiverlog
from quiverlog.client.base.results import ClusterDetail
from quiverlog.errors import QuiverlogError
from tests.support.broker import BrokerProcess
from tests.support.until import until

pytestmark = [pytest.mark.process, pytest.mark.long]

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False)])
CLUSTER = "grows-to-five"
BOUND_S = 60.0
ROWS_WHILE_KILLED = 200
"""Acknowledged after two of five were killed."""


class Producing:
    """Sends rows until it is stopped; remembers which are acknowledged."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self._stop = threading.Event()
        self._client = quiverlog.connect(bootstrap)
        self._topic = topic
        self.acknowledged = 0
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            with self._client as client, client.producer(self._topic) as producer:
                while not self._stop.is_set():
                    first = self.acknowledged
                    rows = [{"id": number} for number in range(first, first + 10)]
                    producer.send(rows).result(timeout=BOUND_S)
                    self.acknowledged += len(rows)
        except BaseException as error:
            self.error = error

    def end(self) -> int:
        """How many rows were acknowledged, each id below that once."""
        self._stop.set()
        self._thread.join(BOUND_S)
        assert self.error is None, self.error
        assert not self._thread.is_alive()
        return self.acknowledged


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as found:
        yield found


class Growing:
    """Brokers 1, 2, ... on this machine; each is started as in docs/cluster.md."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self.by_id: dict[int, BrokerProcess] = {}
        self.add()

    @property
    def bootstrap(self) -> str:
        return ",".join(one.bootstrap for one in self.by_id.values())

    def add(self) -> None:
        node_id = len(self.by_id) + 1
        config: dict[str, object] = {"node.id": node_id, "cluster.id": CLUSTER}
        if self.by_id:
            seeds = ",".join(f"{n}@{one.bootstrap}" for n, one in self.by_id.items())
            config["controller.quorum.bootstrap.servers"] = seeds
        broker = BrokerProcess(config=config)
        self.by_id[node_id] = self._stack.enter_context(broker)

    def described(self) -> ClusterDetail | None:
        try:
            with quiverlog.connect(self.bootstrap, request_timeout=5.0) as client:
                return client.describe_cluster()
        except QuiverlogError:
            return None

    def has_voters(self, count: int) -> bool:
        found = self.described()
        return found is not None and len(found.voters) == count

    def is_whole(self) -> bool:
        """Does every broker live, and every partition have all its copies?"""
        found = self.described()
        if found is None or found.controller is None:
            return False
        live = sum(not one.fenced for one in found.brokers)
        return live == len(self.by_id) and not (found.under_replicated or found.offline)


def read_ids(bootstrap: str, topic: str) -> Counter[int]:
    with quiverlog.connect(bootstrap) as client:
        batches = client.consumer(topic, start="earliest")
        return Counter(row["id"] for batch in batches for row in batch.data.to_pylist())


def quorum(growing: Growing, *words: str, code: int = 0) -> dict[str, Any]:
    """What `quiverlog quorum` prints, as JSON."""
    command = [sys.executable, "-m", "quiverlog", "quorum", *words, "-b", growing.bootstrap]
    run = subprocess.run(
        [*command, "--format", "json", "--timeout", "30"],
        capture_output=True, text=True, timeout=BOUND_S, check=False,
    )  # fmt: skip
    assert run.returncode == code, (words, run.stderr)
    return json.loads(run.stdout) if not code else {}


def shrinks_to_one_and_grows_again(growing: Growing) -> None:
    """The leader's own vote is taken four times; the former voter follows and keeps its data."""
    found = quorum(growing, "status")
    for left in (4, 3, 2, 1):
        leader = found["leader_id"]
        found = quorum(growing, "remove", str(leader))
        assert found["voters"] == left
        roles: Counter[str] = Counter()
        deadline = time.monotonic() + BOUND_S
        # Brokers without a vote are shown when they have reached the next leader.
        while roles["observer"] != len(growing.by_id) - left:
            assert time.monotonic() < deadline, roles
            found = quorum(growing, "status")
            roles = Counter(one["role"] for one in found["replicas"])
        assert found["leader_id"] != leader
        assert roles["leader"] == 1
    last = found["leader_id"]
    quorum(growing, "remove", str(last), code=1)
    until(growing.is_whole, "five brokers with one voter")
    growing.by_id[last].kill9()
    growing.by_id[last].start()
    until(growing.is_whole, "five brokers after the only voter was killed")
    assert growing.has_voters(1), "no removed voter was started anew"
    for count, node_id in enumerate((n for n in growing.by_id if n != last), start=2):
        if count <= 3:
            assert quorum(growing, "add", str(node_id))["voters"] == count
    assert growing.has_voters(3)


def test_one_grows_to_three_and_five_and_two_of_five_may_be_killed(stack: ExitStack) -> None:
    growing = Growing(stack)
    with quiverlog.connect(growing.bootstrap) as client:
        client.create_topic("old", SCHEMA)
    producing = Producing(growing.bootstrap, "old")
    for count in (3, 5):
        growing.add()
        growing.add()
        until(lambda: growing.has_voters(count), f"{count} voters")  # noqa: B023
    sent = producing.end()
    assert sent > 0
    assert read_ids(growing.bootstrap, "old") == Counter(range(sent))

    with quiverlog.connect(growing.bootstrap) as client:
        config = {"min.insync.replicas": "3", "durability": "replicated"}
        client.create_topic("spread", SCHEMA, replication_factor=5, config=config)
    until(growing.is_whole, "five copies")
    producing = Producing(growing.bootstrap, "spread")
    until(lambda: producing.acknowledged, "a row")
    found = growing.described()
    assert found is not None
    assert found.controller is not None
    killed = [found.controller, found.controller % 5 + 1]
    for node_id in killed:
        growing.by_id[node_id].kill9()
    before = producing.acknowledged
    until(lambda: producing.acknowledged >= before + ROWS_WHILE_KILLED, "rows without the two")
    found = growing.described()
    assert found is not None
    assert found.controller not in (None, *killed)
    for node_id in killed:
        growing.by_id[node_id].start()
    until(growing.is_whole, "all five again")
    assert growing.has_voters(5)
    shrinks_to_one_and_grows_again(growing)
    sent = producing.end()
    assert read_ids(growing.bootstrap, "spread") == Counter(range(sent))
    assert read_ids(growing.bootstrap, "old").total() > 0
    for one in growing.by_id.values():
        assert "internal error" not in one.log_text
        assert one.stop() == 0, one.log_text
