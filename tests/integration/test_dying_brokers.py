"""Brokers that die at each step of a transaction: what it promises, and what is left behind."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

import quiverlog
from quiverlog.core.controller.internal_topics import STAGED, TRANSACTIONS
from quiverlog.errors import QuiverlogError
from quiverlog.wire.messages import (
    EARLIEST,
    LATEST,
    ListOffsetsPartition,
    ListOffsetsRequest,
)
from tests.support.broker import BrokerProcess
from tests.support.dying_broker import POINTS, SILENCE_S
from tests.support.raw_transactions import RawTransactor, Staged
from tests.support.until import slack, until

pytestmark = pytest.mark.process

DYING = Path(__file__).parents[1] / "support" / "dying_broker.py"
TARGETS = [("a", 0), ("a", 1), ("a", 2), ("a", 3), ("b", 0)]
LEFT_S = 10.0
"""In which all that was staged is given up: what is silent is asked for, and log starts move."""
SEQUENCES_MAX = 100
POINT = "one-of-two-targets"
"""For `make test`, beside half a snapshot and another broker; the others are long."""


class Dying:
    """Brokers that die at points named by files of `place`; a thread starts those that died."""

    def __init__(self, stack: ExitStack, place: Path, count: int) -> None:
        self.place = place
        self.brokers: list[BrokerProcess] = []
        self.deaths = 0
        self._over = threading.Event()
        self._problems: list[str] = []
        for node_id in range(1, count + 1):
            config: dict[str, object] = {"node.id": node_id, "cluster.id": "dying"}
            if self.brokers:
                seeds = [f"{n}@{one.bootstrap}" for n, one in enumerate(self.brokers, 1)]
                config["controller.quorum.bootstrap.servers"] = ",".join(seeds)
            command = (sys.executable, str(DYING), str(place), "broker")
            self.brokers.append(stack.enter_context(BrokerProcess(config=config, command=command)))
        until(self.is_whole, "all brokers vote")
        self._thread = threading.Thread(target=self._revive, daemon=True)
        self._thread.start()
        stack.callback(self._end)

    @property
    def bootstrap(self) -> str:
        return ",".join(one.bootstrap for one in self.brokers)

    def is_whole(self) -> bool:
        try:
            with quiverlog.connect(self.bootstrap, request_timeout=5.0) as client:
                found = client.describe_cluster()
        except QuiverlogError:
            return False
        live = [one for one in found.brokers if not one.fenced]
        return len(live) == len(found.voters) == len(self.brokers)

    def die_at(self, point: str) -> None:
        (self.place / point).touch()

    def _revive(self) -> None:
        while not self._over.wait(0.01):
            for broker in self.brokers:
                if broker.has_ended:
                    code = broker.wait()
                    if code != -signal.SIGKILL:
                        self._problems.append(f"exit code {code}")
                    broker.start()
                    self.deaths += 1

    def _end(self) -> None:
        self._over.set()
        self._thread.join(60)

    def wrong(self) -> list[str]:
        """What no broker may log."""
        texts = [one.log_text for one in self.brokers]
        logged = [text for text in texts if "internal error" in text or "Traceback" in text]
        return self._problems + logged


@contextlib.contextmanager
def brokers_that_die(place: Path, count: int) -> Iterator[Dying]:
    with ExitStack() as stack:
        dying = Dying(stack, place, count)
        with RawTransactor(dying.bootstrap) as client:
            client.create("a", 4, count)
            client.create("b", 2, count)
        yield dying


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dying]:
    with brokers_that_die(tmp_path_factory.mktemp("points"), 1) as dying:
        yield dying


class Program:
    """One id, and the rows that its transactions were promised."""

    def __init__(self, client: RawTransactor) -> None:
        self.client = client
        self.tid = "app-" + os.urandom(4).hex()
        self._first = self._next = int.from_bytes(os.urandom(4), "big") << 16
        self._epoch = client.open(self.tid, b"one").epoch
        self._sequence = 0
        self.promised: list[int] = []

    def _stage(self) -> tuple[int, Staged]:
        first, self._next = self._next, self._next + 2
        targets = [(*target, first, 2) for target in TARGETS]
        return first, self.client.stage(self.tid, self._epoch, self._sequence, targets)

    def commit(self) -> None:
        """One transaction whose winner is published, with a loser beside it."""
        self._stage()
        first, winner = self._stage()
        done = self.client.commit(
            self.tid, self._epoch, self._sequence, winner, wait=self._sequence % 2
        )
        assert done.row_count == 2 * len(TARGETS)
        self.promised += [first, first + 1]
        self._sequence += 1

    def abort(self) -> None:
        self._stage()
        assert self.client.abort(self.tid, self._epoch, self._sequence).outcome == 0
        self._epoch = self.client.open(self.tid, b"one").epoch

    def leave(self) -> None:
        """Wait until the last transaction is published."""
        done = self.client.commit(self.tid, self._epoch, self._sequence)
        assert done.is_published
        opened = self.client.open(self.tid, b"one")
        assert (opened.last_sequence, opened.is_publishing) == (self._sequence, False)

    def stored(self) -> list[list[int]]:
        found = [self.client.read(*target) for target in TARGETS]
        return [[one for one in ids if self._first <= one < self._first + 2**16] for ids in found]


def log_ends(client: RawTransactor, name: str) -> list[tuple[int, int]]:
    """Log start and end of each partition."""
    topic, count = client.topics[name], len(client.topics[name].partitions)
    found = []
    for partition in range(count):
        entries = [
            ListOffsetsPartition(topic.topic_id, partition, at=at) for at in (EARLIEST, LATEST)
        ]
        request = ListOffsetsRequest(partitions=entries)
        start, end = client.ask_leader(name, partition, request).partitions
        assert not start.error_code, start.error_message
        found.append((start.offset, end.offset))
    return found


def is_left_empty(client: RawTransactor) -> bool:
    with contextlib.suppress(QuiverlogError):
        client.refresh()
        return all(start == end for start, end in log_ends(client, STAGED))
    return False


def die_at(dying: Dying, point: str) -> None:
    """A broker dies in a transaction: its rows are published once, and nothing is left behind."""
    deaths = dying.deaths
    with RawTransactor(dying.bootstrap) as client:
        programs = program, other = Program(client), Program(client)
        program.commit()
        other.abort()
        dying.die_at(point)
        for _ in range(SEQUENCES_MAX):
            program.commit()
            if not (dying.place / point).exists():
                break
        until(lambda: dying.deaths > deaths, "a broker dies, and is back")
        other.commit()
        other.abort()
        program.commit()
        for one in programs:
            one.leave()
            assert one.stored() == [one.promised] * len(TARGETS)
        bound_s = (SILENCE_S + LEFT_S) * slack()
        until(lambda: is_left_empty(client), "all that was staged is given up", timeout_s=bound_s)
        for one in programs:
            assert one.stored() == [one.promised] * len(TARGETS)
        with quiverlog.connect(dying.bootstrap) as shipped:
            for one in programs:
                assert not shipped.describe_transaction(one.tid).waits
    assert dying.wrong() == []
    assert dying.deaths == deaths + 1


@pytest.mark.parametrize(
    "point",
    [
        POINT,
        *(
            pytest.param(one, marks=pytest.mark.long)
            for one in POINTS
            if one not in ("snapshot-half", POINT)
        ),
    ],
)
def test_a_broker_that_dies_leaves_nothing_behind(one: Dying, point: str) -> None:
    die_at(one, point)


def test_half_a_snapshot_counts_for_nothing(one: Dying) -> None:
    """The next one is whole: the rows before it go, and a broker begins with it."""
    die_at(one, "snapshot-half")
    with RawTransactor(one.bootstrap) as client:
        program = Program(client)
        partition = client.coordinator_of(program.tid)

        def start() -> int:
            return log_ends(client, TRANSACTIONS)[partition][0]

        before = start()
        for _ in range(SEQUENCES_MAX):
            program.commit()
            if start() > before:
                break
        assert start() > before
        one.brokers[0].signal(signal.SIGKILL)
        program.commit()
        program.leave()
        assert program.stored() == [program.promised] * len(TARGETS)
    assert one.wrong() == []


def test_another_broker_goes_on(tmp_path: Path) -> None:
    with brokers_that_die(tmp_path, 3) as three:
        die_at(three, "publish-row-not-forwarded")
