"""Something that is no file in a file's place: nothing waits for it, nothing takes it for one."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from quiverlog.batch.header import BatchHeader
from quiverlog.errors import CorruptLog, QuiverlogError
from quiverlog.storage.directory.data_directory import DataDirectory
from quiverlog.storage.disk.disk import is_special_file
from quiverlog.storage.disk.posix import PosixDisk
from quiverlog.storage.log import checkpoint
from quiverlog.storage.log.log import Log, LogConfig
from quiverlog.storage.metadata.metadata_log import MetadataLog
from quiverlog.storage.segment.epochs import EPOCHS_FILE
from quiverlog.types import Now
from tests.model.test_log_model import make_batch
from tests.support.logs import flush

KINDS = ["fifo", "directory", "socket", "loop"]
NOW = Now(0, 1_000_000_000_000_000)


@pytest.fixture(autouse=True)
def alarm() -> Iterator[None]:
    """What waits for the other end of a FIFO is interrupted, and fails."""

    def ring(*_: object) -> None:
        raise AssertionError("waited for a special file")

    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(30)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def put(path: Path, kind: str) -> None:
    """Something of this kind in the place of whatever is there."""
    path.unlink(missing_ok=True)
    match kind:
        case "fifo":
            os.mkfifo(path)
        case "directory":
            path.mkdir()
        case "socket":
            with socket.socket(socket.AF_UNIX) as sock:
                here = os.getcwd()
                os.chdir(path.parent)  # The name of a socket has at most 107 bytes.
                try:
                    sock.bind(path.name)
                finally:
                    os.chdir(here)
        case _:
            path.symlink_to(path.name)


@pytest.mark.parametrize("kind", KINDS)
def test_the_disk_refuses_at_once_what_is_no_file(tmp_path: Path, kind: str) -> None:
    put(tmp_path / "a", kind)
    for read in (PosixDisk().read_file, lambda path: PosixDisk().open(path, create=False)):
        with pytest.raises(OSError, match=str(tmp_path)) as caught:
            read(str(tmp_path / "a"))
        assert is_special_file(caught.value)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["node.json", "metadata/metadata.log"])
def test_a_start_names_the_file_and_its_repair(tmp_path: Path, name: str, kind: str) -> None:
    path = tmp_path / "d"

    def start() -> None:
        directory = DataDirectory.open(PosixDisk(), str(path), node_id=0, entropy=os.urandom)
        try:
            log = MetadataLog.open(PosixDisk(), directory.metadata_path, create=True)
            log.append([b"entry"])
        finally:
            directory.close(clean=False)

    start()
    put(path / name, kind)
    if kind == "loop":  # It counts as missing.
        if name == "node.json":
            with pytest.raises(QuiverlogError, match=r"node\.json is missing: restore"):
                start()
        return
    with pytest.raises(CorruptLog, match=f"{path / name} is not a regular file.*restore"):
        start()


@pytest.mark.parametrize("kind", ["fifo", "socket"])
def test_a_clean_mark_that_is_no_file_proves_nothing(tmp_path: Path, kind: str) -> None:
    def take() -> DataDirectory:
        return DataDirectory.open(PosixDisk(), str(tmp_path), node_id=0, entropy=os.urandom)

    take().close(clean=True, metadata_bytes=10)
    put(tmp_path / "clean-shutdown", kind)
    directory = take()
    assert not directory.clean
    assert not (tmp_path / "clean-shutdown").exists()


class Remembered:
    """A partition's producer states: the batches that were appended."""

    newest_offset = -1

    def __init__(self) -> None:
        self.seen: list[int] = []

    def capture(self) -> Callable[[], bytes]:
        now = ",".join(map(str, self.seen)).encode()
        return lambda: now

    def restore(self, blob: bytes) -> None:
        self.seen = [int(text) for text in blob.decode().split(",") if text]

    def replay(self, header: BatchHeader) -> None:
        self.seen.append(header.base_offset)


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "name",
    [
        f"{0:020d}.index",
        f"producers-{3:020d}.snapshot",
        checkpoint.RECOVERY_FILE,
        EPOCHS_FILE,
    ],
)
def test_a_partition_opens_without_its_small_files(
    tmp_path: Path, name: str, kind: str, clean: bool
) -> None:
    def open_log(producers: Remembered, clean: bool) -> Log:
        return Log.open(
            PosixDisk(),
            str(tmp_path),
            config=LogConfig(),
            clean=clean,
            now=NOW,
            producers=producers,
        )

    log = open_log(Remembered(), clean=True)
    log.epochs.assign(1, 0)
    for number in range(3):
        log.append([make_batch(1, NOW.wall_us, 999, number + 1)], 1, NOW)
    flush(log)
    log.close(clean=True)
    assert (tmp_path / name).exists()
    put(tmp_path / name, kind)
    producers = Remembered()
    log = open_log(producers, clean)
    assert (log.log_start_offset, log.log_end_offset) == (0, 3)
    assert len(log.reader.read(2, bytes_max=1, end_offset=3)) == 1
    assert log.epochs.epoch_for(2) == 1


ROWS_PER_SEGMENT = 3
NAMES = [
    *(f"{base:020d}.{suffix}" for base in (0, 3, 6) for suffix in ("log", "index")),
    checkpoint.LOG_START_FILE,
    f"{checkpoint.LOG_START_FILE}-copy",
    checkpoint.RECOVERY_FILE,
    checkpoint.TRUNCATION_FILE,
    EPOCHS_FILE,
    f"{EPOCHS_FILE}.tmp",
    f"producers-{9:020d}.snapshot",
]


def open_small(path: Path, *, clean: bool) -> Log:
    config = LogConfig(segment_bytes=700, retention_ms=-1)
    return Log.open(
        PosixDisk(), str(path), config=config, clean=clean, now=NOW, producers=Remembered()
    )


def readable(log: Log) -> list[int]:
    found = []
    for offset in range(log.log_start_offset, log.log_end_offset):
        try:
            found += [offset] if log.reader.read(offset, bytes_max=1, end_offset=offset + 1) else []
        except CorruptLog:
            continue
    return found


@pytest.mark.parametrize("clean", [True, False], ids=["clean", "killed"])
@pytest.mark.parametrize("kind", [*KINDS, "dangling", "full directory"])
@pytest.mark.parametrize("name", NAMES)
def test_only_rows_in_a_lost_file_are_lost(
    tmp_path: Path, name: str, kind: str, clean: bool
) -> None:
    """Everything else is made anew; what lies there is kept under a name that the log reports."""
    log = open_small(tmp_path, clean=True)
    for number in range(9):
        log.append([make_batch(1, NOW.wall_us, 2, number + 1)], number // 5, NOW)
    flush(log)
    trim = log.begin_trim(1)
    assert trim is not None
    log.complete_trim(trim, trim.run())
    log.close(clean=clean)
    assert sorted(p.name for p in tmp_path.glob("*.log")) == [n for n in NAMES[:6] if "log" in n]
    if kind == "dangling":
        (tmp_path / name).unlink(missing_ok=True)
        (tmp_path / name).symlink_to("nowhere")
    else:
        put(tmp_path / name, kind.rpartition(" ")[2])
    if kind == "full directory":
        (tmp_path / name / "kept").write_text("by hand")
    log = open_small(tmp_path, clean=clean)
    base = int(name[:20]) if name.endswith(".log") else 100
    lost = range(base, base + ROWS_PER_SEGMENT)
    assert readable(log) == [offset for offset in range(1, 9) if offset not in lost]
    assert (log.log_start_offset, log.log_end_offset) == (1, 9)
    (note,) = log.recovery.notes
    assert name in note
    assert log.append([make_batch(1, NOW.wall_us, 2, 7)], 5, NOW) == 9
    flush(log)
    log.close(clean=True)
    log = open_small(tmp_path, clean=True)
    assert readable(log) == [offset for offset in range(1, 10) if offset not in lost]
    if kind == "full directory":
        assert (tmp_path / f"{name}.unusable" / "kept").read_text() == "by hand"


@pytest.mark.parametrize("clean", [True, False], ids=["clean", "killed"])
@pytest.mark.parametrize(
    "name", ["5.log", "99999999999999999999.log", "producers-5.snapshot", "notes.txt"]
)
def test_a_stray_file_is_left_alone_and_reported(tmp_path: Path, name: str, clean: bool) -> None:
    log = open_small(tmp_path, clean=True)
    for number in range(9):
        log.append([make_batch(1, NOW.wall_us, 2, number + 1)], 0, NOW)
    flush(log)
    log.close(clean=clean)
    (tmp_path / name).write_bytes(b"something else")
    log = open_small(tmp_path, clean=clean)
    assert readable(log) == list(range(9))
    assert (tmp_path / name).read_bytes() == b"something else"
    (note,) = log.recovery.notes
    assert f"{name} is no file of a partition" in note
