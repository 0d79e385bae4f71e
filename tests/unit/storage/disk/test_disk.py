"""The real disk: full for real, descriptors that come and go, views that outlive everything."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest

from quiverlog.errors import DiskFull, StorageFault
from quiverlog.storage.disk import posix_file
from quiverlog.storage.disk.posix import PosixDisk, PosixFile
from quiverlog.storage.log.log import Log, LogConfig
from quiverlog.storage.metadata.metadata_log import MetadataLog
from quiverlog.types import Now
from tests.model.test_log_model import make_batch
from tests.support.logs import compact, flush, trim

NOW = Now(0, 1_000_000_000_000_000)
ROOM_BYTES = 1024 * 1024


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A file system of one MiB. Without the right to mount, a limit takes its place, see below."""
    place = tmp_path / "small"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={ROOM_BYTES}", "none", str(place)]
    try:
        mounted = subprocess.run(command, capture_output=True, text=True, check=False)
        why = mounted.stderr.strip() if mounted.returncode else ""
    except FileNotFoundError:
        why = "there is no mount command"
    if why:
        pytest.skip(f"NOT TESTED on a real full file system: {why}. (The limit's likeness runs.)")
    yield place
    subprocess.run(["umount", "--lazy", str(place)], check=True)  # Open files may linger.


def test_a_full_file_system_refuses_whole_appends_and_recovers(small: Path) -> None:
    fill_and_recover(small, small / "ballast")


def fill_and_recover(place: Path, ballast: Path | None) -> None:
    """Append until there is no room; nothing is half there; with room it goes on."""
    disk = PosixDisk()
    directory = str(place / "t-0")
    disk.make_dir(directory)
    if ballast is not None:
        ballast.write_bytes(b"x" * (ROOM_BYTES // 2))
    config = LogConfig(segment_bytes=1 << 30)
    log = Log.open(disk, directory, config=config, clean=True, now=NOW)
    stored: list[bytes] = []

    def append() -> None:
        header, view = make_batch(1, NOW.wall_us, 999, len(stored) % 250 + 1)
        log.append([(header, view)], 0, NOW)
        stored.append(bytes(view))

    def append_until_full() -> None:
        for _ in range(100):
            append()

    with pytest.raises(DiskFull):
        append_until_full()
    assert 0 < len(stored) < 100
    assert log.log_end_offset == len(stored)
    path = log.reader.segments[-1].path
    assert os.path.getsize(path) == log.reader.segments[-1].file.size == log.reader.size_bytes
    with pytest.raises(DiskFull):
        append()
    if ballast is not None:
        ballast.unlink()
        append()
        assert flush(log) == len(stored)
    log.close(clean=False)
    log = Log.open(disk, directory, config=config, clean=False, now=NOW)
    assert not log.recovery.damages
    assert log.recovery.bytes_truncated == 0
    got = [bytes(log.reader.read(n, bytes_max=1, end_offset=n + 1)[0]) for n in range(len(stored))]
    assert got == stored


_LIMITED = """
import resource, signal, sys
from pathlib import Path
from unittest import mock
from tests.unit.storage.disk.test_disk import fill_and_recover
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (500_000, 500_000))
fill_and_recover(Path(sys.argv[1]), None)
print("fine")
"""


def test_a_file_that_may_not_grow_is_a_full_disk(tmp_path: Path) -> None:
    """RLIMIT_FSIZE, in a process of its own: short writes, then EFBIG, for everybody."""
    command = [sys.executable, "-c", _LIMITED, str(tmp_path)]
    root = Path(__file__).resolve().parents[4]
    done = subprocess.run(
        command, cwd=root, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout == "fine\n", done.stderr


def test_a_full_disk_leaves_the_metadata_log_as_it_was(small: Path) -> None:
    disk = PosixDisk()
    log = MetadataLog.open(disk, str(small))
    kept = 0

    def append_until_full() -> None:
        nonlocal kept
        while True:
            log.append([b"x" * 100_000])
            kept += 1

    with pytest.raises(DiskFull):
        append_until_full()
    with pytest.raises(DiskFull):
        compact(log, [b"y" * ROOM_BYTES])
    log.append([b"small"])
    log.close()
    assert sorted(os.listdir(small)) == ["metadata.log"], "no half-written copy takes the room"
    assert len(list(MetadataLog.open(disk, str(small)).records())) == kept + 1


def test_other_failures_are_no_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = PosixDisk().open(str(tmp_path / "a"), create=True)
    file.append([b"kept"])

    def fail(*_: object) -> int:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "pwrite", fail)
    with pytest.raises(StorageFault, match="Input/output error"):
        file.append([b"lost"])
    assert file.size == 4


# --- descriptors and views ----------------------------------------------------------------------
def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_no_more_descriptors_than_allowed(tmp_path: Path) -> None:
    before = open_descriptors()
    disk = PosixDisk(files_open_max=4)
    files: list[PosixFile] = [disk.open(str(tmp_path / f"{n}"), create=True) for n in range(20)]
    for number, file in enumerate(files):
        file.append([b"%d" % number])
        assert sum(f.is_open for f in files) <= 4
        assert open_descriptors() <= before + 4
    for number, file in enumerate(files):  # Opened again without a word.
        assert bytes(file.read(0, 10)) == b"%d" % number
        file.append([b"!"])
        file.sync()
    assert open_descriptors() <= before + 4
    assert [Path(f.path).read_bytes() for f in files] == [b"%d!" % n for n in range(20)]


def test_descriptors_go_with_the_last_reference(tmp_path: Path) -> None:
    before = open_descriptors()
    file = PosixDisk().open(str(tmp_path / "a"), create=True)
    file.append([b"x" * 200_000])
    view = file.read(0, 200_000)
    file.close()
    Path(file.path).unlink()
    assert bytes(view) == b"x" * 200_000
    del view
    assert open_descriptors() == before


def test_views_of_a_log_outlive_growth_retention_and_close(tmp_path: Path) -> None:
    log = Log.open(
        PosixDisk(files_open_max=2),
        str(tmp_path),
        config=LogConfig(segment_bytes=400_000),
        clean=True,
        now=NOW,
    )
    kept: list[tuple[memoryview, bytes]] = []
    for number in range(40):
        header, view = make_batch(1, NOW.wall_us, 1_500, number + 1)
        log.append([(header, view)], 0, NOW)
        (read,) = log.reader.read(number, bytes_max=1, end_offset=number + 1)
        kept.append((read, bytes(view)))
    assert log.reader.segment_count > 5
    trim(log, 39)
    log.close(clean=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert all(bytes(view) == data for view, data in kept)


@pytest.mark.parametrize("durable", [True, False])
def test_a_small_file_is_replaced_and_nothing_is_left_beside_it(
    tmp_path: Path, durable: bool
) -> None:
    disk = PosixDisk()
    for data in (b"first", b"second"):
        disk.write_file_atomic(str(tmp_path / "a"), data, durable=durable)
        assert disk.read_file(str(tmp_path / "a")) == data
    assert disk.list(str(tmp_path)) == ["a"]


# --- what is in memory --------------------------------------------------------------------------
def evict_from_page_cache(path: str) -> None:
    fd = os.open(path, os.O_RDWR)
    try:
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(fd)


def test_resident_reports_what_is_in_memory(disk_path: Path) -> None:
    size = 1024 * 1024
    file = PosixDisk().open(str(disk_path / "a"), create=True)
    file.append([b"x" * size])
    assert file.resident(0, size), "just written"
    evict_from_page_cache(file.path)
    if file.resident(0, size):
        pytest.skip("NOT TESTED: this file system keeps everything in memory")
    assert not file.resident(size // 2, 1)
    assert file.read_copy(0, 4096) == b"x" * 4096
    assert file.resident(0, 4096)
    assert file.read_copy(0, size) == b"x" * size
    assert file.resident(0, size)
    assert file.resident(100, 100_000)
    assert file.resident(size, 10), "nothing behind the end"


def test_read_cached_gives_what_is_in_memory_and_nothing_else(disk_path: Path) -> None:
    size = 32 * 1024
    file = PosixDisk().open(str(disk_path / "a"), create=True)
    file.append([b"x" * size])
    if file.read_cached(0, size) is None:
        pytest.skip("NOT TESTED: this file system cannot read without waiting")
    assert file.read_cached(100, 200) == b"x" * 200
    assert file.read_cached(size - 100, 200) is None, "it has no such bytes"
    evict_from_page_cache(file.path)
    assert file.read_cached(0, size) is None
    assert file.read_copy(0, size) == b"x" * size
    assert file.read_cached(0, size) == b"x" * size
    file.close()
    assert file.read_cached(0, size) is None, "opening may wait"


def test_resident_is_true_where_the_system_does_not_report_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = PosixDisk().open(str(tmp_path / "a"), create=True)
    file.append([b"x" * 8192])
    evict_from_page_cache(file.path)
    monkeypatch.setattr(posix_file, "_MINCORE", lambda *_: -1)
    assert file.resident(0, 8192)
    monkeypatch.setattr(posix_file, "_MINCORE", None)
    assert file.resident(0, 8192)


def test_a_file_that_grows_under_its_readers_costs_no_descriptors(tmp_path: Path) -> None:
    """Every growth step cost a mapping with a descriptor of its own while views lived."""
    disk = PosixDisk(files_open_max=2)
    before = open_descriptors()
    file = disk.open(str(tmp_path / "a"), create=True)
    views: list[memoryview] = []
    step = 70_000
    for number in range(100):
        file.append([bytes([number]) * step])
        views.append(file.read(number * step, step))
        assert open_descriptors() <= before + 1
    assert len(views) == 100
    for number, view in enumerate(views):
        assert view.readonly
        assert bytes(view) == bytes([number]) * step
    with open("/proc/self/maps") as maps:
        assert sum(file.path in line for line in maps) <= 5, "a mapping for each doubling"
    with pytest.raises(AssertionError, match="is cut under"):
        file.truncate(step)
    views.clear()
    del view
    file.close()
    with open("/proc/self/maps") as maps:
        assert not any(file.path in line for line in maps)
    file.truncate(step)
    assert bytes(file.read(0, 2 * step)) == bytes(step)


def test_a_file_cut_by_another_program_is_an_error(tmp_path: Path) -> None:
    file = PosixDisk().open(str(tmp_path / "a"), create=True)
    file.append([b"x" * 200_000])
    os.truncate(file.path, 1000)
    with pytest.raises(OSError, match="cut to 1000 bytes"):
        file.read(0, 200_000)
    assert file.resident(0, 200_000), "reading it shows what is wrong"
    assert file.read_copy(0, 200_000) == b"x" * 1000


def test_an_error_of_the_system_is_not_taken_for_no_file(tmp_path: Path) -> None:
    """A metadata log that cannot be asked for would have been begun anew."""
    disk = PosixDisk()
    there = str(tmp_path / "there")
    (tmp_path / "there").write_bytes(b"x")
    assert disk.exists(there)
    assert not disk.exists(f"{there}-not")
    assert not disk.exists(f"{there}/inside")
    failing = mock.patch("os.stat", side_effect=OSError(errno.EIO, "Input/output error"))
    with failing, pytest.raises(OSError, match="Input/output"):
        disk.exists(there)


def test_one_listing_equals_one_question_per_name(tmp_path: Path) -> None:
    for kind in ("directory", "file"):
        (tmp_path / f"link to {kind}").symlink_to(tmp_path / kind)
    (tmp_path / "directory").mkdir()
    (tmp_path / "file").touch()
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "gone").symlink_to("nowhere")
    os.mkfifo(tmp_path / "fifo")
    disk = PosixDisk()
    names = disk.list(str(tmp_path))
    assert disk.directories(str(tmp_path)) == ("directory", "link to directory")
    assert disk.entries(str(tmp_path)) == {n: disk.is_file(f"{tmp_path}/{n}") for n in names}


@pytest.mark.parametrize("size", [0, 1, 4095, 4096, 4097, 100_000])
def test_a_small_file_is_read_whole(tmp_path: Path, size: int) -> None:
    data = os.urandom(size)
    (tmp_path / "file").write_bytes(data)
    assert PosixDisk().read_file(str(tmp_path / "file")) == data
