"""What the loop does for a log of many producers or files: capture references, never all of it.

The disk refuses whatever may wait for it; the producers refuse to be encoded or restored.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from quiverlog.core.partition import producers as producers_module
from quiverlog.core.partition.producers import ProducerStates
from quiverlog.storage.disk.disk import Disk
from quiverlog.storage.disk.posix import PosixDisk
from quiverlog.storage.log.log import Log, LogConfig
from quiverlog.types import Now
from tests.model.test_log_model import make_batch
from tests.support.guarded_disk import GuardedDisk

NOW = Now(0, 1_000_000_000_000_000)
CONFIG = LogConfig(segment_bytes=700, index_interval_bytes=100)
PRODUCERS = 50


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> GuardedDisk:
    """Nothing is encoded, restored or replayed while `on_loop` is set."""
    guard = GuardedDisk(PosixDisk())

    def refused(call: Callable[..., Any]) -> Callable[..., Any]:
        def guarded(*arguments: Any, **options: Any) -> Any:
            assert not guard.on_loop, f"{call.__qualname__} on the loop"
            return call(*arguments, **options)

        return guarded

    encode = producers_module.msgspec.msgpack.encode
    monkeypatch.setattr(producers_module.msgspec.msgpack, "encode", refused_encode(guard, encode))
    for name in ("restore", "replay"):
        monkeypatch.setattr(ProducerStates, name, refused(getattr(ProducerStates, name)))
    return guard


def refused_encode(guard: GuardedDisk, encode: Callable[[Any], bytes]) -> Callable[[Any], bytes]:
    def guarded(value: Any) -> bytes:
        assert not guard.on_loop, "producers are encoded on the loop"
        return encode(value)

    return guarded


def open_log(disk: GuardedDisk, path: Path) -> tuple[Log, ProducerStates]:
    directory = path / "t-0"
    directory.mkdir(exist_ok=True)
    producers = ProducerStates(NOW.wall_us)
    log = Log.open(
        cast("Disk", disk),
        str(directory),
        config=CONFIG,
        clean=False,
        now=NOW,
        producers=producers,
    )
    return log, producers


def append(log: Log, producers: ProducerStates, pid: int, sequence: int = 0) -> None:
    header, view = make_batch(3, NOW.wall_us, 1, pid % 251, producer=(pid, 0, sequence))
    offset = log.append([(header, view)], 0, NOW)
    producers.record(header, offset, NOW.wall_us)


def flush(log: Log, disk: GuardedDisk) -> None:
    """As the node does it: begun and completed on the loop, run off it."""
    disk.on_loop = True
    job = log.begin_flush()
    disk.on_loop = False
    result = job.run()
    disk.on_loop = True
    log.complete_flush(job, result)
    disk.on_loop = False


def test_rolling_and_flushing_encode_no_producers_on_the_loop(
    disk: GuardedDisk, tmp_path: Path
) -> None:
    log, producers = open_log(disk, tmp_path)
    for pid in range(PRODUCERS):
        disk.on_loop = True
        append(log, producers, pid)
        disk.on_loop = False
    assert log.reader.segment_count > 5
    rolled_at = log.reader.segments[-1].base_offset
    append(log, producers, 7, 3)
    flush(log, disk)
    log.close(clean=False)
    _, again = open_log(disk, tmp_path)
    assert again.snapshot() == producers.snapshot()
    assert (tmp_path / "t-0" / f"producers-{rolled_at:020d}.snapshot").exists()


def test_a_snapshot_is_of_the_moment_of_the_roll(disk: GuardedDisk, tmp_path: Path) -> None:
    log, producers = open_log(disk, tmp_path)
    append(log, producers, 1)
    log.roll()
    at_roll = producers.snapshot()
    append(log, producers, 1, 3)
    append(log, producers, 2)
    flush(log, disk)
    name = tmp_path / "t-0" / f"producers-{3:020d}.snapshot"
    assert name.read_bytes().endswith(at_roll)


def test_a_trim_encodes_no_producers_on_the_loop(disk: GuardedDisk, tmp_path: Path) -> None:
    log, producers = open_log(disk, tmp_path)
    for pid in range(PRODUCERS):
        append(log, producers, pid)
    flush(log, disk)
    disk.on_loop = True
    job = log.begin_trim(log.log_end_offset)
    disk.on_loop = False
    assert job is not None
    result = job.run()
    disk.on_loop = True
    files = log.complete_trim(job, result)
    disk.on_loop = False
    assert files is not None
    files.run()
    log.close(clean=False)
    _, again = open_log(disk, tmp_path)
    assert again.snapshot() == producers.snapshot()


@pytest.mark.parametrize("cut_to", [0, 3, 100, 101, 140])
def test_what_a_truncation_leaves_is_read_by_its_job(
    disk: GuardedDisk, tmp_path: Path, cut_to: int
) -> None:
    """The job reads the producers, and the index that the next append needs."""
    log, producers = open_log(disk, tmp_path)
    expected = ProducerStates(NOW.wall_us)
    for pid in range(PRODUCERS):
        append(log, producers, pid)
        if log.log_end_offset <= cut_to:
            expected.record(log_header(log), log.log_end_offset - 3, NOW.wall_us)
    flush(log, disk)
    disk.on_loop = True
    job = log.begin_truncate(cut_to)
    disk.on_loop = False
    assert job is not None
    result = job.run()
    disk.on_loop = True
    assert log.complete_truncate(job, result) == cut_to // 3 * 3
    disk.evict()
    append(log, producers, 200)
    disk.on_loop = False
    expected.record(log_header(log), log.log_end_offset - 3, NOW.wall_us)
    assert producers.snapshot() == expected.snapshot()
    flush(log, disk)
    log.close(clean=False)
    log, again = open_log(disk, tmp_path)
    assert log.log_end_offset == cut_to // 3 * 3 + 3
    assert again.snapshot() == expected.snapshot()


def log_header(log: Log) -> Any:
    """The header of the newest batch."""
    return next(log.reader.headers(log.log_end_offset - 1))
