"""Logs of new partitions: made without the disk, a few in each tick, the same as if opened."""

from __future__ import annotations

import errno
from collections.abc import ItemsView, Iterator
from pathlib import Path
from types import FunctionType
from typing import Any
from unittest import mock

import pytest

from quiverlog.batch.schema import serialize_schema
from quiverlog.core.partition.producers import ProducerStates
from quiverlog.node.assignment.assignment import Assignment
from quiverlog.node.partitions.directories import (
    CreateDirectoriesJob,
    OpenedReplica,
    OpenJob,
    new_log,
)
from quiverlog.node.partitions.offline import Opening
from quiverlog.node.partitions.opening import Key
from quiverlog.node.runtime.events import Tick
from quiverlog.storage.disk.posix import PosixDisk
from quiverlog.storage.log.log import LogConfig
from quiverlog.storage.segment.segments import IndexCache
from quiverlog.types import Now
from quiverlog.wire import messages as m
from tests.support.node import SCHEMA, NodeDriver, batch_of

NOW = Now(1_000, 2_000)
PARTITIONS = 100


def state(thing: object) -> dict[str, Any]:
    """All that an object refers to, as far down as it is made of our own classes."""
    names = [n for kind in type(thing).__mro__ for n in getattr(kind, "__slots__", ())]
    names += list(getattr(thing, "__dict__", ()))
    return {name: known(getattr(thing, name)) for name in names}


def known(value: object) -> object:
    module = type(value).__module__
    ours = module.startswith(("quiverlog.storage", "quiverlog.core.partition.publishes"))
    if ours and not isinstance(value, PosixDisk | IndexCache | tuple):
        return state(value)
    return value() if isinstance(value, FunctionType) else value


def test_a_new_log_is_what_opening_finds_in_an_empty_directory(tmp_path: Path) -> None:
    disk, indexes = PosixDisk(), IndexCache()
    options: dict[str, Any] = {
        "indexes": indexes, "producers_max": 7, "producer_expiry_us": 1_000, "own_cluster": 9,
    }  # fmt: skip
    new = new_log(disk, str(tmp_path), LogConfig(), NOW, **options)
    options |= {"clean": True, "epoch_newest": 0, "known": None}
    job = OpenJob(disk, str(tmp_path), LogConfig(), NOW, **options)
    found = job.run()
    assert isinstance(new, OpenedReplica)
    producers = state(new.producers), state(found.producers)
    assert isinstance(new.producers, ProducerStates)
    assert producers[0] == producers[1]
    new_state, found_state = state(new.log), state(found.log)
    assert new_state.pop("_producers") is new.producers
    assert found_state.pop("_producers") is found.producers
    assert new_state == found_state


def test_new_partitions_need_no_job_and_are_opened_a_few_in_each_tick(tmp_path: Path) -> None:
    node = NodeDriver(tmp_path)
    node.hold_jobs = True
    created = node.request(
        m.CreateTopicsRequest(topics=[m.NewTopic("t", serialize_schema(SCHEMA), PARTITIONS)])
    )
    opened_at_once: list[int] = []
    kinds: set[str] = set()
    while node.answer(created) is None:
        before = len(node.node.broker.replicas)
        if node.jobs:
            kinds.add(node.jobs[0].job.kind)
            node._run(node.jobs.pop(0))
        else:
            assert node.node.next_deadline_us() == 0
            node._perform(node.handle(Tick()))
        opened_at_once.append(len(node.node.broker.replicas) - before)
    assert len(node.node.broker.replicas) == PARTITIONS
    assert "open log" not in kinds
    assert max(opened_at_once) <= 16
    assert node.metrics.partitions_offline == 0


def test_a_directory_that_was_there_before_is_looked_into(tmp_path: Path) -> None:
    """A CREATE whose record could not be logged, sent again, finds its own directories."""
    node = NodeDriver(tmp_path)
    topic = node.create()
    node.produced(topic, batch_of([1, 2]))
    directory = node.node.broker.directory
    made = CreateDirectoriesJob(directory.data, {"t-0": topic, "u-0": b"u" * 16}).run()
    assert made.made == {"u-0": b"u" * 16}
    assert made.failed == {}


def test_the_rows_of_a_directory_that_cannot_be_read_for_a_moment_stay(tmp_path: Path) -> None:
    """This very topic's directory was taken for one just made, and its log for an empty one."""

    class Unreadable(PosixDisk):
        left = 0

        def read_file(self, path: str) -> bytes:
            if self.left and path.endswith("/t-0/partition.json"):
                self.left -= 1
                raise OSError(errno.EMFILE, "Too many open files")
            return super().read_file(path)

    disk = Unreadable()
    node = NodeDriver(tmp_path, lambda: disk)
    topic = node.create()
    node.produced(topic, batch_of([1, 2]))
    log = Path(node.config.data_dir) / "data" / "t-0" / f"{0:020d}.log"
    for times in (1, 2, 3):
        disk.left = times
        made = CreateDirectoriesJob(node.node.broker.directory.data, {"t-0": topic}).run()
        assert made.made == {}, times
        assert log.exists(), times


def test_an_opening_that_fails_twice_leaves_the_others_and_is_counted_once(tmp_path: Path) -> None:
    """Taking the log raises, and taking that failure as well: a bug, but of one partition."""
    node = NodeDriver(tmp_path)
    topic = node.create(partitions=64)
    on_opened, on_open_failed = Assignment.on_opened, Assignment.on_open_failed
    bad = (topic, 5)

    def broken_open(assignment: Assignment, key: Key, *rest: Any) -> None:
        if key == bad:
            raise KeyError("planted")
        on_opened(assignment, key, *rest)

    def broken_failure(
        assignment: Assignment, key: Key, opening: Opening, error: BaseException, now: Now
    ) -> None:
        if key == bad:
            raise KeyError("planted too")
        on_open_failed(assignment, key, opening, error, now)

    node.stop()
    with (
        mock.patch.object(Assignment, "on_opened", broken_open),
        mock.patch.object(Assignment, "on_open_failed", broken_failure),
    ):
        node.start()
    broker = node.node.broker
    assert set(broker.replicas) == {(topic, number) for number in range(64)} - {bad}
    assert node.metrics.internal_errors > 0
    assert broker.assignment._openings._jobs_in_flight == 0


class _NotWalked(dict[Key, Opening]):
    """Partitions under way that no call may walk over."""

    def __iter__(self) -> Iterator[Key]:
        raise AssertionError("walked over all partitions under way")

    def items(self) -> ItemsView[Key, Opening]:  # type: ignore[override]
        raise AssertionError("walked over all partitions under way")


def test_a_creation_costs_the_same_however_many_partitions_are_under_way(tmp_path: Path) -> None:
    node = NodeDriver(tmp_path)
    node.hold_jobs = True
    many = m.NewTopic("many", serialize_schema(SCHEMA), PARTITIONS)
    node.request(m.CreateTopicsRequest(topics=[many]))
    openings = node.node.broker.assignment._openings
    while not openings.under_way:
        node.step()
    openings.under_way = _NotWalked(openings.under_way)
    node.hold_jobs = False
    node.run_until_idle()
    node.create("other")
    assert node.metrics.internal_errors == 0
    assert len(node.node.broker.replicas) == PARTITIONS + 1


@pytest.mark.parametrize("again", [1, 2])
def test_a_topic_of_a_deleted_name_waits_for_openings_of_the_old_one(
    tmp_path: Path, again: int
) -> None:
    node = NodeDriver(tmp_path)
    old = node.create(partitions=2)
    node.produced(old, batch_of([1]), partition=1)
    node.hold_jobs = True
    node.request(m.AlterTopicRequest(name="t", partitions=PARTITIONS))
    while not node.node.broker.assignment.opening:
        node.step()
    node.request(m.DeleteTopicsRequest(names=["t"]))
    new = m.NewTopic("t", serialize_schema(SCHEMA), again)
    created = node.request(m.CreateTopicsRequest(topics=[new]))
    node.hold_jobs = False
    node.run_until_idle()
    answer = node.answer(created)
    assert answer is not None
    assert answer[0].topics[0].error_code == 0, answer[0].topics[0].error_message
    assert {key[0] for key in node.node.broker.replicas} == {answer[0].topics[0].topic_id}
    assert len(node.node.broker.replicas) == again
