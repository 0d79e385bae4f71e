"""`node.json`: whose a directory is, and which one; what a start leaves that cannot write it."""

from __future__ import annotations

import contextlib
import errno
import itertools
import json
from pathlib import Path

import pytest

from quiverlog.errors import CorruptLog, QuiverlogError
from quiverlog.storage.directory.data_directory import DataDirectory
from tests.support.failing_os import failing_calls
from tests.unit.storage.directory.test_data_directory import NUMBERS, take


def test_a_directory_has_an_id_for_life_and_an_older_one_gets_one(tmp_path: Path) -> None:
    path = tmp_path / "d"
    first = take(path)
    assert len(first.directory_id) == 32
    first.close(clean=False)
    again = take(path)
    assert again.directory_id == first.directory_id
    again.close(clean=False)
    make_older(path).close(clean=False)
    older = take(path)
    assert older.directory_id != first.directory_id
    older.close(clean=False)
    assert take(path).directory_id == older.directory_id


def make_older(path: Path) -> DataDirectory:
    """A directory as it was before directories had ids; taken, and its file put back."""
    directory = take(path)
    file = path / "node.json"
    node = json.loads(file.read_bytes())
    file.write_text(json.dumps({k: node[k] for k in ("magic", "version", "cluster_id", "node_id")}))
    return directory


def test_no_flipped_bit_of_node_json_is_believed(tmp_path: Path) -> None:
    """A changed cluster id, which nothing else knows, was taken for the directory's."""
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


def test_an_id_that_is_gone_is_not_made_anew_where_votes_were_given_under_it(
    tmp_path: Path,
) -> None:
    """A new one was drawn, and written over the file that was said to be unchanged."""
    path = tmp_path / "d"
    make_older(path).close(clean=False)
    (path / "metadata" / "quorum-state").write_bytes(b"a vote")
    before = (path / "node.json").read_bytes()
    with pytest.raises(CorruptLog, match=r"node\.json has no directory id, yet there is a quorum"):
        take(path)
    assert (path / "node.json").read_bytes() == before


@pytest.mark.parametrize("number", NUMBERS, ids=errno.errorcode.get)
def test_a_start_that_fails_takes_nothing_of_what_the_last_stop_has_told(
    tmp_path: Path, number: int
) -> None:
    """The first start after an upgrade found no room for an id, and the clean mark was gone."""
    told: set[str] = set()
    lost: set[str] = set()
    for nth in itertools.count():
        place = tmp_path / f"{nth}"
        make_older(place).close(clean=True, metadata_bytes=7, written={"t-0": None})
        directory = None
        with failing_calls(nth, number) as calls, contextlib.suppress(QuiverlogError):
            directory = take(place)
        if not calls.failed:
            break
        if directory is None:
            directory = take(place)
            (told if directory.clean else lost).add(calls.failed)
            assert directory.metadata_bytes == (7 if directory.clean else 0)
            assert directory.written == ({"t-0": None} if directory.clean else {})
    assert told >= {"open", "pwrite", "fsync", "rename", "unlink"}
    assert lost <= {"fsync", "stat"}, "after the mark is removed, its removal is flushed"
