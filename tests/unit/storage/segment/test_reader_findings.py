"""What readers of the storage code found: older metadata, ranges of unreadable bytes, indexes that
no cache counts."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path

import pytest

from quiverlog.errors import CorruptLog
from quiverlog.storage.log.log import Log, LogConfig
from quiverlog.storage.segment.reading_jobs import LoadIndexJob, NotResident
from quiverlog.storage.segment.segment import segment_path
from quiverlog.storage.segment.segments import IndexCache
from quiverlog.types import Now
from tests.model.test_log_model import make_batch
from tests.sim.disk import SimDisk, SimFile
from tests.support.logs import flush
from tests.support.node import NodeDriver, batch_of

NOW = Now(0, 1_000_000_000_000_000)
DIRECTORY = "data/t-0"
PATH = segment_path(DIRECTORY, 0)


def open_log(disk: SimDisk, *, clean: bool, **more: object) -> Log:
    disk.make_dir(DIRECTORY)
    config = LogConfig(retention_ms=-1)
    return Log.open(disk, DIRECTORY, config=config, clean=clean, now=NOW, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("clean", [True, False], ids=["clean", "unclean"])
def test_a_log_of_newer_epochs_than_the_metadata_log_takes_no_rows(clean: bool) -> None:
    """Rows that were stored under an older epoch would be reported as damaged by the next start."""
    disk = SimDisk(1)
    log = open_log(disk, clean=True)
    log.append([make_batch(3, NOW.wall_us, 1, 7)], 7, NOW)
    flush(log)
    log.close(clean=True)
    disk.kill()
    files = {path: disk.read_file(path) for path in disk.paths()}
    with pytest.raises(CorruptLog, match="leader epoch 7"):
        open_log(disk, clean=clean, epoch_newest=6)
    assert {path: disk.read_file(path) for path in disk.paths()} == files, "nothing was changed"
    log = open_log(disk, clean=clean, epoch_newest=7)
    assert log.reader.read(0, bytes_max=1, end_offset=3)


def test_a_partition_of_newer_epochs_is_offline_and_keeps_its_rows(tmp_path: Path) -> None:
    node = NodeDriver(tmp_path)
    topic_id = node.create("t", 1)
    backup = (Path(node.config.data_dir) / "metadata/metadata.log").read_bytes()
    node.produced(topic_id, batch_of([1, 2, 3]))
    for _ in range(3):  # Each unclean start begins an epoch.
        node.crash()
    node.produced(topic_id, batch_of([4]))
    node.stop()
    left = Path(node.config.data_dir)
    (left / "clean-shutdown").unlink()
    for name in ("older", "own"):
        shutil.copytree(left, tmp_path / name / "data-1")
    (tmp_path / "older/data-1/metadata/metadata.log").write_bytes(backup)
    (offline,) = NodeDriver(tmp_path / "older").node.broker.assignment.offline.values()
    assert "metadata.log has 1: that file is older" in offline.error.message
    shutil.copytree(
        tmp_path / "older/data-1/data", tmp_path / "own/data-1/data", dirs_exist_ok=True
    )
    node = NodeDriver(tmp_path / "own")
    (replica,) = node.node.broker.replicas.values()
    assert replica.log.log_end_offset == 4
    assert replica.log.reader.read(3, bytes_max=1, end_offset=4)


def test_a_second_unreadable_range_is_reported_with_its_own_extent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    disk = SimDisk(1)
    log = open_log(disk, clean=True)
    for number in range(8):
        log.append([make_batch(3, NOW.wall_us, 2_000, number + 1)], 0, NOW)
    flush(log)
    bad: list[int] = []
    read = SimFile.read

    def failing(self: SimFile, position: int, size: int) -> memoryview:
        if self.path == PATH and any(position <= at < position + size for at in bad):
            raise OSError(errno.EIO, "simulated: gone again when the segment is scanned", PATH)
        return read(self, position, size)

    monkeypatch.setattr(SimFile, "read", failing)
    for number in (1, 5):
        bad.append(64 + 128_064 * number + 70_000)  # More than a copy: read through a mapping.
        with pytest.raises(CorruptLog) as caught:
            log.reader.read(3 * number + 1, bytes_max=1, end_offset=24)
        details = caught.value.details
        assert (details["offset"], details["end_offset"]) == (3 * number, 3 * number + 3)


def test_an_index_that_is_not_used_again_is_counted() -> None:
    disk = SimDisk(1)
    indexes = IndexCache()
    log = open_log(disk, clean=True, indexes=indexes)
    log.append([make_batch(3, NOW.wall_us, 1, 7)], 0, NOW)
    log.roll()
    log.append([make_batch(3, NOW.wall_us, 1, 7)], 0, NOW)
    flush(log)
    log.close(clean=True)
    log = open_log(disk, clean=True, indexes=indexes)
    with pytest.raises(NotResident) as cold:
        log.reader.read(0, bytes_max=1, end_offset=6, cold_ok=False)
    job = cold.value.job
    assert isinstance(job, LoadIndexJob)
    before = indexes.byte_count
    log.reader.complete_read(job, job.run())
    assert job.segment.index is not None
    assert indexes.byte_count == before + job.segment.index.byte_count
