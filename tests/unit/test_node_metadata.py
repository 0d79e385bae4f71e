"""The metadata log of a node: when it is compacted, and what waits for decisions under way."""

from __future__ import annotations

from pathlib import Path

import pytest

from quiverlog.core.controller.image import Image
from quiverlog.core.controller.records import Record
from quiverlog.storage.metadata_log import MetadataLog
from quiverlog.wire import messages as m
from tests.support.node import NodeDriver


@pytest.fixture
def node(tmp_path: Path) -> NodeDriver:
    return NodeDriver(tmp_path)


def test_a_snapshot_of_the_metadata_is_made_off_the_loop_from_what_holds_meanwhile(
    node: NodeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes as long as there are topics. Decisions wait, so that nothing changes under it."""
    snapshot_records = Image.snapshot_records
    on_loop: list[bool] = []

    def recorded(image: Image) -> list[Record]:
        on_loop.append(node.disk.on_loop)
        return snapshot_records(image)

    node.create()
    monkeypatch.setattr(MetadataLog, "wants_compaction", True)
    node.hold_jobs = True
    node.request(m.AlterTopicRequest(name="t", set_configs={"retention.ms": "60000"}))
    while not node.jobs or node.jobs[0].job.kind != "metadata compaction":
        node.step()
    monkeypatch.undo()
    monkeypatch.setattr(Image, "snapshot_records", recorded)
    version = node.node.broker.metadata.image.version
    later = node.request(m.AlterTopicRequest(name="t", set_configs={"retention.ms": "70000"}))
    while node.node.next_deadline_us() == 0:
        node.step()
    assert [start.job.kind for start in node.jobs] == ["metadata compaction"]
    assert node.node.broker.metadata.image.version == version
    node.hold_jobs = False
    node.run_until_idle()
    assert on_loop == [False]
    assert node.answer(later) is not None
    node.restart()
    (topic,) = node.call(m.DescribeTopicsRequest(names=["t"]))[0].topics
    assert {c.key: c.value for c in topic.configs}["retention.ms"] == "70000"
