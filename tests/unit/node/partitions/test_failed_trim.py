"""A trim that fails at its fsync: what its flushes do, and what its clients get."""

from __future__ import annotations

import errno
from pathlib import Path

from quiverlog.errors import OutcomeUnknown
from quiverlog.node.runtime.events import JobDone
from quiverlog.types import Durability
from quiverlog.wire import messages as m
from tests.support.node import NodeDriver, batch_of

EIO = OSError(errno.EIO, "Input/output error")


def test_a_flush_behind_a_failed_trim_acknowledges_nothing(tmp_path: Path) -> None:
    node = NodeDriver(tmp_path)
    topic = node.create(durability="memory")
    node.produce(topic, batch_of(range(10)))
    node.hold_jobs = True
    entry = m.DeleteRecordsPartition(topic, 0, before_offset=5)
    deleted = node.request(m.DeleteRecordsRequest(partitions=[entry]))
    stored = node.produce(topic, batch_of(range(10)), durability=Durability.FLUSHED)
    (trim,) = node.jobs
    assert trim.job.kind == "trim"
    assert len(node.syncs) == 1
    # In the order of their key: the trim's fsync fails, that of the flush does not.
    result = node.syncs.pop().job
    done = JobDone(result, result.run(), None)
    node.jobs.clear()
    node.send(JobDone(trim.job, None, EIO))
    node.send(done)
    node.hold_jobs = False
    node.run_until_idle()
    answer = node.answer(stored)
    assert answer is not None
    assert answer[0].partitions[0].error_code == OutcomeUnknown.code
    assert node.answer(deleted) is not None
    assert node.metrics.internal_errors == 0
    assert node.metrics.partitions_with_faults == 1
    assert node.node.broker.replicas[topic, 0].state.flushed_offset == 0
    node.stop()
    node.start()
    assert node.metrics.unclean_starts == 1, "the files are not to be trusted"
