"""A start on a quorum's log: what it refuses."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path

import pytest

from quiverlog.core.raft.messages import (
    Entry,
    EntryKind,
    HardState,
    ReplicaKey,
    SnapshotMeta,
)
from quiverlog.core.raft.snapshots import SnapshotRead
from quiverlog.errors import CorruptLog, UnsupportedFormat
from quiverlog.storage.disk.posix import PosixDisk
from quiverlog.storage.metadata.metadata_log import pack_frame
from quiverlog.storage.metadata.quorum_jobs import pack_state
from quiverlog.storage.metadata.quorum_log import QuorumLog
from tests.support.quorum_logs import (
    KEY,
    OTHER,
    VOTERS,
    Story,
    entry,
    incoming,
    open_log,
    read,
)


# --- what a start refuses -----------------------------------------------------------------------
def lived(path: Path) -> QuorumLog:
    story = Story(open_log(PosixDisk(), str(path)), b"")
    story.write(entry(1, 2), entry(2, 2), state=HardState(2, KEY))
    story.write(entry(3, 2))
    return story.log


def test_a_missing_vote_beside_a_log_is_refused(tmp_path: Path) -> None:
    lived(tmp_path).close()
    before = (tmp_path / "metadata.log").read_bytes()
    (tmp_path / "quorum-state").unlink()
    with pytest.raises(CorruptLog, match="quorum-state is missing") as caught:
        open_log(PosixDisk(), str(tmp_path))
    # With what a backup has forgotten a voter may vote twice.
    assert "One of several: never from a backup" in caught.value.message
    assert (tmp_path / "metadata.log").read_bytes() == before


def test_a_vote_older_than_the_log_is_refused(tmp_path: Path) -> None:
    open_log(PosixDisk(), str(tmp_path)).close()
    old = (tmp_path / "quorum-state").read_bytes()
    lived(tmp_path).close()
    (tmp_path / "quorum-state").write_bytes(old)
    with pytest.raises(CorruptLog, match="has term 0, the log 2"):
        open_log(PosixDisk(), str(tmp_path))


def test_a_directory_that_lost_its_id_is_refused(tmp_path: Path) -> None:
    lived(tmp_path / "metadata").close()
    with pytest.raises(CorruptLog, match=r"node\.json has another directory id than 'disk'"):
        QuorumLog.open(PosixDisk(), str(tmp_path / "metadata"), ReplicaKey(0, "another"))


def test_every_flipped_bit_of_the_vote_is_noticed(tmp_path: Path) -> None:
    lived(tmp_path).close()
    path = tmp_path / "quorum-state"
    good = path.read_bytes()
    for bit in range(8 * len(good)):
        bad = bytearray(good)
        bad[bit // 8] ^= 1 << bit % 8
        path.write_bytes(bad)
        with pytest.raises(CorruptLog):
            open_log(PosixDisk(), str(tmp_path))


def test_a_missing_log_beside_a_vote_is_refused(tmp_path: Path) -> None:
    lived(tmp_path).close()
    (tmp_path / "metadata.log").unlink()
    with pytest.raises(CorruptLog, match=r"metadata\.log is missing, yet quorum-state"):
        open_log(PosixDisk(), str(tmp_path))


def test_a_log_cut_to_its_header_or_damaged_in_the_middle_is_refused(tmp_path: Path) -> None:
    lived(tmp_path).close()
    path = tmp_path / "metadata.log"
    good = path.read_bytes()
    path.write_bytes(good[:16])
    with pytest.raises(CorruptLog, match="snapshot"):
        open_log(PosixDisk(), str(tmp_path))
    for at in range(20, len(good) - 60):
        path.write_bytes(good[:at] + bytes([good[at] ^ 4]) + good[at + 1 :])
        with pytest.raises(CorruptLog):
            open_log(PosixDisk(), str(tmp_path))
    for size in range(len(good) - 1, len(good) - 40, -1):
        path.write_bytes(good[:size])
        assert read(PosixDisk(), str(tmp_path)).entries == (entry(1, 2), entry(2, 2)), "torn"


def test_the_judge_of_a_torn_end_gets_each_entry_once(tmp_path: Path) -> None:
    """Seen in a simulated cluster: entries that the snapshot covers, and that are kept beside it,
    were taken in twice, and the start failed."""
    story = Story(open_log(PosixDisk(), str(tmp_path)), b"")
    story.write(*(entry(index, 2) for index in range(1, 6)), state=HardState(2, KEY))
    story.snapshot(3, kept=4)
    assert story.log.first_index <= 3, "an entry of the snapshot is kept"
    story.write(entry(6, 2))
    story.log.close()
    path = tmp_path / "metadata.log"
    path.write_bytes(path.read_bytes()[:-1])
    reported: list[bytes] = []

    def before_cut(records: Sequence[bytes]) -> str:
        reported.extend(records)
        return ""

    QuorumLog.open(PosixDisk(), str(tmp_path), KEY, before_cut=before_cut).close()
    assert reported == [b"as of 3", entry(4, 2).data, entry(5, 2).data]


def test_a_log_without_an_entry_is_refused_where_there_are_partitions(tmp_path: Path) -> None:
    open_log(PosixDisk(), str(tmp_path)).close()
    with pytest.raises(CorruptLog, match="holds no entry"):
        open_log(PosixDisk(), str(tmp_path), create=False)


def test_a_damaged_snapshot_of_another_replica_is_not_taken(tmp_path: Path) -> None:
    others = bytearray(incoming())
    others[-1] ^= 1
    story = Story(open_log(PosixDisk(), str(tmp_path)), bytes(others))
    story.write(entry(1, 1), state=HardState(6, KEY))
    story.install()
    assert story.promised.entries == (entry(1, 1),)
    assert not story.log.fault, "only a temporary file was written"
    story.write(entry(2, 1))
    assert read(PosixDisk(), str(tmp_path)).entries == (entry(1, 1), entry(2, 1))


def test_a_snapshot_that_was_replaced_is_not_read_any_more(tmp_path: Path) -> None:
    log = lived(tmp_path)
    meta = SnapshotMeta(0, 0, {KEY: ""})
    job = log.begin_read(SnapshotRead(OTHER, meta, 0, 1 << 20))
    assert job.run().done
    snapshot = log.begin_snapshot(SnapshotMeta(2, 2, VOTERS), lambda: b"two", kept=0)
    log.complete_snapshot(snapshot, snapshot.run())
    assert job.run().data is None


def test_voters_that_mean_nothing_are_damage(tmp_path: Path) -> None:
    story = Story(open_log(PosixDisk(), str(tmp_path)), b"")
    story.write(Entry(1, 2, EntryKind.VOTERS, b"\x92\x01\x90"), state=HardState(2, KEY))
    story.log.close()
    with pytest.raises(CorruptLog, match="has voters that cannot be read"):
        open_log(PosixDisk(), str(tmp_path))


# --- a directory from before the first release ----------------------------------------------------
SINGLE = b"QVMETLOG" + struct.pack("<H6x", 1) + pack_frame([b"\x91\x92\x09\x01"])
"""The controller's records with no snapshot in front of them: of a broker without a quorum."""


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (
            b"QVMETLOG" + struct.pack("<H6x", 2),
            "has format version 2; this quiverlog reads version 1",
        ),
        (SINGLE, "has the entries of a quiverlog before its first release"),
    ],
    ids=["quorum", "without a quorum"],
)
def test_a_directory_from_before_the_first_release_is_refused_and_left_as_it_is(
    tmp_path: Path, data: bytes, found: str
) -> None:
    (tmp_path / "metadata.log").write_bytes(data)
    (tmp_path / "quorum-state").write_bytes(pack_state(HardState(1, None)))
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(UnsupportedFormat, match=found) as caught:
        open_log(PosixDisk(), str(tmp_path))
    assert "this one with an empty data directory" in caught.value.hint
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
