"""Rows that a client stages and never commits: they go, and their room on the disks comes back."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from quiverlog.errors import TransactionClosed, TransactionFenced
from quiverlog.limits import MIB
from tests.support.broker import BrokerProcess
from tests.support.raw_transactions import RawTransactor
from tests.support.until import until

from .test_broker_five_voters import CLUSTER, Growing

pytestmark = pytest.mark.process

HASTY = Path(__file__).parents[1] / "support" / "hasty_broker.py"


class Hasty(Growing):
    def add(self) -> None:
        node_id = len(self.by_id) + 1
        config: dict[str, object] = {"node.id": node_id, "cluster.id": CLUSTER}
        if self.by_id:
            seeds = ",".join(f"{n}@{one.bootstrap}" for n, one in self.by_id.items())
            config["controller.quorum.bootstrap.servers"] = seeds
        broker = BrokerProcess(config=config, command=(sys.executable, str(HASTY), "broker"))
        self.by_id[node_id] = self._stack.enter_context(broker)

    def staged_bytes(self) -> int:
        """On the disks of all brokers."""
        found = 0
        for broker in self.by_id.values():
            for path in broker.data_dir.glob("data/__staged-*/*.log"):
                try:
                    found += path.stat().st_size
                except FileNotFoundError:
                    continue
        return found


@pytest.fixture
def brokers() -> Iterator[Hasty]:
    with ExitStack() as stack:
        brokers = Hasty(stack)
        for _ in range(3):
            brokers.add()
        until(lambda: brokers.is_whole(), "all brokers")
        yield brokers


def test_rows_of_a_client_that_vanished_go(brokers: Hasty) -> None:
    count = len(brokers.by_id)
    with RawTransactor(brokers.bootstrap) as client:
        client.create("a", 1, count)
        silent = client.open("silent", b"one", timeout_ms=1_000).epoch
        alive = client.open("alive", b"one").epoch
        part = client.stage("silent", silent, 0, [("a", 0, 0, 100_000)])
        for n in range(3):
            # As if its id had been forgotten, or never been opened.
            client.stage(f"unknown-{n}", 7, 0, [("a", 0, 0, 100_000)])
        staged = client.stage("alive", alive, 0, [("a", 0, 0, 10)])
        before = brokers.staged_bytes()
        assert before > count * 5 * MIB
        until(lambda: brokers.staged_bytes() < before // 3, "room on the disks")
        # What is alive keeps its rows, though they were silent for as long.
        assert client.open("alive", b"one").epoch == alive
        done = client.commit("alive", alive, 0, staged)
        assert (done.outcome, done.row_count, done.is_published) == (0, 10, True)
        # Those that went can never be committed: that was recorded first.
        with pytest.raises((TransactionClosed, TransactionFenced)):
            client.commit("silent", silent, 0, part)
        assert client.open("silent", b"one").epoch == silent + 2
        assert client.open("unknown-0", b"one").epoch == 9
        assert client.read("a", 0) == list(range(10))
        until(lambda: brokers.staged_bytes() < count * 2 * MIB, "the newest file alone")
