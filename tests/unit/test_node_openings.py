"""Logs of new partitions: made without the disk, a few in each tick, the same as if opened."""

from __future__ import annotations

from pathlib import Path
from types import FunctionType
from typing import Any

from quiverlog.batch.schema import serialize_schema
from quiverlog.core.partition.producers import ProducerStates
from quiverlog.node.directory_jobs import CreateDirectoriesJob, OpenedReplica, OpenJob, new_log
from quiverlog.node.events import Tick
from quiverlog.storage.index_cache import IndexCache
from quiverlog.storage.log import LogConfig
from quiverlog.storage.posix import PosixDisk
from quiverlog.types import Now
from quiverlog.wire import messages as m
from tests.support.node import SCHEMA, NodeDriver, batch_of

NOW = Now(1_000, 2_000)
PARTITIONS = 100


def state(thing: object) -> dict[str, Any]:
    """All that an object knows, as far down as it is made of our own classes."""
    names = [n for kind in type(thing).__mro__ for n in getattr(kind, "__slots__", ())]
    names += list(getattr(thing, "__dict__", ()))
    return {name: known(getattr(thing, name)) for name in names}


def known(value: object) -> object:
    ours = type(value).__module__.startswith("quiverlog.storage")
    if ours and not isinstance(value, PosixDisk | IndexCache | tuple):
        return state(value)
    return value() if isinstance(value, FunctionType) else value


def test_a_new_log_is_what_opening_finds_in_an_empty_directory(tmp_path: Path) -> None:
    disk, indexes = PosixDisk(), IndexCache()
    options: dict[str, Any] = {
        "indexes": indexes, "producers_max": 7, "producer_expiry_us": 1_000,
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
    made = CreateDirectoriesJob(directory, {"t-0": topic, "u-0": b"u" * 16}).run()
    assert made.made == {"u-0": b"u" * 16}
    assert made.failed == {}
