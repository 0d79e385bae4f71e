"""One leadership of a partition with a machine: service, group commit, failures, the end."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import pytest

from quiverlog.batch.codec import decode_batch, split_batches
from quiverlog.batch.evolution import SchemaHistory
from quiverlog.core.controller.records import PartitionChangeRecord
from quiverlog.errors import (
    BrokerShuttingDown,
    CoordinatorNotReady,
    DiskFull,
    NotLeader,
    OutcomeUnknown,
    QuiverlogError,
    StorageFault,
    ThrottledBroker,
    UnknownPartition,
    UnknownTopicId,
)
from quiverlog.node.partitions.replica import Replica
from quiverlog.node.runtime.events import Shutdown, Tick
from quiverlog.node.transactions import hosted as module
from quiverlog.node.transactions.hosted import LEISURE_US, Hosted
from quiverlog.storage.log.log import Log
from quiverlog.types import Durability
from quiverlog.wire import messages as m
from tests.support.counters import Counter, CounterDriver, CounterKind, Outcomes
from tests.support.node import SCHEMA

LEISURE_MS = LEISURE_US // 1000


class Counters:
    """A node that leads a partition of a topic with counters; it is served."""

    def __init__(self, tmp_path: Path, **configs: str) -> None:
        self.kind = CounterKind()
        self.node = CounterDriver(tmp_path, self.kind)
        self.outcomes = Outcomes(self.node)
        self.topic = self.node.create(durability="flushed", **configs)
        self.node.settle()

    @property
    def hosted(self) -> Hosted:
        return self.node.hosted(self.topic)

    @property
    def replica(self) -> Replica:
        return self.node.node.broker.replicas[self.topic, 0]

    @property
    def machine(self) -> Counter:
        return self.node.machine(self.topic)

    def propose(self, *numbers: int, level: int | None = None) -> None:
        self.outcomes.propose(self.hosted, *numbers, level=level)

    def lead(self, leader_id: int = 0, *, epoch: int) -> None:
        self.node.decide(PartitionChangeRecord(self.topic, 0, leader_id, leader_epoch=epoch))


@pytest.fixture
def counters(tmp_path: Path) -> Counters:
    return Counters(tmp_path)


# --- proposals -----------------------------------------------------------------------------------
def test_records_are_pended_at_once_and_applied_when_they_are_safe(counters: Counters) -> None:
    machine = counters.machine
    counters.propose(1, 2)
    assert machine.pending == [1, 2]
    counters.node.send(Tick())
    assert machine.pending == [1, 2]
    assert counters.outcomes.of(1, 2) is None
    counters.node.flush()
    assert machine.numbers == [1, 2]
    assert not machine.pending
    assert counters.outcomes.of(1, 2) == 0


def test_what_is_proposed_meanwhile_shares_the_next_append(counters: Counters) -> None:
    counters.propose(1)
    counters.node.send(Tick())
    counters.propose(2)
    counters.propose(3, 4)
    counters.node.send(Tick())
    assert counters.node.broker_end(counters.topic) == 1, "one append is under way at a time"
    counters.node.flush()
    assert counters.node.broker_end(counters.topic) == 4
    assert counters.outcomes.of(1) == 0
    assert counters.outcomes.of(2) is None
    counters.node.flush()
    assert (counters.outcomes.of(2), counters.outcomes.of(3, 4)) == (1, 2)
    assert [h.row_count for h in counters.node.headers(counters.topic)] == [1, 3]


def test_what_is_proposed_in_one_call_is_one_append(counters: Counters) -> None:
    for number in range(3):
        counters.propose(number)
    counters.node.settle()
    assert [h.row_count for h in counters.node.headers(counters.topic)] == [3]
    assert counters.outcomes.all == [((0,), 0), ((1,), 1), ((2,), 2)]


def test_a_caller_may_propose_where_its_last_record_is_safe(counters: Counters) -> None:
    found: list[int] = []

    def propose(offset: int, error: QuiverlogError | None, now: object) -> None:
        found.append(offset)
        if offset < 3:
            counters.hosted.propose([offset], counters.node.now, propose)

    counters.hosted.propose([7], counters.node.now, propose)
    counters.node.settle()
    assert found == [0, 1, 2, 3]
    assert counters.machine.numbers == [7, 0, 1, 2]


def test_without_records_it_waits_for_what_is_pending(counters: Counters) -> None:
    counters.propose()
    assert counters.outcomes.all == [((), -1)], "nothing is pending"
    counters.outcomes.all.clear()
    counters.propose(1)
    counters.propose()
    counters.node.send(Tick())
    counters.propose()
    counters.node.send(Tick())
    assert not counters.outcomes.all
    assert counters.node.broker_end(counters.topic) == 1
    counters.node.flush()
    assert counters.outcomes.all == [((1,), 0), ((), -1), ((), -1)]
    assert not counters.node.syncs


# --- at leisure -----------------------------------------------------------------------------------
def at_leisure(counters: Counters, *numbers: int) -> None:
    counters.outcomes.propose(counters.hosted, *numbers, at_leisure=True)


def test_a_record_that_no_answer_waits_for_is_appended_after_a_while(counters: Counters) -> None:
    at_leisure(counters, 1)
    counters.node.advance(LEISURE_MS // 2)
    at_leisure(counters, 2)
    assert counters.machine.pending == [1, 2]
    counters.node.advance(LEISURE_MS // 2 - 1)
    assert counters.node.broker_end(counters.topic) == 0
    counters.node.advance(1)
    assert counters.node.broker_end(counters.topic) == 2
    counters.node.settle()
    assert counters.outcomes.all == [((1,), 0), ((2,), 1)]
    at_leisure(counters, 3)
    counters.node.advance(LEISURE_MS - 1)
    counters.node.settle()
    assert counters.node.broker_end(counters.topic) == 2, "it has a while of its own"
    counters.node.advance(1)
    counters.node.settle()
    assert counters.outcomes.of(3) == 2


@pytest.mark.parametrize("numbers", [(7,), ()])
def test_it_is_appended_with_the_next_that_one_waits_for(
    counters: Counters, numbers: tuple[int, ...]
) -> None:
    at_leisure(counters, 1)
    counters.propose(*numbers)
    at_leisure(counters, 2)
    counters.node.settle()
    assert [h.row_count for h in counters.node.headers(counters.topic)] == [2 + len(numbers)]
    assert counters.machine.numbers == [1, *numbers, 2]


def test_it_waits_behind_an_append_that_is_under_way(counters: Counters) -> None:
    counters.propose(1)
    counters.node.send(Tick())
    at_leisure(counters, 2)
    counters.node.settle()
    assert counters.outcomes.of(1) == 0
    assert counters.outcomes.of(2) is None
    counters.node.advance(LEISURE_MS)
    counters.node.settle()
    assert counters.outcomes.of(2) == 1


def test_it_gets_its_outcome_when_the_leadership_ends(counters: Counters) -> None:
    at_leisure(counters, 1)
    counters.lead(epoch=5)
    ((numbers, outcome),) = counters.outcomes.all
    assert numbers == (1,)
    assert isinstance(outcome, NotLeader)
    counters.node.advance(LEISURE_MS)


def test_rows_are_ordinary_batches(counters: Counters) -> None:
    counters.propose(5, 6)
    counters.propose(7)
    counters.node.settle()
    _, body = counters.node.fetched(counters.topic)
    ((header, view),) = split_batches(memoryview(body))
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (-1, -1, -1)
    assert header.timestamp_max_us == counters.node.wall_us
    data = decode_batch(view, header, SchemaHistory({1: SCHEMA}))
    assert data.to_pydict() == {"n": [5, 6, 7]}


def test_levels_of_one_append(tmp_path: Path) -> None:
    """A partition of one replica: what asks for more is as safe as it can be."""
    counters = Counters(tmp_path)
    for level in (Durability.FLUSHED, Durability.REPLICATED, Durability.REPLICATED_FLUSHED):
        counters.propose(int(level), level=level)
        counters.node.send(Tick())
        assert counters.outcomes.of(level) is None
        counters.node.flush()
        assert counters.outcomes.of(level) == level - 1


# --- bounds --------------------------------------------------------------------------------------
def bound(monkeypatch: pytest.MonkeyPatch, name: str, value: int) -> None:
    monkeypatch.setattr(module, name, value)


def refused(counters: Counters, *numbers: int) -> bool:
    """Whether there is no room for these; then nothing of them is pended."""
    before = list(counters.machine.pending)
    try:
        counters.propose(*numbers)
    except ThrottledBroker:
        assert counters.machine.pending == before
        return True
    return False


@pytest.mark.parametrize(
    ("name", "one"),
    [("PENDING_RECORDS_MAX", 1), ("PENDING_BYTES_MAX", module.bytes_of((1,)))],
)
def test_what_may_wait_is_bounded(
    counters: Counters, monkeypatch: pytest.MonkeyPatch, name: str, one: int
) -> None:
    bound(monkeypatch, name, 4 * one)
    assert not refused(counters, 1, 2)
    counters.node.send(Tick())  # Under way, the others in the queue: both count.
    assert refused(counters, 3, 4, 5)
    assert not refused(counters, 3)
    assert not refused(counters, 4)
    assert refused(counters, 5)
    counters.node.settle()
    assert not refused(counters, 5, 6, 7, 8)
    counters.node.settle()
    assert refused(counters, *range(5))
    assert counters.machine.numbers == [1, 2, 3, 4, 5, 6, 7, 8]


def test_waiters_are_bounded(counters: Counters, monkeypatch: pytest.MonkeyPatch) -> None:
    bound(monkeypatch, "PENDING_WAITERS_MAX", 3)
    assert not refused(counters, 1)
    assert not refused(counters)
    assert not refused(counters, 2)
    assert refused(counters, 3)
    assert refused(counters)
    counters.node.settle()
    assert not refused(counters, 3)


@pytest.mark.parametrize(
    ("name", "one"), [("APPEND_RECORDS_MAX", 1), ("APPEND_BYTES_MAX", module.bytes_of((1,)))]
)
def test_an_append_is_bounded(
    counters: Counters, monkeypatch: pytest.MonkeyPatch, name: str, one: int
) -> None:
    bound(monkeypatch, name, 3 * one)
    for numbers in ((1, 2), (3,), (4,), (5, 6, 7, 8), (9,)):
        counters.propose(*numbers)
    counters.propose()
    counters.node.settle()
    found = [h.row_count for h in counters.node.headers(counters.topic)]
    assert found == [3, 1, 4, 1], "a proposal is one append, also where it is larger"
    assert counters.outcomes.all[-1] == ((), -1)


# --- not serving ---------------------------------------------------------------------------------
def test_it_does_not_serve_before_it_has_replayed(counters: Counters) -> None:
    counters.propose(1)
    counters.node.settle()
    counters.node.holds_replays = True
    counters.lead(epoch=5)
    counters.node.settle()
    with pytest.raises(CoordinatorNotReady):
        counters.hosted.serve()
    with pytest.raises(CoordinatorNotReady):
        counters.propose(2)
    counters.node.replay()
    assert counters.machine.numbers == [1]
    assert not counters.outcomes.of(2)


def test_partitions_that_are_not_hosted(counters: Counters) -> None:
    other = counters.node.create("other")
    find = counters.node.node.broker.transactions.find
    with pytest.raises(CoordinatorNotReady):
        find(other, 0)
    with pytest.raises(UnknownPartition):
        find(counters.topic, 1)
    with pytest.raises(UnknownTopicId):
        find(bytes(16), 0)


def test_another_leader_epoch(counters: Counters) -> None:
    first = counters.hosted
    counters.propose(1)
    counters.propose(2)
    counters.node.send(Tick())
    counters.propose(3)
    counters.lead(epoch=5)
    assert counters.outcomes.of(1) is OutcomeUnknown
    assert counters.outcomes.of(2) is OutcomeUnknown
    assert counters.outcomes.of(3) is NotLeader
    assert len(counters.kind.stops) == 1
    with pytest.raises(NotLeader):
        first.serve()
    with pytest.raises(NotLeader):
        first.propose([4], counters.node.now, lambda *_: None)
    counters.node.settle()
    assert counters.hosted is not first
    assert counters.machine.numbers == [1, 2], "it is in the log, and safe"
    assert len(counters.outcomes.all) == 3
    assert counters.hosted.leader_epoch == 5


def test_a_topic_that_is_deleted(counters: Counters) -> None:
    hosted = counters.hosted
    counters.propose(1)
    counters.node.send(Tick())
    counters.propose(2)
    counters.node.call(m.DeleteTopicsRequest(names=["t"]))
    assert counters.outcomes.of(1) is UnknownTopicId
    assert counters.outcomes.of(2) is UnknownTopicId
    assert len(counters.kind.stops) == 1
    with pytest.raises(UnknownTopicId):
        hosted.serve()
    with pytest.raises(UnknownTopicId):
        assert counters.hosted
    counters.node.settle()
    assert len(counters.outcomes.all) == 2


def test_a_stop_fails_what_waits(counters: Counters) -> None:
    hosted = counters.hosted
    counters.propose(1)
    counters.node.send(Tick())
    counters.propose(2)
    counters.node.send(Shutdown())
    assert counters.outcomes.of(1) is OutcomeUnknown
    assert counters.outcomes.of(2) is BrokerShuttingDown
    with pytest.raises(BrokerShuttingDown):
        hosted.serve()
    assert len(counters.kind.stops) == 1
    counters.node.stop()
    assert len(counters.outcomes.all) == 2


def test_a_stop_in_the_middle_of_a_replay(counters: Counters) -> None:
    counters.propose(1)
    counters.node.settle()
    counters.node.holds_replays = True
    counters.lead(epoch=5)
    counters.node.settle()
    counters.node.send(Shutdown())
    assert not counters.node.shut_down, "a job is not back"
    counters.node.replay()
    assert not counters.node.replays
    counters.node.stop()
    assert len(counters.kind.serves) == 1


# --- appends that fail ---------------------------------------------------------------------------
@pytest.mark.parametrize("failure", [DiskFull(), ThrottledBroker()], ids=lambda f: type(f).__name__)
def test_nothing_was_stored(counters: Counters, failure: QuiverlogError) -> None:
    machine = counters.machine
    counters.propose(1)
    counters.node.send(Tick())
    counters.propose(2)
    counters.node.flush()
    counters.propose(3)
    with mock.patch.object(Log, "append", side_effect=failure):
        counters.node.settle()
    assert counters.outcomes.of(2) == 1
    assert counters.outcomes.of(3) is type(failure)
    assert not machine.pending
    counters.node.disk_space(2**40)
    assert counters.machine is machine, "it is as it was: no replay"
    counters.propose(4)
    counters.node.settle()
    assert machine.numbers == [1, 2, 4]


def test_what_was_proposed_behind_an_append_that_is_refused(counters: Counters) -> None:
    counters.propose(1)
    counters.propose(2)
    with (
        mock.patch.object(module, "APPEND_RECORDS_MAX", 1),
        mock.patch.object(Log, "append", side_effect=DiskFull()),
    ):
        counters.node.send(Tick())
    assert (counters.outcomes.of(1), counters.outcomes.of(2)) == (DiskFull, DiskFull)
    assert not counters.machine.pending
    assert counters.node.broker_end(counters.topic) == 0


def test_a_full_disk_is_seen_before_anything_is_pended(counters: Counters) -> None:
    counters.node.disk_space(0)
    counters.node.node.broker.admission.disk_filled()
    with pytest.raises(DiskFull):
        counters.propose(1)
    assert not counters.machine.pending
    counters.propose()
    assert counters.outcomes.all == [((), -1)]


@pytest.mark.parametrize(
    "fail",
    [
        lambda counters: counters.node.flush(OSError(errno.EIO, "bad disk")),
        lambda counters: counters.replica.answers.fail(StorageFault(), counters.node.now),
    ],
    ids=["flush", "fault"],
)
def test_the_outcome_is_unknown(counters: Counters, fail: Callable[[Counters], None]) -> None:
    machine = counters.machine
    counters.propose(1)
    counters.node.send(Tick())
    counters.propose(2)
    counters.propose()
    fail(counters)
    assert counters.outcomes.of(1) is OutcomeUnknown
    assert counters.outcomes.of(2) is OutcomeUnknown
    assert [type(error) for _, error in counters.outcomes.all] == [OutcomeUnknown] * 3
    assert len(counters.kind.stops) == 1
    assert machine.numbers == []
    counters.node.advance(10_000)
    counters.node.settle()
    replica = counters.replica
    if replica.fault is None:
        assert counters.machine is not machine
        assert counters.machine.numbers == [1]
    else:
        with pytest.raises(CoordinatorNotReady):
            counters.hosted.serve()
    assert len(counters.outcomes.all) == 3


def test_the_write_fails(counters: Counters) -> None:
    counters.propose(1)
    with mock.patch.object(Log, "append", side_effect=OSError(errno.EIO, "bad disk")):
        counters.node.send(Tick())
    assert counters.outcomes.of(1) is OutcomeUnknown, "a restart may find the rows"
    counters.node.advance(10_000)
    with pytest.raises(CoordinatorNotReady):
        counters.hosted.serve()


def test_a_fault_is_met_before_anything_is_pended(counters: Counters) -> None:
    broker = counters.node.node.broker
    broker.flushes.declare_fault(counters.replica, "bad disk", counters.node.now)
    with pytest.raises(StorageFault):
        counters.propose(1)
    assert not counters.machine.pending


# --- bugs ----------------------------------------------------------------------------------------
def bugs(counters: Counters) -> int:
    found = counters.node.metrics.internal_errors
    counters.node.metrics.internal_errors = 0
    return found


def test_a_caller_that_raises(counters: Counters) -> None:
    def then(*_: object) -> None:
        raise RuntimeError("a bug")

    counters.hosted.propose([1], counters.node.now, then)
    counters.propose(2)
    counters.node.settle()
    assert counters.outcomes.of(2) == 1
    assert counters.machine.numbers == [1, 2]
    assert bugs(counters) == 1


@pytest.mark.parametrize("method", ["pend", "apply"])
def test_a_machine_that_raises(counters: Counters, method: str) -> None:
    machine = counters.machine
    counters.propose(1)
    counters.node.send(Tick())
    with mock.patch.object(machine, method, side_effect=RuntimeError("a bug"), create=True):
        if method == "pend":
            with pytest.raises(QuiverlogError):
                counters.propose(2)
        counters.node.flush()
    assert counters.outcomes.of(1) is OutcomeUnknown
    assert not counters.outcomes.of(2)
    assert len(counters.kind.stops) == 1
    counters.node.settle()
    assert counters.machine is not machine
    assert counters.machine.numbers == [1]
    assert bugs(counters) == 1


def test_rows_that_cannot_be_made(counters: Counters) -> None:
    with pytest.raises(TypeError):
        counters.hosted.propose(None, counters.node.now, lambda *_: None)  # type: ignore[arg-type]
    with mock.patch.object(module, "encode_rows", side_effect=RuntimeError("a bug")):
        counters.propose(1)
        counters.node.settle()
    assert counters.outcomes.of(1) is OutcomeUnknown
    assert counters.machine.numbers == []
    counters.propose(2)
    counters.node.settle()
    assert counters.machine.numbers == [2]


@pytest.mark.parametrize("method", ["serving", "stopped"])
def test_a_kind_that_raises(counters: Counters, method: str) -> None:
    with mock.patch.object(CounterKind, method, side_effect=RuntimeError("a bug")):
        counters.lead(epoch=5)
        counters.node.settle()
    assert bugs(counters) == 1
    if method == "serving":
        with pytest.raises(CoordinatorNotReady):
            counters.hosted.serve()
        counters.lead(epoch=6)
        counters.node.settle()
    assert counters.machine.numbers == []
