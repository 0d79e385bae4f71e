"""Files of deleted partitions: a stop does not wait for all of them, the next start ends it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from quiverlog.batch.schema import serialize_schema
from quiverlog.node.runtime.effects import StartJob
from quiverlog.node.runtime.events import Shutdown
from quiverlog.storage.log.log import Log
from quiverlog.wire import messages as m
from tests.support.node import SCHEMA, NodeDriver, batch_of

PARTITIONS = 300


@pytest.fixture
def node(tmp_path: Path) -> NodeDriver:
    return NodeDriver(tmp_path)


def directories(node: NodeDriver) -> list[str]:
    return sorted(path.name for path in (Path(node.config.data_dir) / "data").iterdir())


def delete_and_stop(node: NodeDriver, partitions: int) -> Counter[str]:
    """Stop while the files are on their way out; the jobs that the stop took, by kind."""
    topic = node.create(partitions=partitions, durability="memory")
    for partition in range(0, partitions, 10):
        node.produce(topic, batch_of([1]), partition=partition)
    node.hold_jobs = True
    deleted = node.request(m.DeleteTopicsRequest(names=["t"]))
    while node.answer(deleted) is None:
        node.step()
    node.send(Shutdown())
    kinds: Counter[str] = Counter()
    while not node.shut_down:
        if node.syncs:
            node.flush()
        kinds[node.jobs[0].job.kind if node.jobs else ""] += 1
        node.step()
    node.hold_jobs = False
    return kinds


def test_a_stop_leaves_most_files_of_deleted_partitions_to_the_next_start(
    node: NodeDriver,
) -> None:
    kinds = delete_and_stop(node, PARTITIONS)
    assert kinds["remove directories"] <= 5, "20,000 took longer than a stop may"
    assert len(directories(node)) > PARTITIONS // 2
    node.start()
    assert node.metrics.unclean_starts == 0
    assert directories(node) == []
    assert not [line for line in node.lines if line.level == "error"]


def test_a_few_are_removed_before_the_stop(node: NodeDriver) -> None:
    delete_and_stop(node, 20)
    assert directories(node) == []


@pytest.mark.parametrize("which", ["creation first", "removal first"])
def test_a_start_serves_before_leftovers_are_removed(node: NodeDriver, which: str) -> None:
    """Also where a topic of the same name is created meanwhile."""
    delete_and_stop(node, PARTITIONS)
    node.hold_jobs = True
    node.start()
    assert len(directories(node)) > PARTITIONS // 2
    new = [m.NewTopic("t", serialize_schema(SCHEMA), PARTITIONS)]
    created = node.request(m.CreateTopicsRequest(topics=new))

    def rank(start: StartJob) -> bool:
        return (start.job.kind == "remove directories") == (which == "creation first")

    while node.answer(created) is None:
        node.jobs.sort(key=rank)
        node.step()
    node.hold_jobs = False
    node.run_until_idle()
    answer = node.answer(created)
    assert answer is not None
    assert answer[0].topics[0].error_code == 0
    assert len(directories(node)) == PARTITIONS
    topic = answer[0].topics[0].topic_id
    assert node.produced(topic, batch_of([1]), partition=PARTITIONS - 1).base_offset == 0
    node.restart()
    assert len(node.node.broker.replicas) == PARTITIONS
    assert node.broker_end(topic, PARTITIONS - 1) == 1


def test_a_topic_that_is_deleted_twice_leaves_no_log_open(
    node: NodeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second time while files of the first are still waiting to be removed."""
    topic = node.create(partitions=60, durability="memory")
    for partition in range(60):
        node.produce(topic, batch_of([1]), partition=partition)
    node.run_until_idle()
    logs = [replica.log for replica in node.node.broker.replicas.values()]
    closed: list[Log] = []
    close = Log.close

    def closing(log: Log, *, clean: bool) -> None:
        closed.append(log)
        close(log, clean=clean)

    monkeypatch.setattr(Log, "close", closing)
    node.hold_jobs = True
    new = [m.NewTopic("t", serialize_schema(SCHEMA), 60)]
    requests = [
        m.DeleteTopicsRequest(names=["t"]),
        m.CreateTopicsRequest(topics=new),
        m.DeleteTopicsRequest(names=["t"]),
    ]
    for request in requests:
        asked = node.request(request)
        while node.answer(asked) is None:
            # Removing takes long; directories are made behind the removal under way.
            if not any(start.job.kind == "create directories" for start in node.jobs):
                node.jobs.sort(key=lambda start: start.job.kind == "remove directories")
            node.step()
    node.hold_jobs = False
    node.run_until_idle()
    assert node.metrics.internal_errors == 0
    assert [log for log in logs if log not in closed] == []
    assert directories(node) == []
