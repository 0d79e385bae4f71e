"""Checkpoints as Spark writes them: both forms of its offset log, damage, and what is left out."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from quiverlog.client.replay import checkpoint as module
from quiverlog.client.replay.checkpoint import Checkpoint
from quiverlog.client.replay.planned import planned_ranges
from quiverlog.errors import InvalidArgument

ID = "0f" * 16
PLANNED_MS = 1_795_866_404_646
PLANNED = datetime(2026, 11, 28, 11, 46, 44, 646_000, tzinfo=UTC)


def offset(partitions: dict[int, int], **more: Any) -> str:
    """A line, without blanks as Spark writes it."""
    texts = {str(p): [end, 3] for p, end in partitions.items()}
    topics = {"flights": {"id": ID, "partitions": texts}}
    return json.dumps({"v": 1, "topics": topics, **more}, separators=(",", ":"))


def positions(partitions: dict[int, int]) -> dict[str, Any]:
    texts = {str(p): [end, 3] for p, end in partitions.items()}
    return {"flights": {"id": ID, "partitions": texts}}


def log(place: Path, number: int, *lines: str, version: str = "v1", done: bool = True) -> None:
    (place / "offsets").mkdir(exist_ok=True)
    (place / "commits").mkdir(exist_ok=True)
    settings = json.dumps({"batchWatermarkMs": 0, "batchTimestampMs": PLANNED_MS, "conf": {}})
    (place / "offsets" / str(number)).write_text("\n".join([version, settings, *lines]))
    (place / "offsets" / f".{number}.crc").write_bytes(b"crc")
    if done:
        (place / "commits" / str(number)).write_text('v1\n{"nextBatchWatermarkMs":0}')


def ranges(place: Path, number: int, source: str | None = None) -> list[tuple[int, Any, int]]:
    _, found = planned_ranges(Checkpoint(place), number, source)
    return [(r.partition, r.start and r.start.offset, r.end.offset) for r in found]


@pytest.mark.parametrize("version", ["v1", "v2"])
def test_both_forms_of_the_log(tmp_path: Path, version: str) -> None:
    """The second is as PySpark 4.3 writes it with offsetLog.formatVersion=2: names, any order."""
    ends = [offset({0: 4}, _first=positions({0: 1})), offset({0: 9, 1: 2})]
    for number, end in enumerate(ends):
        lines = ["1:7", f"0:{end}"] if version == "v2" else [end, "7"]
        log(tmp_path, number, *lines, version=version, done=number == 0)
    found = Checkpoint(tmp_path)
    assert (found.numbers, found.newest()) == ([0, 1], 1)
    first, last = found.batch(0), found.batch(1)
    assert (first.planned_at, first.is_committed, first.sources) == (PLANNED, True, ["0"])
    assert (last.is_committed, last.ends["1"]) == (False, None)
    assert ranges(tmp_path, 0) == [(0, 1, 4)]
    # A partition that the first batch did not have, and that no start names, begins at its first.
    assert ranges(tmp_path, 1) == [(0, 4, 9), (1, None, 2)]


def test_where_the_end_says_it_a_batch_begins_there(tmp_path: Path) -> None:
    log(tmp_path, 0, offset({0: 4}))
    log(tmp_path, 1, offset({0: 9, 1: 2}, _resume=positions({0: 6, 1: 1})))
    assert ranges(tmp_path, 1) == [(0, 6, 9), (1, 1, 2)]


def test_an_empty_range_is_left_out(tmp_path: Path) -> None:
    log(tmp_path, 0, offset({0: 4, 1: 1}))
    log(tmp_path, 1, offset({0: 4, 1: 3}))
    assert ranges(tmp_path, 1) == [(1, 1, 3)]


def test_a_batch_whose_start_spark_has_deleted(tmp_path: Path) -> None:
    for number in (3, 4):
        log(tmp_path, number, offset({0: number}))
    with pytest.raises(InvalidArgument, match=r"where 2 ended.*the first .* again is 4"):
        ranges(tmp_path, 3)
    with pytest.raises(InvalidArgument, match="which has 3 to 4"):
        ranges(tmp_path, 2)
    assert ranges(tmp_path, 4) == [(0, 3, 4)]


def test_a_query_with_several_sources(tmp_path: Path) -> None:
    log(tmp_path, 0, offset({0: 4}), "-", offset({1: 2}))
    with pytest.raises(InvalidArgument, match=r"several sources.*choose `source` of 0, 2"):
        ranges(tmp_path, 0)
    assert ranges(tmp_path, 0, "2") == [(1, None, 2)]
    with pytest.raises(InvalidArgument, match="choose `source` of 0, 2"):
        ranges(tmp_path, 0, "1")
    log(tmp_path, 1, "5", "-", '{"offset":1}')
    with pytest.raises(InvalidArgument, match=r"no source of quiverlog"):
        ranges(tmp_path, 1)


def test_folders_that_are_no_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="not a folder"):
        Checkpoint(tmp_path / "none")
    with pytest.raises(InvalidArgument, match="no checkpoint"):
        Checkpoint(tmp_path)
    with pytest.raises(InvalidArgument, match="cannot open"):
        Checkpoint("nonsense://bucket/place")
    log(tmp_path, 0, offset({0: 4}))
    assert Checkpoint(f"file://{tmp_path}").numbers == [0]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "version is ''"),
        ("v3\n{}\n-", "version is 'v3'"),
        ("v1", "ends after the version"),
        ("v1\n[1]\n-", "no offset file"),
        ("v1\n{", "no offset file"),
        ("v2\n{}\n-", "no name"),
        ('v1\n{}\n{"v":2,"topics":{}}', "upgrade quiverlog"),
        ('v1\n{}\n{"v":1,"topics":{"a":{"id":"x","partitions":{}}}}', "damaged"),
        ("v1\n{}\n" + "-" * 100, "more than 64 bytes"),
    ],
)
def test_damaged_files(
    tmp_path: Path, text: str, problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "FILE_BYTES_MAX", 64)
    log(tmp_path, 0, "-")
    (tmp_path / "offsets" / "0").write_text(text)
    with pytest.raises(InvalidArgument, match=problem):
        Checkpoint(tmp_path).batch(0)


def test_a_file_of_just_the_most_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log(tmp_path, 0, offset({0: 4}))
    size = (tmp_path / "offsets" / "0").stat().st_size
    monkeypatch.setattr(module, "FILE_BYTES_MAX", size)
    assert ranges(tmp_path, 0) == [(0, None, 4)]
    monkeypatch.setattr(module, "FILE_BYTES_MAX", size - 1)
    with pytest.raises(InvalidArgument, match="more than"):
        ranges(tmp_path, 0)
