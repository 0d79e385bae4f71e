"""`node.json`: whose a directory is, and which one; what a start leaves that cannot write it."""

from __future__ import annotations

import contextlib
import errno
import itertools
import json
from pathlib import Path

import pytest

from quiverlog.errors import QuiverlogError, UnsupportedFormat
from quiverlog.storage.log.checkpoint import Bounds
from tests.support.failing_os import failing_calls
from tests.unit.storage.directory.test_data_directory import NUMBERS, take

ROWS = Bounds(0, 3)


def test_a_directory_has_an_id_for_life(tmp_path: Path) -> None:
    path = tmp_path / "d"
    first = take(path)
    assert len(first.directory_id) == 32
    first.close(clean=False)
    again = take(path)
    assert again.directory_id == first.directory_id
    again.close(clean=False)


@pytest.mark.parametrize("left_out", [{"crc32c"}, {"crc32c", "directory_id"}])
def test_a_directory_from_before_the_first_release_is_refused(
    tmp_path: Path, left_out: set[str]
) -> None:
    take(tmp_path).close(clean=True)
    file = tmp_path / "node.json"
    node = json.loads(file.read_bytes())
    file.write_text(json.dumps({key: node[key] for key in node if key not in left_out}))
    before = file.read_bytes()
    with pytest.raises(UnsupportedFormat, match="before its first release"):
        take(tmp_path)
    assert file.read_bytes() == before
    assert (tmp_path / "clean-shutdown").exists()


def test_no_flipped_bit_of_node_json_is_believed(tmp_path: Path) -> None:
    """A changed cluster id, which no other file has, was taken for the directory's."""
    path = tmp_path / "d"
    first = take(path)
    first.close(clean=False)
    file = path / "node.json"
    good = file.read_bytes()
    refused = 0
    for bit in range(8 * len(good)):
        bad = bytearray(good)
        bad[bit // 8] ^= 1 << bit % 8
        file.write_bytes(bad)
        try:
            found = take(path)
        except QuiverlogError:
            refused += 1
            assert file.read_bytes() == bad
            continue
        assert found.cluster_id == first.cluster_id
        assert found.directory_id == first.directory_id
        found.close(clean=False)
    assert refused > 6 * len(good)


@pytest.mark.parametrize("number", NUMBERS, ids=errno.errorcode.get)
def test_a_start_that_fails_keeps_the_mark_of_the_last_stop(tmp_path: Path, number: int) -> None:
    """A start that found no room had consumed the clean mark."""
    reported: set[str] = set()
    lost: set[str] = set()
    for nth in itertools.count():
        place = tmp_path / f"{nth}"
        take(place).close(clean=True, metadata_bytes=7, written={"t-0": ROWS})
        directory = None
        with failing_calls(nth, number) as calls, contextlib.suppress(QuiverlogError):
            directory = take(place)
        if not calls.failed:
            break
        if directory is None:
            directory = take(place)
            (reported if directory.clean else lost).add(calls.failed)
            assert directory.metadata_bytes == (7 if directory.clean else 0)
            assert directory.written == ({"t-0": ROWS} if directory.clean else {})
    assert reported >= {"open", "pread", "unlink"}
    assert lost <= {"fsync", "stat"}, "after the mark is removed, its removal is flushed"


@pytest.mark.parametrize("number", NUMBERS, ids=errno.errorcode.get)
def test_an_older_directory_records_that_proofs_are_required(tmp_path: Path, number: int) -> None:
    """Whichever call fails, the file is the old one or the new one."""
    found: set[bool] = set()
    for nth in itertools.count():
        place = tmp_path / f"{nth}"
        take(place).close(clean=True, metadata_bytes=7, written={})
        directory = None
        with failing_calls(nth, number) as calls, contextlib.suppress(QuiverlogError):
            directory = take(place, proof_required=True, also_of_old=True)
        if directory is not None:
            assert directory.proof_required
            directory.close(clean=True, metadata_bytes=7, written={})
        again = take(place)
        found.add(again.proof_required)
        again.close(clean=False)
        if not calls.failed:
            break
    assert found == {True, False}


def test_what_is_recorded_stays(tmp_path: Path) -> None:
    take(tmp_path).close(clean=False)
    for of_new, of_old, recorded in (
        (True, False, False), (False, True, False), (True, True, True), (False, False, True),
    ):  # fmt: skip
        one = take(tmp_path, proof_required=of_new, also_of_old=of_old)
        assert one.proof_required is recorded
        one.close(clean=False)
