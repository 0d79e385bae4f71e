"""The data directory under a running node: lost, back, and never looked at on the loop."""

from __future__ import annotations

from pathlib import Path

import pytest

from quiverlog.errors import StorageFault
from quiverlog.node.runtime.events import DiskSpace
from tests.support.guarded_disk import BlockedLoop
from tests.support.node import NodeDriver, batch_of


@pytest.fixture
def node(tmp_path: Path) -> NodeDriver:
    return NodeDriver(tmp_path)


def test_a_directory_that_is_lost_is_not_written_until_it_is_back(node: NodeDriver) -> None:
    topic = node.create()
    node.send(DiskSpace(2**40, is_owned=False))
    answer = node.answer(node.produce(topic, bytes(batch_of([1]))))
    assert answer is not None
    assert answer[0].error_code == StorageFault.code
    node.send(DiskSpace(2**40))
    assert node.produced(topic, bytes(batch_of([1]))).base_offset == 0


def test_the_loop_is_refused_a_look_at_the_lock(node: NodeDriver) -> None:
    """The guard of all tests here once did not see what the lock does with the file system."""
    assert node.node.broker.directory.is_owned()
    node.disk.on_loop = True
    with pytest.raises(BlockedLoop):
        node.node.broker.directory.is_owned()
    node.disk.on_loop = False
