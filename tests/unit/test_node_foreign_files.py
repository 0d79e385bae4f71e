"""A small file of the data directory that is well formed and another broker's, or another day's."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

import pytest

from quiverlog.errors import QuiverlogError
from tests.support.node import NodeDriver, batch_of

FILES = (
    "clock", "node.json", "metadata/quorum-state", "data/t-0/partition.json",
    "data/t-0/00000000000000000000.index",
)  # fmt: skip


def filled(root: Path, batches: int) -> tuple[NodeDriver, bytes]:
    root.mkdir()
    node = NodeDriver(root, retention_check_ms=5_000)
    for number in range(batches // 5):
        node.create(f"other-{number}")
    topic = node.create()
    for number in range(batches):
        node.produced(topic, batch_of([number], at_us=node.wall_us))
        node.advance(40_000)
        while node.syncs:
            node.flush()
    return node, topic


@pytest.mark.parametrize("how", ["stop", "kill"])
@pytest.mark.parametrize("other", [2, 30])
@pytest.mark.parametrize("name", FILES)
def test_no_row_goes_for_a_file_of_another_broker(
    tmp_path: Path, name: str, other: int, how: str
) -> None:
    node, topic = filled(tmp_path / "own", 12)
    foreign, _ = filled(tmp_path / "other", other)
    foreign.stop()
    data = Path(node.config.data_dir)
    if how == "stop":
        node.stop()
    else:  # The dead one still holds its lock in this process.
        data = shutil.copytree(data, tmp_path / "killed")
        node.config = dataclasses.replace(node.config, data_dir=str(data))
    shutil.copy(Path(foreign.config.data_dir) / name, data / name)
    node.lines.clear()
    try:
        node.start()
    except QuiverlogError as error:
        refused = str(error)
    else:
        refused = ""
    if refused:
        assert Path(name).name in refused, "the sentence names the file"
        return
    assert not [line for line in node.lines if "internal" in line.event]
    assert sum(header.row_count for header in node.headers(topic)) == 12
    node.advance(60_000)
    assert sum(header.row_count for header in node.headers(topic)) == 12
