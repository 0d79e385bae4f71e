"""A file that has a segment's name and none of its rows: it takes nothing from its neighbour."""

from __future__ import annotations

from random import Random

import pytest

from quiverlog.storage.segment.segment import segment_path
from quiverlog.storage.segment.segment_files import FlushedMark, pack_segment_header
from tests.sim.disk import SimDisk
from tests.unit.storage.segment.test_damage_matrix import (
    BATCHES,
    DIRECTORY,
    ROWS,
    build,
    open_log,
    read_all,
)

RUBBISH = Random(5).randbytes(3_000)


def contents(base_offset: int) -> dict[str, bytes]:
    header = pack_segment_header(base_offset, 1, FlushedMark(base_offset, 0))
    return {
        "empty": b"",
        "short": b"\x01" * 10,
        "header": header,
        "foreign header": pack_segment_header(0, 1, FlushedMark()),
        "header and rubbish": header + RUBBISH,
        "rubbish": RUBBISH,
        "zeros": bytes(4096),
    }


def logs(disk: SimDisk) -> list[int]:
    return sorted(int(name[:-4]) for name in disk.list(DIRECTORY) if name.endswith(".log"))


@pytest.mark.parametrize("clean", [True, False], ids=["clean", "unclean"])
@pytest.mark.parametrize("kind", contents(0).keys())
@pytest.mark.parametrize("behind", [1, ROWS, ROWS + 2])
@pytest.mark.parametrize("segment", range(5))
def test_a_stray_segment_takes_no_rows_from_its_neighbour(
    segment: int, behind: int, kind: str, clean: bool
) -> None:
    disk, stored = build(clean=clean)
    base_offset = logs(disk)[segment] + behind
    path = segment_path(DIRECTORY, base_offset)
    disk.write_file_atomic(path, contents(base_offset)[kind])
    log = open_log(disk, clean=clean)
    assert log.log_end_offset == ROWS * BATCHES, "no offset is given out again"
    assert any(path.rpartition("/")[2] in note for note in log.recovery.notes)
    disk.kill()
    outcome = read_all(disk, stored, clean=False)
    assert outcome.bad == []
    assert not disk.exists(path), "set aside"


@pytest.mark.parametrize("clean", [True, False], ids=["clean", "unclean"])
@pytest.mark.parametrize("segment", range(5))
def test_several_strays_in_a_row(segment: int, clean: bool) -> None:
    disk, stored = build(clean=clean)
    first = logs(disk)[segment]
    for behind in (1, 2, ROWS):
        disk.write_file_atomic(segment_path(DIRECTORY, first + behind), b"")
    outcome = read_all(disk, stored, clean=clean)
    assert outcome.bad == []


@pytest.mark.parametrize("clean", [True, False], ids=["clean", "unclean"])
@pytest.mark.parametrize("segment", range(5))
def test_an_emptied_segment_is_no_stray(segment: int, clean: bool) -> None:
    """The neighbour has none of the segment's rows: they are reported as missing."""
    disk, stored = build(clean=clean)
    bases = [*logs(disk), ROWS * BATCHES]
    path = segment_path(DIRECTORY, bases[segment])
    disk.write_file_atomic(path, b"")
    outcome = read_all(disk, stored, clean=clean)
    assert set(outcome.bad) <= set(range(bases[segment], bases[segment + 1]))
    assert outcome.bad
    assert outcome.loud
    assert disk.exists(path)
