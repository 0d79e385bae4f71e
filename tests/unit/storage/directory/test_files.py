"""Real files: views outlive them, the lock holds, and small files refuse what is not theirs."""

from __future__ import annotations

from pathlib import Path

import pytest

from quiverlog.errors import CorruptLog, DataDirectoryInUse
from quiverlog.storage.directory.data_directory import DataDirectory
from quiverlog.storage.disk.posix import PosixDisk
from quiverlog.storage.metadata.metadata_log import MetadataLog
from quiverlog.storage.segment.epochs import LeaderEpochs


def test_views_stay_valid_after_growth_deletion_and_close(tmp_path: Path) -> None:
    disk = PosixDisk(files_open_max=1)
    file = disk.open(str(tmp_path / "a"), create=True)
    file.append([b"x" * 200_000])
    small, large = file.read(0, 100), file.read(0, 200_000)
    file.append([b"y" * 200_000])
    larger = file.read(100_000, 300_000)
    file.close()
    disk.remove(file.path)
    assert (bytes(small), bytes(large)) == (b"x" * 100, b"x" * 200_000)
    assert bytes(larger) == b"x" * 100_000 + b"y" * 200_000


def test_a_directory_has_one_broker(tmp_path: Path) -> None:
    def take() -> DataDirectory:
        return DataDirectory.open(PosixDisk(), str(tmp_path), node_id=0, entropy=bytes)

    first = take()
    with pytest.raises(DataDirectoryInUse):
        take()
    first.close(clean=True, metadata_bytes=64)
    second = take()
    assert second.clean
    second.close(clean=False)
    third = take()
    assert not third.clean
    third.close(clean=False)


def test_a_lock_is_gone_though_a_descriptor_of_it_is_open(tmp_path: Path) -> None:
    """As a traceback does on Python 3.12: a start that failed kept its directory locked."""
    path = str(tmp_path)
    lock = PosixDisk().lock(path)
    kept = lock.directory(path)
    lock.release()
    assert PosixDisk().lock(path).holds()
    assert kept is not None


def test_epochs_as_bytes() -> None:
    epochs = LeaderEpochs(lambda: 30)
    epochs.assign(2, 0)
    epochs.assign(5, 20)
    data = epochs.dump()
    assert data[:16].hex() == "515645504f434853010000001c000000"
    assert data[20:].hex() == "02000000" + "02000000" + "00" * 8 + "05000000" + "14" + "00" * 7
    assert [epochs.end_offset_for(e) for e in (1, 2, 4, 5, 6)] == [
        (1, 0), (2, 20), (2, 20), (5, 30), (-1, -1)
    ]  # fmt: skip
    with pytest.raises(CorruptLog):
        epochs.load("f", data[:-1] + b"\x01")
    with pytest.raises(CorruptLog):
        epochs.load("f", data[:8] + b"\x02" + data[9:])


def test_the_metadata_log_keeps_what_was_acknowledged(tmp_path: Path) -> None:
    log = MetadataLog.open(PosixDisk(), str(tmp_path))
    log.append([b"one", b"two"])
    log.append([b"three"])
    log.close()
    path = tmp_path / "metadata.log"
    whole = path.read_bytes()
    path.write_bytes(whole + whole[16:30])
    assert list(MetadataLog.open(PosixDisk(), str(tmp_path)).records()) == [
        b"one",
        b"two",
        b"three",
    ]
    assert path.read_bytes() == whole
    path.write_bytes(whole[:30] + b"\xff" + whole[31:])
    with pytest.raises(CorruptLog, match="damaged at byte 16"):
        MetadataLog.open(PosixDisk(), str(tmp_path))
