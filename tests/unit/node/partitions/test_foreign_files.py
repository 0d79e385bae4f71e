"""A small file of the data directory that is well formed and another broker's, or another day's."""

from __future__ import annotations

import dataclasses
import hashlib
import shutil
from pathlib import Path

import pytest

from quiverlog.errors import CorruptLog, QuiverlogError
from quiverlog.wire import messages as m
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


class OwnIds(NodeDriver):
    """What is drawn by lot is another thing in each directory."""

    def _entropy(self, count: int) -> bytes:
        drawn = f"{self._root.name} {next(self._random)}"
        return hashlib.shake_128(drawn.encode()).digest(count)


def written(node: OwnIds, topic: bytes, batches: int) -> None:
    for number in range(batches):
        node.produced(topic, batch_of([number], at_us=node.wall_us))


def directory_of(node: OwnIds) -> Path:
    return Path(node.config.data_dir)


def killed(node: OwnIds) -> Path:
    """What a dead broker leaves; the dead one still holds its lock in this process."""
    data = shutil.copytree(node.config.data_dir, directory_of(node).parent / "killed")
    node.config = dataclasses.replace(node.config, data_dir=str(data))
    return data


@pytest.mark.parametrize("node_id", [1, 2])
@pytest.mark.parametrize("topics", [0, 1, 20])
@pytest.mark.parametrize("how", ["stop", "kill"])
def test_a_metadata_log_of_another_directory_is_recognised(
    tmp_path: Path, how: str, topics: int, node_id: int
) -> None:
    for name in ("own", "other"):
        (tmp_path / name).mkdir()
    other = OwnIds(tmp_path / "other", node_id=node_id)
    for number in range(topics):
        other.create(f"other-{number}")
    other.stop()
    node = OwnIds(tmp_path / "own", node_id=1)
    topic = node.create()
    written(node, topic, 12)
    data = killed(node) if how == "kill" else directory_of(node)
    if how == "stop":
        node.stop()
    log = data / "metadata/metadata.log"
    own = log.read_bytes()
    shutil.copy(directory_of(other) / "metadata/metadata.log", log)
    with pytest.raises(CorruptLog, match=rf"^{log} (has|is of|is not of)"):
        node.start()
    log.write_bytes(own)
    node.start()
    assert sum(header.row_count for header in node.headers(topic)) == 12


def test_rows_that_an_earlier_metadata_log_does_not_know_are_kept_and_named(
    tmp_path: Path,
) -> None:
    node = OwnIds(tmp_path, node_id=1)
    node.create("before")
    node.stop()
    earlier = (directory_of(node) / "metadata/metadata.log").read_bytes()
    node.start()
    topic = node.create()
    written(node, topic, 12)
    data = killed(node)
    log = data / "metadata/metadata.log"
    newer = log.read_bytes()
    log.write_bytes(earlier)
    node.lines.clear()
    node.start()
    (line,) = [one for one in node.lines if one.level == "error"]
    assert line.event == "rows of an unknown topic set aside"
    assert (line.fields["name"], line.fields["file"]) == ("t-0", str(log))
    node.stop()
    # What the line advises.
    log.write_bytes(newer)
    (aside,) = (data / "data").glob("t-0.*.orphan")
    aside.rename(data / "data/t-0")
    node.start()
    assert sum(header.row_count for header in node.headers(topic)) == 12


@pytest.mark.parametrize("whose", ["longer", "shorter", "an earlier stop"])
@pytest.mark.parametrize("how", ["stop", "kill"])
def test_a_mark_of_another_stop_is_not_believed(tmp_path: Path, how: str, whose: str) -> None:
    """A longer metadata log was missed in this directory; a crash was taken for a stop in order."""
    for name in ("own", "other"):
        (tmp_path / name).mkdir()
    node = OwnIds(tmp_path / "own", node_id=1)
    topic = node.create()
    for number in range(3):
        node.create(f"own-{number}")
    written(node, topic, 6)
    other = node
    if whose != "an earlier stop":
        other = OwnIds(tmp_path / "other", node_id=1)
        for number in range(40 if whose == "longer" else 1):
            other.create(f"other-{number}")
    other.stop()
    mark = (directory_of(other) / "clean-shutdown").read_bytes()
    if other is node:
        node.start()
    written(node, topic, 6)
    data = killed(node) if how == "kill" else directory_of(node)
    if how == "stop":
        node.stop()
    (data / "clean-shutdown").write_bytes(mark)
    node.lines.clear()
    node.start()
    (line,) = [one for one in node.lines if one.event == "data directory"]
    assert line.fields["note"].startswith("clean-shutdown is of the life ")
    (started,) = [one for one in node.lines if one.event == "started"]
    assert not started.fields["clean"]
    assert (data / "clean-shutdown.unusable").read_bytes() == mark
    assert sum(header.row_count for header in node.headers(topic)) == 12
    node.lines.clear()
    node.restart()
    assert [one for one in node.lines if one.event == "data directory"] == [], "once is enough"


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_a_repeat_is_stored_once_and_the_next_batch_is_taken_whosever_snapshot_lies_there(
    tmp_path: Path, how: str
) -> None:
    """Two partitions of one length, each with a producer of its own."""
    node = NodeDriver(tmp_path)
    topic = node.create(partitions=2)
    ids = [node.call(m.InitProducerIdRequest())[0].producer_id for _ in range(2)]

    def produce(partition: int, value: int) -> int:
        batch = batch_of([value], producer=(ids[partition], 0, value), at_us=node.wall_us)
        return int(node.produced(topic, batch, partition=partition).base_offset)

    for partition in range(2):
        assert [produce(partition, value) for value in range(3)] == [0, 1, 2]
    node.restart()  # So that a kill leaves snapshots, too.
    name = "producers-00000000000000000003.snapshot"
    if how == "stop":
        node.stop()
    root = Path(node.config.data_dir)
    own = (root / "data/t-0" / name).read_bytes()
    (root / "data/t-0" / name).write_bytes((root / "data/t-1" / name).read_bytes())
    (root / "data/t-1" / name).write_bytes(own)
    node.lines.clear()
    if how == "stop":
        node.start()
    else:
        node.crash()
    notes = [one.fields["note"] for one in node.lines if one.event == "partition file"]
    assert [note.split(" ")[0] for note in notes] == [f"t-0/{name}", f"t-1/{name}"]
    for partition in range(2):
        assert [produce(partition, value) for value in range(4)] == [0, 1, 2, 3]
