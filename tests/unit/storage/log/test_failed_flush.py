"""After a failed flush the cache and the disk differ: a restart must not take one for the other.

The kernel marks pages clean that it could not write. A process that dies of it leaves good bytes in
the cache; its successor reads them, and a bare fsync of them succeeds without writing anything.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path

import pytest

from quiverlog.core.partition.producers import ProducerStates
from quiverlog.errors import StorageFault
from quiverlog.storage.disk.posix import PosixDisk
from quiverlog.storage.log.jobs import FlushJob, TrimJob
from quiverlog.storage.log.log import Log, LogConfig
from quiverlog.storage.metadata.metadata_log import MetadataLog
from quiverlog.storage.segment.segment_files import FlushedMark, read_header
from quiverlog.types import Now
from tests.model.test_log_model import make_batch
from tests.sim.disk import SimDisk
from tests.support.logs import flush

NOW = Now(0, 1_000_000_000_000_000)
DIRECTORY = "data/t-0"


def open_log(disk: SimDisk, *, segment_bytes: int = 1 << 20) -> Log:
    config = LogConfig(segment_bytes=segment_bytes)
    return Log.open(disk, DIRECTORY, config=config, clean=False, now=NOW)


def append(log: Log) -> None:
    log.append([make_batch(3, NOW.wall_us, 1, 7)], 0, NOW)


@pytest.mark.parametrize("flushed_before", [0, 2])
@pytest.mark.parametrize("segment_bytes", [1, 1 << 20], ids=["own-segments", "one-segment"])
@pytest.mark.parametrize("seed", range(4))
def test_what_recovery_calls_flushed_survives_a_power_loss(
    flushed_before: int, segment_bytes: int, seed: int
) -> None:
    disk = SimDisk(seed)
    disk.make_dir(DIRECTORY)
    log = open_log(disk, segment_bytes=segment_bytes)
    for _ in range(flushed_before):
        append(log)
        flush(log)
    append(log)
    disk.fail_syncs = 1
    with pytest.raises(OSError, match="simulated"):
        flush(log)
    disk.kill()

    log = open_log(disk, segment_bytes=segment_bytes)
    end = log.flushed_offset
    assert end == log.log_end_offset == 3 * (flushed_before + 1)
    disk.crash()

    log = open_log(disk, segment_bytes=segment_bytes)
    assert log.log_end_offset == end
    assert not log.recovery.damages
    for offset in range(0, end, 3):
        assert log.reader.read(offset, bytes_max=1, end_offset=end)


@pytest.mark.parametrize("first", ["trim", "flush"])
@pytest.mark.parametrize("segment_bytes", [1, 1 << 20], ids=["own-segments", "one-segment"])
@pytest.mark.parametrize("seed", range(4))
def test_a_job_behind_a_failed_fsync_vouches_for_nothing(
    seed: int, segment_bytes: int, first: str
) -> None:
    """The job was started before the loop had the failure. Its own fsyncs would succeed."""
    disk = SimDisk(seed)
    disk.make_dir(DIRECTORY)
    config = LogConfig(segment_bytes=segment_bytes)
    producers = ProducerStates(NOW.wall_us)
    log = Log.open(disk, DIRECTORY, config=config, clean=False, now=NOW, producers=producers)
    for number in range(4):
        append(log)
        if number == 1:
            flush(log)
    before = (disk.list(DIRECTORY), marks(log))
    jobs: dict[str, TrimJob | FlushJob | None] = {
        "trim": log.begin_trim(10),
        "flush": log.begin_flush(background=True),
    }
    job, behind = jobs.pop(first), next(iter(jobs.values()))
    assert job is not None
    assert behind is not None
    disk.fail_syncs = 1
    with pytest.raises((OSError, StorageFault)):
        job.run()
    with pytest.raises(StorageFault):
        behind.run()
    assert (disk.list(DIRECTORY), marks(log)) == before
    disk.kill()
    disk.crash()
    log = open_log(disk, segment_bytes=segment_bytes)
    assert 6 <= log.log_end_offset <= 12
    assert not log.recovery.damages


def test_a_flush_that_had_no_descriptor_does_not_fail_the_next_one() -> None:
    disk = SimDisk(1)
    disk.make_dir(DIRECTORY)
    log = open_log(disk)
    append(log)
    job = log.begin_flush()
    file = job.segments[0].file
    sync = file.sync

    def none_left() -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    file.sync = none_left  # type: ignore[method-assign]
    with pytest.raises(OSError, match="Too many"):
        job.run()
    file.sync = sync  # type: ignore[method-assign]
    assert not log.fail_flush(job, OSError(errno.EMFILE, "Too many open files"))
    assert flush(log) == 3


def marks(log: Log) -> list[FlushedMark]:
    return [read_header(segment.file, segment.base_offset).mark for segment in log.reader.segments]


def test_a_decision_that_was_read_at_the_start_survives_a_power_loss() -> None:
    for seed in range(8):
        disk = SimDisk(seed)
        log = MetadataLog.open(disk, "metadata")
        log.append([b"first"])
        disk.fail_syncs = 1
        with pytest.raises(StorageFault):
            log.append([b"second"])
        disk.kill()
        read = list(MetadataLog.open(disk, "metadata").records())
        assert read == [b"first", b"second"]
        disk.crash()
        assert list(MetadataLog.open(disk, "metadata").records()) == read


def test_a_snapshot_ahead_of_the_log_does_not_come_back() -> None:
    """The snapshot's removal is durable before other rows can take the offsets that it names."""

    class Producers:
        state = b"old life"
        newest_offset = -1

        def capture(self) -> Callable[[], bytes]:
            now = self.state
            return lambda: now

        def restore(self, blob: bytes) -> None:
            self.state = blob

        def replay(self, header: object) -> None:
            pass

    for seed in range(16):
        disk = SimDisk(seed)
        disk.make_dir(DIRECTORY)
        log = open_log(disk)
        append(log)
        flush(log)
        disk.write_file_atomic(f"{DIRECTORY}/producers-{9:020d}.snapshot", b"", durable=True)
        log.close(clean=False)
        for expected in (3, 6, 9, 12):
            log = Log.open(
                disk,
                DIRECTORY,
                config=LogConfig(),
                clean=False,
                now=NOW,
                producers=Producers(),
            )
            assert log.log_end_offset == expected
            disk.crash()
            assert not [name for name in disk.list(DIRECTORY) if name.startswith("producers-")]
            log = open_log(disk)
            append(log)
            flush(log)


def test_rewriting_changes_nothing(tmp_path: Path) -> None:
    disk = PosixDisk()
    path = str(tmp_path / "file")
    file = disk.open(path, create=True)
    data = bytes(range(256)) * 1024
    file.append([data])
    view = file.read(0, len(data))
    file.rewrite(100, data[100:200_000])
    file.sync()
    assert file.size == len(data)
    assert view == data
    assert disk.read_file(path) == data
