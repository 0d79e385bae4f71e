"""What a stop answers to waiting requests, and what a refused start must leave in order."""

from __future__ import annotations

import dataclasses
import errno
from pathlib import Path
from typing import Any

import pytest

from quiverlog.errors import InvalidConfig, RequestTimedOut
from quiverlog.node.runtime.effects import Effect, Respond, ShutdownComplete
from quiverlog.node.runtime.events import Shutdown
from tests.support.node import NodeDriver, batch_of

NO_DESCRIPTOR = OSError(errno.EMFILE, "no descriptor")


def entry_of(node: NodeDriver, correlation: int) -> Any:
    answer = node.answer(correlation)
    assert answer is not None, "not answered before the broker was gone"
    return answer[0].partitions[0]


@pytest.mark.parametrize("still", [False, True], ids=["the log closes", "no descriptor still"])
def test_produces_whose_flush_was_postponed_are_answered_by_a_stop(
    tmp_path: Path, *, still: bool
) -> None:
    node = NodeDriver(tmp_path)
    topic = node.create(partitions=2)
    waiting = [node.produce(topic, batch_of([1]), partition=p) for p in (0, 1, 0)]
    node.hold_jobs = True
    node.send(Shutdown())
    node.flush(NO_DESCRIPTOR)
    effects: list[Effect] = []
    while node.jobs:
        closing = node.jobs.pop(0)
        failure = NO_DESCRIPTOR if still and closing.job.kind == "close log" else None
        effects += node._run(closing, failure)
    assert node.shut_down
    expected = RequestTimedOut.code if still else 0
    assert [entry_of(node, one).error_code for one in waiting] == [expected] * 3
    kinds = [type(effect) for effect in effects if isinstance(effect, Respond | ShutdownComplete)]
    assert kinds == [Respond] * 3 + [ShutdownComplete], "connections are closed after that"
    assert node.metrics.internal_errors == 0


def test_logs_in_which_nothing_has_changed_need_no_job_to_be_closed(tmp_path: Path) -> None:
    """5,000 jobs, each to a thread and back, were most of an idle broker's stop."""
    node = NodeDriver(tmp_path)
    topic = node.create(partitions=20)
    for partition in range(20):
        node.produced(topic, batch_of([1, 2]), partition=partition)
    node.restart()
    node.produced(topic, batch_of([3]), partition=7)
    node.hold_jobs = True
    node.send(Shutdown())
    assert [start.job.key[-4:] for start in node.jobs] == ["/t-7"]
    node.hold_jobs = False
    node.run_until_idle()
    mark = (tmp_path / "data-1" / "clean-shutdown").read_bytes()
    assert b"t-6 0 2" in mark
    assert b"t-7 0 3" in mark
    node.start()
    assert node.node.broker.directory.clean
    assert len(node.node.broker.replicas) == 20


def test_a_configuration_that_is_refused_leaves_the_clean_mark(tmp_path: Path) -> None:
    node = NodeDriver(tmp_path)
    topic = node.create()
    node.produced(topic, batch_of([1]))
    mark = tmp_path / "data-1" / "clean-shutdown"
    with pytest.raises(InvalidConfig):
        node.restart(topic_defaults={"durability": "replicated"})
    assert b"t-0 0 1" in mark.read_bytes()
    with pytest.raises(InvalidConfig):
        node.start()
    assert b"t-0 0 1" in mark.read_bytes()
    node.config = dataclasses.replace(node.config, topic_defaults={})
    node.start()
    assert node.metrics.unclean_starts == 0
    assert node.metrics.recovery_partitions_scanned == 0
    assert node.offset_of(topic, -1).offset == 1
