"""No work per tick, or per wake, grows with all partitions: only with those that moved."""

from __future__ import annotations

import sys
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from quiverlog.batch.schema import serialize_schema
from quiverlog.node.assignment.assignment import Assignment
from quiverlog.node.controller.membership import Membership
from quiverlog.types import Now
from quiverlog.wire import messages as m
from tests.support.members import Member, Members
from tests.support.node import SCHEMA, batch_of

FEW, MANY = 6, 36  # Each broker leads some, so that each asks each
IDLE_MS = 500
STEPS_MAX = 50
"""For each partition and half a second. A loop over all of them in each tick takes hundreds."""
PARTS = ("/quiverlog/node/", "/quiverlog/core/", "/quiverlog/storage/")


class Counter:
    """Counts the steps of Python's machine in what a node is made of, comprehensions included."""

    def __init__(self) -> None:
        self.steps = 0

    def __enter__(self) -> Counter:
        sys._getframe().f_trace_opcodes = True  # From Python 3.12 on: before tracing begins.
        sys.settrace(self._called)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)

    def _called(self, frame: FrameType, _event: str, _argument: Any) -> Any:
        if not any(part in frame.f_code.co_filename for part in PARTS):
            return None
        frame.f_trace_lines, frame.f_trace_opcodes = False, True
        return self._stepped

    def _stepped(self, _frame: FrameType, event: str, _argument: Any) -> Any:
        self.steps += event == "opcode"
        return self._stepped


def cluster(root: Path, partitions: int) -> tuple[Members, Member, bytes]:
    """Three nodes; a topic of `partitions` partitions with a copy on each, all in sync."""
    root.mkdir(parents=True)
    members = Members(root)
    # A round of retention looks at each log once, slowly.
    usual: dict[str, Any] = {"retention_check_ms": 10**9}
    first = members.add(1, **usual)
    for node_id in (2, 3):
        members.add(node_id, seeds=(1,), **usual)
        members.run_until(lambda: all(one.started for one in members.up))
    members.run(1_500)
    first.call(m.HelloRequest())
    new = m.NewTopic("t", serialize_schema(SCHEMA), partitions, replication_factor=3)
    (created,) = first.call(m.CreateTopicsRequest(topics=[new]))[0].topics
    assert not created.error_code, created
    topic_id = first.node.broker.metadata.image.topics["t"].topic_id
    members.run(1_000)
    held = [len(one.node.broker.assignment.all_open()) for one in members.up]
    assert held == [partitions] * 3
    return members, first, topic_id


def steps_of(root: Path, partitions: int, *, is_written: bool) -> int:
    """Return what a cluster does in a second in which one partition is written to, or none."""
    members, first, topic_id = cluster(root, partitions)
    with Counter() as counter:
        if is_written:
            led = next(iter(first.node.broker.replicas.values())).name.partition
            first.produce(topic_id, bytes(batch_of([1])), partition=led)
        members.run(IDLE_MS)
    return counter.steps


def for_each(root: Path, *, is_written: bool = False) -> float:
    """Steps for each partition that rests."""
    # Python 3.13 traces no steps of the first call of a function.
    steps_of(root / "untold", FEW, is_written=is_written)
    few = steps_of(root / "few", FEW, is_written=is_written)
    many = steps_of(root / "many", MANY, is_written=is_written)
    assert few > 10_000, "the nodes have ticked"
    return (many - few) / (MANY - FEW)


@pytest.mark.parametrize("is_written", [False, True], ids=["idle", "one of them is written to"])
def test_work_does_not_grow_with_partitions_that_rest(tmp_path: Path, *, is_written: bool) -> None:
    assert abs(for_each(tmp_path, is_written=is_written)) < STEPS_MAX


def test_a_loop_over_all_partitions_in_each_tick_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tick = Membership.tick

    def looking(membership: Membership, now: Now) -> None:
        tick(membership, now)
        for one in nodes:
            assert all(replica.state.leads in (True, False) for replica in one.all_open())

    nodes: list[Assignment] = []
    make = Assignment.__init__

    def making(assignment: Assignment, *parts: Any, **more: Any) -> None:
        make(assignment, *parts, **more)
        nodes[:] = [assignment]

    monkeypatch.setattr(Assignment, "__init__", making)
    monkeypatch.setattr(Membership, "tick", looking)
    assert for_each(tmp_path) > STEPS_MAX
