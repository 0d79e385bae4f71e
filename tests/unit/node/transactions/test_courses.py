"""Random courses of a hosted partition: elections, appends that fail, snapshots, pieces of replay.

Always: a machine that serves has what lies in the log, and with it all that was answered as safe
and nothing of what was answered as refused; each proposal has one outcome.
"""

from __future__ import annotations

import errno
import random
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import pytest

from quiverlog.batch.codec import decode_batch, split_batches
from quiverlog.batch.evolution import SchemaHistory
from quiverlog.core.controller.records import PartitionChangeRecord
from quiverlog.errors import (
    CoordinatorNotReady,
    DiskFull,
    NotEnoughReplicas,
    NotLeader,
    OutcomeUnknown,
    QuiverlogError,
    StorageFault,
    ThrottledBroker,
)
from quiverlog.node.partitions.replica import Replica
from quiverlog.node.runtime.events import Tick
from quiverlog.node.transactions import hosted as module
from quiverlog.node.transactions import replay
from quiverlog.storage.log.log import Log
from tests.support.counters import BEGIN, END, CounterDriver, CounterKind
from tests.support.node import SCHEMA
from tests.unit.node.replication.test_in_sync import COPY, OTHER
from tests.unit.node.transactions.test_safe_before_serving import Copied

SEEDS = 8
STEPS = 120
REFUSED = (CoordinatorNotReady, NotLeader, ThrottledBroker, NotEnoughReplicas, DiskFull)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SNAPSHOT_LOG_BYTES_MIN", 1_500)
    monkeypatch.setattr(module, "_SNAPSHOT_PIECE_RECORDS", 4)
    monkeypatch.setattr(module, "PENDING_RECORDS_MAX", 12)
    monkeypatch.setattr(module, "APPEND_RECORDS_MAX", 4)
    monkeypatch.setattr(module, "APPLY_RECORDS", 3)
    monkeypatch.setattr(replay, "PIECE_RECORDS", 3)
    monkeypatch.setattr(CounterKind, "takes_snapshots", True)


class Course:
    """`safe`, `refused`, `unknown`: numbers by their outcome."""

    def __init__(self, node: CounterDriver, topic: bytes, seed: int) -> None:
        self.dice = random.Random(seed)
        self.node = node
        self.topic = topic
        self.node.holds_replays = True
        self.next = 0
        self.open: set[int] = set()
        self.safe: set[int] = set()
        self.refused: set[int] = set()
        self.unknown: set[int] = set()
        self.checked = 0

    @property
    def leads(self) -> bool:
        return (self.topic, 0) in self.node.node.broker.replicas

    @property
    def replica(self) -> Replica:
        return self.node.node.broker.replicas[self.topic, 0]

    @property
    def is_served(self) -> bool:
        try:
            self.node.machine(self.topic)
        except (CoordinatorNotReady, NotLeader):
            return False
        return True

    @property
    def epoch(self) -> int:
        image = self.node.node.broker.metadata.image
        return image.topics_by_id[self.topic].partitions[0].leader_epoch

    # --- steps -----------------------------------------------------------------------------------
    def propose(self) -> None:
        numbers = list(range(self.next, self.next + self.dice.randint(0, 3)))
        self.next += len(numbers)
        mark = self.next = self.next + 1  # Of the proposal, also where it has no records.
        outcomes: list[object] = []

        def then(offset: int, error: QuiverlogError | None, now: object) -> None:
            outcomes.append(error)
            assert len(outcomes) == 1, "one outcome"
            self.open.remove(mark)
            if error is None:
                assert (offset >= 0) == bool(numbers)
                self.safe.update(numbers)
            elif isinstance(error, OutcomeUnknown):
                self.unknown.update(numbers)
            else:
                assert isinstance(error, REFUSED)
                self.refused.update(numbers)

        self.open.add(mark)
        try:
            self.node.hosted(self.topic).propose(numbers, self.node.now, then)
        except REFUSED:
            assert not outcomes
            self.open.remove(mark)
            self.refused.update(numbers)

    def turn(self) -> None:
        self.node.send(Tick())

    def flush(self) -> None:
        self.node.flush()

    def replay(self) -> None:
        if self.node.replays:
            failed = self.dice.random() < 0.1
            self.node.replay(OSError(errno.EMFILE, "it fails") if failed else None)

    def advance(self) -> None:
        self.node.advance(self.dice.choice((10, 60, 500, 2_500)))

    def elect(self, leader_id: int = 0) -> None:
        self.node.decide(
            PartitionChangeRecord(self.topic, 0, leader_id, leader_epoch=self.epoch + 1)
        )

    def fail_append(self) -> None:
        with mock.patch.object(
            Log, "append", side_effect=self.dice.choice((DiskFull(), ThrottledBroker()))
        ):
            self.turn()
        self.node.disk_space(2**40)

    def steps(self) -> dict[Callable[[], None], float]:
        """What may be done, and how often."""
        return {
            self.propose: 10, self.turn: 6, self.flush: 6, self.replay: 10, self.advance: 3,
            self.elect: 1, self.fail_append: 1,
        }  # fmt: skip

    def run(self, count: int) -> None:
        steps = self.steps()
        for _ in range(count):
            self.dice.choices(list(steps), list(steps.values()))[0]()
            self.check()

    def end(self) -> None:
        """Serve at last: then all have their outcomes."""
        for _ in range(200):
            self.settle()
            self.node.advance(500)
        self.check()
        assert self.is_served
        assert not self.open

    def settle(self) -> None:
        self.node.settle()
        if self.node.replays:
            self.node.replay()

    # --- checks ----------------------------------------------------------------------------------
    def check(self) -> None:
        assert not self.node.metrics.internal_errors, self.node.lines[-1]
        if not self.is_served:
            return
        machine = self.node.machine(self.topic)
        numbers = set(machine.numbers)
        assert len(numbers) == len(machine.numbers), "each once"
        assert numbers >= self.safe
        assert not numbers & self.refused
        end = machine.offsets[-1] + 1 if machine.offsets else 0
        assert end <= self.safe_end
        if not machine.pending:
            assert machine.numbers == self.in_log()
            self.checked += 1

    @property
    def safe_end(self) -> int:
        state = self.replica.state
        return min(state.high_watermark, state.replicas_flushed_offset)

    def in_log(self) -> list[int]:
        """The numbers in the order in which a replay by the rule gives them."""
        log = self.replica.log.reader
        found: list[int] = []
        for view in log.read(log.log_start_offset, bytes_max=2**30, end_offset=log.log_end_offset):
            for header, one in split_batches(view):
                first = max(0, log.log_start_offset - header.base_offset)
                data = decode_batch(one, header, SchemaHistory({1: SCHEMA}), start=first)
                found += data.column(0).to_pylist()
        numbers: list[int] = []
        if found[:1] == [BEGIN]:
            assert END in found, "the log start moves when a snapshot is whole"
            numbers = [-10 - n for n in found[: found.index(END)] if n <= -10]
        return numbers + [n for n in found if n >= 0]


class Replicated(Course):
    """Three replicas. `held`: by follower, the ends of its rows and of those on its disk."""

    def __init__(self, tmp_path: Path, seed: int) -> None:
        self.copied = Copied(tmp_path)
        super().__init__(self.copied.node, self.copied.cluster.topic, seed)
        self.held = {COPY: (0, 0), OTHER: (0, 0)}

    def copy(self) -> None:
        if self.leads:
            end = self.replica.state.log_end_offset
            for one in (COPY, OTHER):
                has, flushed = self.held[one]
                has = self.dice.choice((end, self.dice.randint(has, end)))
                flushed = self.dice.choice((has, flushed))
                self.held[one] = (has, flushed)
                self.copied.copy(one, end=has, flushed=flushed)

    def elect_another(self) -> None:
        """Nothing is written there."""
        self.elect(COPY)

    def fail_copies(self) -> None:
        if self.leads:
            self.replica.fail_replicated(StorageFault("in a test"), self.node.now)

    def steps(self) -> dict[Callable[[], None], float]:
        more = {self.copy: 8, self.elect_another: 0.5, self.fail_copies: 0.5}
        return {**super().steps(), **more}

    def settle(self) -> None:
        if not self.leads:
            self.elect()
        super().settle()
        self.copied.copy(COPY, OTHER)


class Alone(Course):
    """One replica, whose process and whose disk fail."""

    def __init__(self, tmp_path: Path, seed: int) -> None:
        node = CounterDriver(tmp_path, CounterKind())
        super().__init__(node, node.create(durability="flushed"), seed)

    def crash(self) -> None:
        """What waits for an outcome gets none: its callers' connections are gone."""
        self.open.clear()
        self.node.crash()

    def fail_flush(self) -> None:
        """Nothing is acknowledged before a restart."""
        self.node.flush(OSError(errno.EIO, "bad disk"))
        if self.leads and self.replica.fault is not None:
            assert not self.is_served or not self.node.machine(self.topic).pending
            self.turn()
            self.crash()

    @property
    def safe_end(self) -> int:
        return self.replica.state.flushed_offset

    def steps(self) -> dict[Callable[[], None], float]:
        return {**super().steps(), self.crash: 2, self.fail_flush: 1}


@pytest.mark.parametrize("kind", [Replicated, Alone])
@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_random_course(tmp_path: Path, seed: int, kind: type[Replicated] | type[Alone]) -> None:
    course = kind(tmp_path, seed)
    course.run(STEPS)
    course.end()
    assert course.checked > 0
