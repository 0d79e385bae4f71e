"""Copies that led for a moment, without a row, and follow a leader whose rows are older."""

from __future__ import annotations

from pathlib import Path

from quiverlog.core.replication.follower import Cut, Follower, Phase, Take
from quiverlog.types import Durability
from quiverlog.wire import messages as m
from quiverlog.wire.replica_messages import ReplicaFetchResult
from tests.support.copies import COPY, LEADER, Copies
from tests.support.node import batch_of
from tests.support.replication import ModelLog


def answered(log: ModelLog) -> Follower:
    """A copy whose leader, of epoch 9, has agreed with it."""
    follower = Follower(log)
    follower.led_by(9, has_leader=True)
    agreed = ReplicaFetchResult(b"topic", 0, leader_epoch=9)
    assert isinstance(follower.answered(agreed, 0), Take)
    return follower


def log_of(*epochs: int) -> ModelLog:
    """A log with a row of each of these epochs."""
    log = ModelLog()
    log.append((epoch, n) for n, epoch in enumerate(epochs))
    return log


def test_a_copy_that_has_led_without_a_row_takes_rows_of_older_leaders() -> None:
    """Elected before it had any, and deposed by a replica that was in sync all the time: those
    rows count."""
    log = ModelLog()
    log.epochs.assign(7, 0)
    follower = answered(log)
    assert follower.rows_of(3) == Cut(0)
    assert not follower.may_fetch
    log.cut(0)
    follower.cut()
    assert follower.phase is Phase.ASKING
    assert answered(log).rows_of(3) is None
    log.append([(3, 0)])
    assert log.epochs.entries() == [(3, 0)]


def test_rows_that_fit_and_epochs_of_rows_that_are_gone_are_left() -> None:
    for log, epoch in ((log_of(3), 3), (log_of(), 3), (log_of(3, 7), 5)):
        follower = answered(log)
        assert follower.rows_of(epoch) is None
        assert follower.phase is Phase.FETCHING
    trimmed = log_of(7)
    trimmed.log_start_offset = 1
    assert answered(trimmed).rows_of(3) is None, "the epoch is of rows that were given up"


def test_rows_of_an_older_leader_are_copied_by_a_former_leader_without_any(tmp_path: Path) -> None:
    """The leader stops with rows that no follower has copied, another one is elected, and then it
    is again: in sync all the time, for nothing was readable."""
    copies = Copies(tmp_path)
    copies.leader.call(m.HelloRequest())
    copies.settle()
    copies.break_off()
    copies.leader.produce(copies.topic, batch_of([1, 2, 3]), durability=int(Durability.MEMORY))
    copies.change(copies.copy, leader_id=COPY, leader_epoch=4)
    assert copies.replica.log.epochs.entries() == [(4, 0)]
    copies.change(leader_id=LEADER, leader_epoch=5)
    copies.later(1_000)
    assert copies.replica.log.log_end_offset == 3
    assert copies.replica.log.epochs.entries()[0] == (3, 0)
    assert not [line for line in copies.copy.lines if line.event == "copy refused"]
