"""A metadata log that was cut, and labels of partitions that were damaged: no rows are taken
away from their topics by a start."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from quiverlog.core.controller.records import (
    BrokerChangeRecord,
    BrokerRecord,
    Record,
    encode_entry,
)
from quiverlog.errors import CorruptLog
from quiverlog.node.lifecycle import _why_not_torn
from quiverlog.storage.metadata.metadata_log import FILE_HEADER_BYTES
from tests.support.node import NodeDriver, batch_of

RNG_ID = bytes(range(7, 23))
TOPICS = ("a", "b", "c")


def with_rows(root: Path) -> Path:
    """A broker of three topics with rows that was killed; its data directory."""
    node = NodeDriver(root)
    for name in TOPICS:
        topic_id = node.create(name, 2)
        for partition in range(2):
            node.produced(topic_id, batch_of([1, 2, 3]), partition=partition)
    return Path(node.config.data_dir)


def frame_ends(data: bytes) -> list[int]:
    ends, at = [FILE_HEADER_BYTES], FILE_HEADER_BYTES
    while at < len(data):
        at += 8 + int.from_bytes(data[at : at + 4], "little")
        ends.append(at)
    return ends


def served(node: NodeDriver) -> set[str]:
    return {f"{r.name}" for r in node.node.broker.replicas.values() if r.log.log_end_offset == 3}


def start(root: Path) -> tuple[NodeDriver | None, str]:
    try:
        return NodeDriver(root), ""
    except CorruptLog as error:
        return None, error.message


def test_a_log_cut_inside_a_frame_is_refused_where_rows_need_that_frame(tmp_path: Path) -> None:
    data = with_rows(tmp_path / "first")
    whole = (data / "metadata/metadata.log").read_bytes()
    ends = frame_ends(whole)
    assert ends[-1] == len(whole)
    assert len(ends) > len(TOPICS) + 1, "a frame for the broker, and one for each topic"
    started = 0
    for size in range(FILE_HEADER_BYTES, len(whole), 7):
        root = tmp_path / f"cut-{size}"
        shutil.copytree(data, root / "data-1")
        log = root / "data-1/metadata/metadata.log"
        os.truncate(log, size)
        names = sorted(os.listdir(root / "data-1/data"))
        node, refused = start(root)
        if node is None:
            assert "nothing was changed" in refused
            assert log.read_bytes() == whole[:size]
        else:
            started += 1
            assert size in ends or size > ends[-2] or len(served(node)) == 6
            known = len(node.node.broker.metadata.image.topics)
            assert known, "it never starts empty where there are rows"
        if size not in ends:
            assert sorted(os.listdir(root / "data-1/data")) == names, "nothing is set aside"
        shutil.rmtree(root)
    assert started < len(whole) // 14


def test_a_log_without_a_topic_is_refused_where_there_are_rows(tmp_path: Path) -> None:
    data = with_rows(tmp_path / "first")
    whole = (data / "metadata/metadata.log").read_bytes()
    shutil.copytree(data, tmp_path / "second/data-1")
    os.truncate(tmp_path / "second/data-1/metadata/metadata.log", frame_ends(whole)[2])
    for _ in range(2):  # A second try must not be taken in either.
        with pytest.raises(CorruptLog, match=r"names no topic.*a-0"):
            NodeDriver(tmp_path / "second")
    assert sorted(os.listdir(tmp_path / "second/data-1/data")) == sorted(os.listdir(data / "data"))


def test_the_way_out_that_the_error_names(tmp_path: Path) -> None:
    """An operator without a backup renames the directories of topics that no log names."""
    data = with_rows(tmp_path / "first")
    whole = (data / "metadata/metadata.log").read_bytes()
    shutil.copytree(data, tmp_path / "second/data-1")
    os.truncate(tmp_path / "second/data-1/metadata/metadata.log", frame_ends(whole)[2] + 5)
    with pytest.raises(CorruptLog, match=r"\.orphan"):
        NodeDriver(tmp_path / "second")
    for path in (tmp_path / "second/data-1/data").iterdir():
        path.rename(f"{path}.orphan")
    node = NodeDriver(tmp_path / "second")
    assert not node.node.broker.metadata.image.topics


# --- labels -------------------------------------------------------------------------------------
def damage_label(path: Path, topic_id: str) -> None:
    label = json.loads((path / "partition.json").read_bytes())
    (path / "partition.json").write_text(json.dumps({**label, "topic_id": topic_id}))


@pytest.mark.parametrize("bit", range(0, 128, 5))
def test_a_flipped_bit_in_a_label_costs_no_rows(tmp_path: Path, bit: int) -> None:
    data = with_rows(tmp_path / "first")
    path = data / "data/b-0"
    label = json.loads((path / "partition.json").read_bytes())
    right = label["topic_id"]
    damage_label(path, f"{int(right, 16) ^ 1 << bit:032x}")
    shutil.copytree(data, tmp_path / "second/data-1")
    node = NodeDriver(tmp_path / "second")
    known = {topic.topic_id.hex() for topic in node.node.broker.metadata.image.topics.values()}
    if f"{int(right, 16) ^ 1 << bit:032x}" in known:
        pytest.skip("the id of another topic")
    assert len(served(node)) == 6
    assert any("b-0" in str(line.fields) for line in node.lines if line.level == "warning")
    again = json.loads((tmp_path / "second/data-1/data/b-0/partition.json").read_bytes())
    assert again["topic_id"] == right


def test_the_label_of_another_topic_is_no_damage(tmp_path: Path) -> None:
    data = with_rows(tmp_path / "first")
    damage_label(data / "data/b-0", RNG_ID.hex())
    shutil.copytree(data, tmp_path / "second/data-1")
    node = NodeDriver(tmp_path / "second")
    assert "b-0" not in served(node)
    assert any(name.endswith(".orphan") for name in os.listdir(tmp_path / "second/data-1/data"))


def test_registrations_in_front_of_a_torn_entry_do_not_matter(tmp_path: Path) -> None:
    """Registrations name versions, which entries that are only looked through do not have."""
    broker = NodeDriver(tmp_path).node.broker
    records: list[list[Record]] = [
        [BrokerRecord(1, b"life")],
        [BrokerChangeRecord(1, 7, fenced=False)],
    ]
    entries = [encode_entry(one) for one in records]
    assert _why_not_torn(broker, broker.directory, entries) == ""
