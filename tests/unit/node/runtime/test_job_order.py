"""Jobs of one log that overtake each other: what is held back leaves what came meanwhile."""

from __future__ import annotations

from pathlib import Path

import pytest

from quiverlog.node.runtime.effects import StartJob
from quiverlog.storage.log.jobs import FlushJob
from quiverlog.types import EARLIEST
from tests.support.node import NodeDriver, batch_of

WAITING = 2
"""Topics whose rows expire: the trim of the second waits behind that of the first."""


@pytest.mark.parametrize("then", ["crash", "crash before", "restart"])
def test_a_flush_overtakes_a_trim_that_waits_and_both_hold(tmp_path: Path, then: str) -> None:
    node = NodeDriver(tmp_path, retention_check_ms=5_000)
    options = {"retention_ms": "60000", "segment_bytes": str(64 * 1024)}
    topics = [node.create(f"t-{number}", **options) for number in range(WAITING)]
    for topic in topics:
        for _ in range(3):
            node.produced(topic, batch_of(range(4_000)))
    node.advance(30_000)
    node.flush()
    node.hold_jobs = True
    node.advance(45_000)
    node.syncs.clear()
    trims: list[StartJob] = [start for start in node.jobs if start.job.kind == "trim"]
    assert len(trims) == 1, "one in the background at a time"
    late = topics[1] if trims[0].job.key.endswith("/t-0-0") else topics[0]
    begun = node.node.broker.jobs.unfinished
    assert begun >= WAITING, "the other was begun, and waits"
    asked = node.produce(late, batch_of([1] * 4_000, at_us=node.wall_us))
    assert [type(start.job) for start in node.syncs] == [FlushJob], "it waits for no trim"
    node.flush()
    answer = node.answer(asked)
    assert answer is not None
    assert answer[0].partitions[0].error_code == 0
    base = answer[0].partitions[0].base_offset
    if then != "crash before":
        node.hold_jobs = False
        node.run_until_idle()
        assert node.offset_of(late, EARLIEST).offset == base
    node.hold_jobs = False
    node.jobs.clear()
    getattr(node, then.split()[0])()
    assert node.broker_end(late) == base + 4_000
    found = [header.base_offset for header in node.headers(late, base)]
    assert found == [base]
    node.produced(late, batch_of([2], at_us=node.wall_us))
    assert not [line for line in node.lines if line.level == "error"]
