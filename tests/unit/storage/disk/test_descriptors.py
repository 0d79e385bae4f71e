"""No descriptor left, and calls that fail: a file keeps what it has, and goes on afterwards."""

from __future__ import annotations

import contextlib
import errno
import gc
import itertools
import os
import resource
import stat
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from quiverlog.errors import DiskFull, QuiverlogError, StorageFault, ThrottledBroker
from quiverlog.storage.disk.disk import out_of_descriptors
from quiverlog.storage.disk.posix import RESERVED_DESCRIPTORS, PosixDisk
from quiverlog.storage.log.jobs import FlushJob
from quiverlog.storage.log.log import Log, LogConfig
from quiverlog.types import Now
from tests.model.test_log_model import make_batch
from tests.support.failing_os import failing_calls

NOW = Now(0, 1_000_000_000_000_000)
NUMBERS = [errno.EIO, errno.ENOSPC, errno.EMFILE]


@contextlib.contextmanager
def no_descriptor_left() -> Iterator[None]:
    """Another program has taken every descriptor that this process may have."""
    gc.collect()  # Files of other tests, in cycles, must not be closed in the middle.
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(int(name) for name in os.listdir("/proc/self/fd"))
    taken: list[int] = []
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 10, hard))
    try:
        with contextlib.suppress(OSError):
            while True:
                taken.append(os.open(os.devnull, os.O_RDONLY))
        yield
    finally:
        for fd in taken:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_the_reserve_serves_flushes_and_removals(tmp_path: Path) -> None:
    """A flush that found no descriptor counted as a failed fsync: the partition stayed faulty."""
    disk = PosixDisk(files_open_max=4, reserved_descriptors=4)
    files = [disk.open(str(tmp_path / f"{n}"), create=True) for n in range(12)]
    disk.make_dir(str(tmp_path / "old" / "inner"))
    (tmp_path / "old" / "inner" / "file").write_bytes(b"x")
    with no_descriptor_left():
        for _ in range(5):
            for file in files:
                file.append([b"row"])
                file.close()
                file.sync()
            disk.sync_dir(str(tmp_path))
            disk.write_file_atomic(str(tmp_path / "small"), b"contents")
            assert disk.read_file(str(tmp_path / "small")) == b"contents"
            assert len(disk.list(str(tmp_path))) > 12
        disk.remove_tree(str(tmp_path / "old"))
        disk.rename(str(tmp_path / "small"), str(tmp_path / "renamed"))
    assert all(Path(file.path).read_bytes() == b"row" * 5 for file in files)
    assert not (tmp_path / "old").exists()


def new_log(disk: PosixDisk, path: Path) -> Log:
    disk.make_dir(str(path))
    config = LogConfig(segment_bytes=300, index_interval_bytes=1)
    return Log.open(disk, str(path), config=config, clean=False, now=NOW)


def append(log: Log) -> None:
    log.append([make_batch(3, NOW.wall_us, 1, 7)], 0, NOW)


def test_a_flush_of_new_names_finds_a_descriptor_for_the_directory(tmp_path: Path) -> None:
    """All job threads at once, each with files of its own, while clients have taken the rest."""
    disk = PosixDisk(files_open_max=4, reserved_descriptors=RESERVED_DESCRIPTORS)
    logs = [new_log(disk, tmp_path / f"t-{n}") for n in range(8)]
    with ThreadPoolExecutor(len(logs)) as threads:
        list(threads.map(lambda log: log.reader.size_bytes, logs))  # The threads are there.
        with no_descriptor_left():
            for _ in range(3):
                for log in logs:
                    for _ in range(4):
                        append(log)
                jobs = [log.begin_flush(background=True) for log in logs]
                assert all(job.names_changed for job in jobs)
                for log, job, result in zip(
                    logs, jobs, threads.map(FlushJob.run, jobs), strict=True
                ):
                    assert log.complete_flush(job, result) == log.log_end_offset
                    assert result.point is not None, "the notes were written, too"
    for log in logs:
        assert log.reader.segment_count > 3
        log.close(clean=False)
        assert (
            Log.open(disk, log.directory, config=log.config, clean=False, now=NOW).log_end_offset
            == log.log_end_offset
        )


def test_a_flush_without_a_descriptor_for_the_directory_is_no_fault(tmp_path: Path) -> None:
    """Without a reserve, and with no other file that could give up its own."""
    disk = PosixDisk()
    log = new_log(disk, tmp_path / "t-0")
    append(log)
    log.reader.segments[-1].file.close()
    with no_descriptor_left():
        job = log.begin_flush()
        with pytest.raises(OSError, match="open files") as failed:
            job.run()
        assert not log.fail_flush(job, failed.value)
    job = log.begin_flush()
    assert job.names_changed, "the names are still to be flushed"
    assert log.complete_flush(job, job.run()) == 3


def test_files_that_stay_open_give_up_theirs_when_the_reserve_is_spent(tmp_path: Path) -> None:
    """Each of them took one of the reserve and kept it: the fifth flush found none."""
    disk = PosixDisk(files_open_max=64, reserved_descriptors=4)
    files = [disk.open(str(tmp_path / f"{n}"), create=True) for n in range(12)]
    for file in files:
        file.close()
    with no_descriptor_left():
        for _ in range(2):
            for file in files:
                file.append([b"row"])
                file.sync()
            disk.sync_dir(str(tmp_path))
    assert all(Path(file.path).read_bytes() == b"row" * 2 for file in files)


def test_directories_that_are_locked_are_flushed_without_a_descriptor(tmp_path: Path) -> None:
    disk = PosixDisk()
    data = str(tmp_path / "data")
    disk.make_dir(data)
    lock = disk.lock(str(tmp_path), guarded=("data",))
    with no_descriptor_left():
        disk.sync_dir(data)
        disk.sync_dir(str(tmp_path))
        os.rename(data, f"{data}.old")
        os.mkdir(data)
        with pytest.raises(OSError, match="open files"):
            disk.sync_dir(data)
    lock.release()
    with no_descriptor_left(), pytest.raises(OSError, match="open files"):
        disk.sync_dir(str(tmp_path))


def test_without_a_reserve_nothing_was_attempted(tmp_path: Path) -> None:
    disk = PosixDisk()
    file = disk.open(str(tmp_path / "a"), create=True)
    file.close()
    with no_descriptor_left():
        with pytest.raises(ThrottledBroker) as refused:
            file.append([b"row"])
        assert out_of_descriptors(refused.value)
        assert refused.value.retriable
        with pytest.raises(OSError, match="open files") as failed:
            file.sync()
        assert out_of_descriptors(failed.value)
    assert file.append([b"row"]) == 0
    file.sync()
    assert Path(file.path).read_bytes() == b"row"


def test_the_reserve_is_filled_again(tmp_path: Path) -> None:
    gc.collect()
    disk = PosixDisk(reserved_descriptors=3)
    before = len(os.listdir("/proc/self/fd"))
    with no_descriptor_left():
        held = [disk.open_descriptor(str(tmp_path), os.O_RDONLY) for _ in range(3)]
        with pytest.raises(OSError, match="open files"):
            disk.open_descriptor(str(tmp_path), os.O_RDONLY)
    del held
    disk.sync_dir(str(tmp_path))
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("number", NUMBERS, ids=errno.errorcode.get)
def test_every_system_call_of_a_file_may_fail_once(tmp_path: Path, number: int) -> None:
    """What an append reported as stored is there, and nothing else is, whichever call failed."""
    refused: list[tuple[QuiverlogError, str]] = []
    for nth in itertools.count():
        disk = PosixDisk(files_open_max=1)
        first = disk.open(str(tmp_path / f"{nth}-a"), create=True)
        second = disk.open(str(tmp_path / f"{nth}-b"), create=True)
        stored: dict[str, bytes] = {first.path: b"", second.path: b""}
        with failing_calls(nth, number) as calls:
            for count in range(4):
                for file in (first, second):
                    data = [b"%d" % count * 50_000, b"." * 30_000]
                    try:
                        position = file.append(data)
                    except QuiverlogError as error:
                        refused.append((error, file.path))
                        continue
                    assert position == len(stored[file.path])
                    stored[file.path] += b"".join(data)
                    with contextlib.suppress(OSError):
                        view = file.read(0, 1 << 30)
                        assert view == stored[file.path]
                    with contextlib.suppress(OSError):
                        file.sync()
                    with contextlib.suppress(QuiverlogError):
                        file.rewrite(position, b"".join(data))
        for file in (first, second):
            assert file.size == len(stored[file.path])
            file.append([b"the end"])
            file.sync()
            assert Path(file.path).read_bytes() == stored[file.path] + b"the end"
        if not calls.failed:
            break
    assert nth > 20
    expected = {errno.EIO: StorageFault, errno.ENOSPC: DiskFull, errno.EMFILE: ThrottledBroker}
    assert {type(error) for error, _ in refused} == {expected[number]}
    for refusal, path in refused:
        assert refusal.details["file"] == path
        assert str(tmp_path) not in refusal.message, "clients see the message"


def test_a_replaced_file_keeps_its_views_and_takes_the_name(tmp_path: Path) -> None:
    disk = PosixDisk()
    old = disk.open(str(tmp_path / "log"), create=True)
    old.append([b"a" * 200_000])
    view = old.read(0, 200_000)
    new = disk.open(str(tmp_path / "log.new"), create=True)
    new.append([b"b" * 1_000])
    new.sync()
    disk.replace(new, old.path)
    disk.sync_dir(str(tmp_path))
    old.close()
    assert bytes(view) == b"a" * 200_000
    assert new.path == str(tmp_path / "log")
    new.close()
    new.append([b"c"])
    assert (tmp_path / "log").read_bytes() == b"b" * 1_000 + b"c"
    assert os.listdir(tmp_path) == ["log"]


def test_directories_are_made_for_their_owner(tmp_path: Path) -> None:
    disk = PosixDisk()
    disk.make_dir(str(tmp_path / "a" / "b" / "c"))
    disk.make_dir(str(tmp_path / "a" / "b" / "c"))
    for path in ("a", "a/b", "a/b/c"):
        assert stat.S_IMODE((tmp_path / path).stat().st_mode) == 0o700
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(NotADirectoryError):
        disk.make_dir(str(tmp_path / "file"))
    with pytest.raises(NotADirectoryError):
        disk.make_dir(str(tmp_path / "file" / "below"))
