"""What a start costs for each partition: system calls, and jobs that disturb each other."""

from __future__ import annotations

import errno
import gc
import os
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from quiverlog.node.partitions.directories import OpenJob
from quiverlog.node.runtime.effects import Effect
from quiverlog.node.runtime.events import Tick
from tests.support.node import NodeDriver, batch_of

PARTITIONS = 40
CALLS = (
    "open",
    "close",
    "fstat",
    "stat",
    "listdir",
    "scandir",
    "pread",
    "lstat",
    "pwrite",
    "fsync",
)


def counted(work: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often `work` calls which function of the system; what other threads call is theirs."""
    counts: Counter[str] = Counter()
    own = threading.get_ident()

    def counting(name: str) -> Callable[..., Any]:
        real = getattr(os, name)

        def call(*args: Any, **options: Any) -> Any:
            counts[name] += threading.get_ident() == own
            return real(*args, **options)

        return call

    with monkeypatch.context() as patch:
        for name in CALLS:
            patch.setattr(os, name, counting(name))
        gc.collect()  # Of another node: its descriptors are closed now, and not while we count.
        gc.disable()
        try:
            counts.clear()
            work()
        finally:
            gc.enable()
    return counts


def stopped(root: Path, partitions: int) -> NodeDriver:
    """A node that was stopped in order; each partition of its topic has a batch."""
    root.mkdir()
    node = NodeDriver(root)
    topic = node.create(partitions=partitions)
    for partition in range(partitions):
        node.produced(topic, batch_of([1, 2]), partition=partition)
    node.stop()
    return node


def test_a_clean_start_asks_little_of_the_system_for_each_partition(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = counted(stopped(tmp_path / "few", PARTITIONS).start, monkeypatch)
    many = counted(stopped(tmp_path / "many", 2 * PARTITIONS).start, monkeypatch)
    each = {name: (many[name] - few[name]) / PARTITIONS for name in CALLS}
    # Each file of it is opened and read once, its directory listed once, its segment looked at.
    assert each.pop("open") <= 7  # label, point, its copy, epochs, producers, segment, index
    # ... and headers of batches: one for its epoch, three for the entries of the index, and one to
    # know whose its producers are
    assert each.pop("pread") <= 12
    assert each.pop("close") <= 7
    assert each.pop("stat") <= 1
    assert each.pop("fstat") <= 1
    assert each.pop("scandir") <= 1
    assert not any(each.values()), each


def start_with(
    node: NodeDriver, turn: Callable[[], list[Effect]], partitions: int = PARTITIONS
) -> None:
    """Start; `turn` does what is to be done next, as long as there are jobs."""

    def run_until_idle(self: NodeDriver) -> list[Effect]:
        effects: list[Effect] = []
        while self.jobs or self.node.next_deadline_us() == 0:
            effects += turn()
        return effects

    with mock.patch.object(NodeDriver, "run_until_idle", run_until_idle):
        node.start()
    assert len(node.node.broker.replicas) == partitions


def turn_of(node: NodeDriver) -> list[Effect]:
    """What the node wants to do at once, or the next job."""
    if node.node.next_deadline_us() == 0:
        return node._perform(node.handle(Tick()))
    return node._run(node.jobs.pop(0))


def started_in(tmp_path: Path, log_us: int, before_us: int = 0) -> list[int]:
    """How many jobs were under way, at the end of each, where a log takes this long to open.

    Args:
        before_us: how long it takes to read what comes before the logs.
    """
    node = stopped(tmp_path / "node", PARTITIONS)
    side_by_side: list[int] = []
    began_us = node.mono_us

    def turn() -> list[Effect]:
        if node.mono_us == began_us and before_us:
            node.set_clock(began_us + before_us)
        if node.node.next_deadline_us() == 0:
            return node._perform(node.handle(Tick()))
        side_by_side.append(len(node.jobs))
        start = node.jobs.pop(0)
        node.set_clock(node.mono_us + log_us * len(getattr(start.job, "_jobs", "x")))
        return node._run(start)

    start_with(node, turn)
    return side_by_side


def test_logs_that_are_in_memory_are_opened_by_one_job_after_the_other(tmp_path: Path) -> None:
    """Side by side they take the interpreter from each other, and longer together."""
    assert set(started_in(tmp_path, 200)) == {1}


def test_the_time_before_the_first_job_is_not_its_own(tmp_path: Path) -> None:
    """The start has looked at its directories since the moment that was given."""
    assert set(started_in(tmp_path, 200, before_us=300_000)) == {1}


def test_opened_logs_are_taken_in_a_few_in_each_call(tmp_path: Path) -> None:
    """A job may have opened a thousand: the loop has others to serve between them."""
    partitions = 400
    node = stopped(tmp_path / "node", partitions)
    taken: list[int] = []

    def turn() -> list[Effect]:
        before = len(node.node.broker.replicas)
        effects = turn_of(node)
        taken.append(len(node.node.broker.replicas) - before)
        return effects

    start_with(node, turn, partitions)
    assert max(taken) == 64
    assert sum(taken) == partitions


def test_logs_that_wait_for_the_disk_are_opened_side_by_side(tmp_path: Path) -> None:
    assert max(started_in(tmp_path, 2_000)) == 4


def test_one_log_that_takes_long_does_not_keep_the_others(tmp_path: Path) -> None:
    node = stopped(tmp_path / "node", PARTITIONS)
    slow: list[Any] = []

    def turn() -> list[Effect]:
        if node.node.next_deadline_us() == 0:
            return turn_of(node)
        if not slow:
            slow.append(node.jobs.pop(0))
            assert not node.jobs, "it is timed alone"
            due_us = node.node.next_deadline_us()
            assert due_us is not None
            assert node.mono_us < due_us <= node.mono_us + 100_000
            node.set_clock(due_us)
            effects = node._perform(node.handle(Tick()))
            assert node.jobs, "the others need not wait for it"
            return effects
        effects = node._run(node.jobs.pop(0))
        if not node.jobs:
            opened = len(node.node.broker.replicas)
            assert opened == PARTITIONS or opened + len(slow[0].job._jobs) == PARTITIONS
            if opened < PARTITIONS:
                effects += node._run(slow[0])
        return effects

    start_with(node, turn)


def test_a_start_ends_though_opening_fails_and_takes_longer_than_the_next_try(
    tmp_path: Path,
) -> None:
    """Partitions that fail for a passing reason are opened again by the broker that serves."""
    node = stopped(tmp_path / "node", PARTITIONS)
    jobs_in_a_start = 100

    def run_until_idle(self: NodeDriver) -> list[Effect]:
        for _ in range(jobs_in_a_start):
            due_us = self.node.next_deadline_us()
            if due_us is not None and due_us <= self.mono_us:
                self._perform(self.handle(Tick()))
            elif self.jobs and not self.started:
                start = self.jobs.pop(0)
                self.set_clock(self.mono_us + 200_000 * len(getattr(start.job, "_jobs", "x")))
                self._run(start)
        return []

    no_descriptor = OSError(errno.EMFILE, "Too many open files")
    with (
        mock.patch.object(OpenJob, "run", side_effect=no_descriptor),
        mock.patch.object(NodeDriver, "run_until_idle", run_until_idle),
    ):
        node.start()
    assert node.started
    assert len(node.node.broker.assignment.offline) == PARTITIONS
    node.advance(10_000)
    assert len(node.node.broker.replicas) == PARTITIONS, "it tries again"
