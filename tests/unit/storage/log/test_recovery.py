"""What a restart makes of a log: damage in several segments, clean starts, producers, lost rows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from quiverlog.batch.header import BatchHeader
from quiverlog.errors import CorruptLog, StorageFault
from quiverlog.storage.log import checkpoint
from quiverlog.storage.log.checkpoint import RECOVERY_COPY_FILE, RECOVERY_FILE
from quiverlog.storage.log.log import Log, LogConfig
from quiverlog.storage.segment.segment import segment_path
from quiverlog.types import Now
from tests.model.test_log_model import make_batch
from tests.sim.disk import SimDisk
from tests.support.logs import flush, remove_point, trim, truncate
from tests.support.node import NodeDriver, batch_of

NOW = Now(0, 1_000_000_000_000_000)
DIRECTORY = "data/t-0"
CONFIG = LogConfig(segment_bytes=700, index_interval_bytes=100)


def open_log(disk: SimDisk, *, clean: bool = False) -> Log:
    disk.make_dir(DIRECTORY)
    return Log.open(disk, DIRECTORY, config=CONFIG, clean=clean, now=NOW)


def append(log: Log, rows: int = 3) -> None:
    log.append([make_batch(rows, NOW.wall_us, 1, 7, (5, 0, 0))], 0, NOW)


@pytest.mark.parametrize("stop", ["clean", "killed"])
def test_rows_after_given_up_rows_that_were_lost_are_no_damage(stop: str) -> None:
    """All rows given up, then lost in a crash: the next row is not the old file's first."""
    disk = SimDisk(1)
    log = open_log(disk)
    append(log)
    trim(log, 2)
    disk.kill()
    # As if the power had taken the bytes: the segment's header is all that is left.
    disk.open(segment_path(DIRECTORY, 0), create=False).truncate(64)
    log = open_log(disk)
    assert log.log_end_offset == log.log_start_offset == 2
    log.close(clean=stop == "clean")
    disk.kill()
    log = open_log(disk, clean=stop == "clean")
    append(log)
    flush(log)
    disk.kill()
    remove_point(disk, DIRECTORY)
    log = open_log(disk)
    assert not log.recovery.damages
    assert (log.log_start_offset, log.log_end_offset) == (2, 5)
    assert log.reader.read(2, bytes_max=1, end_offset=5)


def test_a_clean_start_finds_a_given_up_file_that_could_not_be_removed() -> None:
    """From the log model: a trim to the end, the file still there, a clean stop: it was scanned."""
    disk = SimDisk(1)
    log = open_log(disk)
    append(log)
    job = log.begin_trim(3)
    assert job is not None
    assert log.complete_trim(job, job.run()) is not None, "there is a file to remove; it stays"
    for _ in range(2):
        log.close(clean=True)
        disk.kill()
        log = open_log(disk, clean=True)
        assert (log.recovery.clean, log.recovery.bytes_scanned) == (True, 0)
        assert (log.log_start_offset, log.log_end_offset) == (3, 3)
    append(log)
    assert log.log_end_offset == 6


@pytest.mark.parametrize("scanned", [False, True], ids=["found by reading", "found by a scan"])
def test_damage_in_the_middle_of_several_segments(scanned: bool) -> None:
    disk = SimDisk(1)
    log = open_log(disk)
    for _ in range(15):
        append(log)
    flush(log)
    bases = [segment.base_offset for segment in log.reader.segments]
    assert bases == [0, 12, 24, 36]
    log.close(clean=not scanned)
    disk.kill()
    for base in (12, 24):
        disk.flip_bit(segment_path(DIRECTORY, base), (64 + 128 + 100) * 8)  # its second batch
    if scanned:
        remove_point(disk, DIRECTORY)
    log = open_log(disk, clean=not scanned)
    assert len(log.recovery.damages) == (2 if scanned else 0)
    assert (log.log_end_offset, log.reader.segment_count) == (45, 4)
    for offset in range(0, 45, 3):
        if offset in (15, 27):
            with pytest.raises(CorruptLog) as raised:
                log.reader.read(offset, bytes_max=1, end_offset=45)
            details = raised.value.details
            base = offset - 3
            assert details["file"] == segment_path("t-0", base)
            assert (details["position"], details["offset"], details["end_offset"]) == (
                192,
                offset,
                offset + 3,
            )
        else:
            (view,) = log.reader.read(offset, bytes_max=1, end_offset=offset + 3)
            assert len(view) == 128
    assert [len(v) for v in log.reader.read(12, bytes_max=10_000, end_offset=45)] == [128]


@pytest.mark.parametrize("number", [0, 1], ids=["the first", "the second"])
def test_damage_behind_the_recovery_point_when_the_epochs_are_lost_too(number: int) -> None:
    """The epochs are read again from the batches, before the scan has found the log's true end."""
    disk = SimDisk(1)
    log = open_log(disk)
    append(log)
    log.close(clean=True)
    disk.kill()
    log = open_log(disk, clean=True)
    for _ in range(3):
        append(log)
    job = log.begin_flush()
    log.complete_flush(job, job.run())
    disk.kill()
    path = segment_path(DIRECTORY, 0)
    disk.flip_bit(path, (64 + 128 * (1 + number)) * 8)  # Its first row.
    disk.remove(f"{DIRECTORY}/leader-epochs")
    log = open_log(disk)
    bad = 3 + 3 * number
    assert log.log_end_offset == 12
    assert [f"rows {bad} to {bad + 3}," in line for line in log.recovery.damages] == [True]
    for offset in range(0, 12, 3):
        if offset == bad:
            with pytest.raises(CorruptLog) as raised:
                log.reader.read(offset, bytes_max=1, end_offset=12)
            assert raised.value.details["end_offset"] == bad + 3
        else:
            assert log.reader.read(offset, bytes_max=1, end_offset=12)


def test_a_segment_that_begins_with_damage_is_reported_by_the_next_start_too() -> None:
    """The index that the first start made again and saved begins behind the damage."""
    disk = SimDisk(1)
    log = open_log(disk)
    append(log)
    append(log)
    flush(log)
    disk.kill()
    remove_point(disk, DIRECTORY)
    disk.flip_bit(segment_path(DIRECTORY, 0), 64 * 8)  # The first row of its first batch.
    log = open_log(disk)
    assert len(log.recovery.damages) == 1
    log.close(clean=True)
    disk.kill()
    assert segment_path(DIRECTORY, 0).replace(".log", ".index") in disk.paths()
    log = open_log(disk, clean=True)
    with pytest.raises(CorruptLog) as raised:
        log.reader.read(0, bytes_max=1, end_offset=6)
    assert (raised.value.details["offset"], raised.value.details["end_offset"]) == (0, 3)
    assert len(log.reader.read(3, bytes_max=1_000, end_offset=6)) == 1


def test_the_node_reports_damage_that_its_start_found(tmp_path: Path) -> None:
    node = NodeDriver(tmp_path)
    topic = node.create()
    for _ in range(3):
        node.produced(topic, batch_of([1, 2]))
    (path,) = Path(node.config.data_dir, "data").rglob("*.log")
    data = bytearray(path.read_bytes())
    data[64 + 100] ^= 1
    path.write_bytes(data)
    for name in (RECOVERY_FILE, RECOVERY_COPY_FILE):
        path.with_name(name).unlink(missing_ok=True)
    node.crash()
    (line,) = [line for line in node.lines if line.event == "damaged rows found"]
    assert (line.level, line.fields["partition"], line.fields["places"]) == ("warning", "t-0", 1)
    assert "00.log: bytes 64 to" in str(line.fields["first"])
    assert "rows 0 to 2" in str(line.fields["first"])
    assert node.fetched(topic, 2)[0].error_code == 0


class Seen:
    """Producer states that are the list of the batches' first offsets."""

    def __init__(self) -> None:
        self.offsets: list[int] = []
        self.replayed: list[int] = []

    @property
    def newest_offset(self) -> int:
        return self.offsets[-1] if self.offsets else -1

    def check(self, header: BatchHeader) -> int | None:
        return header.base_offset if header.base_offset in self.offsets else None

    def capture(self) -> Callable[[], bytes]:
        now = b",".join(b"%d" % offset for offset in self.offsets)
        return lambda: now

    def blank(self) -> Seen:
        return Seen()

    def adopt(self, restored: Seen) -> None:
        self.offsets, self.replayed = restored.offsets, restored.replayed

    def restore(self, blob: bytes) -> None:
        self.offsets = [int(part) for part in blob.split(b",") if part]
        self.replayed = []

    def replay(self, header: BatchHeader) -> None:
        self.offsets.append(header.base_offset)
        self.replayed.append(header.base_offset)


def open_with(disk: SimDisk, *, clean: bool = False) -> tuple[Log, Seen]:
    disk.make_dir(DIRECTORY)
    seen = Seen()
    log = Log.open(disk, DIRECTORY, config=CONFIG, clean=clean, now=NOW, producers=seen)
    return log, seen


def append_seen(log: Log, seen: Seen, count: int) -> None:
    for _ in range(count):
        append(log)  # As the node does it: the state follows the append.
        seen.offsets.append(log.log_end_offset - 3)


def snapshots(disk: SimDisk) -> list[int]:
    return checkpoint.snapshot_offsets(disk.list(DIRECTORY))


def test_producers_come_from_the_newest_snapshot_and_what_follows() -> None:
    disk = SimDisk(1)
    log, seen = open_with(disk)
    append_seen(log, seen, 10)  # Four batches a segment: snapshots at 12 and 24.
    flush(log)
    assert snapshots(disk) == [24, 12]
    disk.kill()
    _, again = open_with(disk)
    assert again.offsets == list(range(0, 30, 3))
    assert again.replayed == [24, 27]


@pytest.mark.parametrize("damaged", [24, 12, None])
def test_damaged_snapshots_are_passed_over(damaged: int | None) -> None:
    disk = SimDisk(1)
    log, seen = open_with(disk)
    append_seen(log, seen, 10)
    flush(log)
    disk.kill()
    for offset in (24, 12) if damaged is None else (damaged,):
        disk.flip_bit(f"{DIRECTORY}/producers-{offset:020d}.snapshot", 21 * 8)
    _, again = open_with(disk)
    assert again.offsets == list(range(0, 30, 3))
    assert again.replayed == list(range({24: 12, 12: 24, None: 0}[damaged], 30, 3))


def test_a_clean_stop_needs_no_replay() -> None:
    disk = SimDisk(1)
    log, seen = open_with(disk)
    append_seen(log, seen, 10)
    log.close(clean=True)
    disk.kill()
    _, again = open_with(disk, clean=True)
    assert (again.offsets, again.replayed) == (list(range(0, 30, 3)), [])


@pytest.mark.parametrize("cut_to", [27, 24, 21, 12, 3])
def test_snapshots_ahead_of_a_cut_never_come_back(cut_to: int) -> None:
    disk = SimDisk(1)
    log, seen = open_with(disk)
    append_seen(log, seen, 10)
    flush(log)
    truncate(log, cut_to)
    assert seen.offsets == list(range(0, cut_to, 3))
    assert all(offset <= cut_to for offset in snapshots(disk))
    disk.crash()
    log, again = open_with(disk)
    assert again.offsets == list(range(0, log.log_end_offset, 3)) == list(range(0, cut_to, 3))


def test_a_snapshot_ahead_of_what_a_crash_left_is_dropped() -> None:
    disk = SimDisk(1)
    log, seen = open_with(disk)
    append_seen(log, seen, 10)
    flush(log)
    disk.kill()
    for base in (12, 24):  # The power took the segments, the snapshots made it.
        disk.remove(segment_path(DIRECTORY, base))
    remove_point(disk, DIRECTORY)
    log, again = open_with(disk)
    assert (log.log_end_offset, again.offsets, snapshots(disk)) == (12, [0, 3, 6, 9], [12])


def test_nothing_is_cut_under_a_flush() -> None:
    log = open_log(SimDisk(1))
    append(log)
    append(log)
    job = log.begin_flush()
    with pytest.raises(AssertionError, match="a flush is outstanding"):
        truncate(log, 3)
    log.complete_flush(job, job.run())
    truncate(log, 3)
    assert log.log_end_offset == log.flushed_offset == 3


# --- what can be rebuilt ------------------------------------------------------------------------
@pytest.mark.parametrize("how", ["removed", "empty", "cut short", "flipped", "other bytes"])
@pytest.mark.parametrize("clean", [False, True])
@pytest.mark.parametrize("name", ["index", "leader-epochs", "recovery-point", "producers"])
def test_what_can_be_rebuilt_is_and_no_row_is_lost(name: str, clean: bool, how: str) -> None:
    disk = SimDisk(1)
    log, seen = open_with(disk)
    for epoch in range(3):
        log.epochs.assign(epoch, log.log_end_offset)
        log.append([make_batch(3, NOW.wall_us, 1, 7)], epoch, NOW)
        seen.offsets.append(log.log_end_offset - 3)
        append_seen_under(log, seen, epoch)
    flush(log)
    end, entries = log.log_end_offset, log.epochs.entries()
    log.close(clean=clean)
    disk.kill()
    paths = [f"{DIRECTORY}/{n}" for n in disk.list(DIRECTORY) if name in n]
    assert paths or not clean
    for path in paths:
        data = disk.read_file(path)
        if how == "removed":
            disk.remove(path)
        else:
            bad = {
                "empty": b"",
                "cut short": data[:-1],
                "flipped": data[:-1] + bytes([data[-1] ^ 1]),
                "other bytes": b"something else entirely, and long enough for a header",
            }[how]
            disk.write_file_atomic(path, bad)
    log, again = open_with(disk, clean=clean)
    assert (log.log_start_offset, log.log_end_offset) == (0, end)
    assert log.epochs.entries() == entries
    assert again.offsets == list(range(0, end, 3))
    for offset in range(0, end, 3):
        assert log.reader.read(offset, bytes_max=1, end_offset=end)
    assert log.reader.offset_for_timestamp(NOW.wall_us) == (0, NOW.wall_us)
    assert not log.recovery.damages


def append_seen_under(log: Log, seen: Seen, epoch: int) -> None:
    for _ in range(3):
        log.append([make_batch(3, NOW.wall_us, 1, 7)], epoch, NOW)
        seen.offsets.append(log.log_end_offset - 3)


def test_a_sync_that_fails_makes_nothing_durable_and_is_final() -> None:
    disk = SimDisk(1)
    log = open_log(disk)
    append(log)
    disk.fail_syncs = 1
    with pytest.raises(OSError, match="simulated"):
        flush(log)
    for call in (log.begin_flush, lambda: append(log)):
        with pytest.raises(StorageFault):
            call()
    assert (log.flushed_offset, log.log_end_offset) == (0, 3)


# --- torn or damaged ----------------------------------------------------------------------------
@pytest.mark.parametrize("batch", [0, 1, 2], ids=["first", "middle", "last"])
@pytest.mark.parametrize("at", [12, 16, 20, 24, 36, 48, 64, 100, 127])
def test_a_scan_keeps_every_byte_that_was_written_whole(batch: int, at: int) -> None:
    """Whatever byte of whichever batch is wrong: reported, kept, and one batch at most is lost."""
    disk = SimDisk(1)
    log = open_log(disk)
    for _ in range(3):
        append(log)
    flush(log)
    disk.kill()
    remove_point(disk, DIRECTORY)  # So that a start looks at all rows.
    path = segment_path(DIRECTORY, 0)
    disk.flip_bit(path, (64 + 128 * batch + at) * 8 + 1)
    before = disk.read_file(path)
    log = open_log(disk)
    assert disk.read_file(path) == before
    assert (log.recovery.bytes_truncated, len(log.recovery.damages)) == (0, 1)
    for number in (n for n in range(3) if n != batch):
        assert len(log.reader.read(3 * number, bytes_max=1, end_offset=3 * number + 3)[0]) == 128
    with pytest.raises(CorruptLog):
        log.reader.read(3 * batch, bytes_max=1, end_offset=3 * batch + 1)
    append(log)
    assert log.reader.read(log.log_end_offset - 3, bytes_max=1, end_offset=log.log_end_offset)


@pytest.mark.parametrize("left", [1, 20, 63, 64, 65, 127])
def test_a_scan_cuts_an_append_that_never_finished(left: int) -> None:
    disk = SimDisk(1)
    log = open_log(disk)
    append(log)
    append(log)
    disk.kill()
    path = segment_path(DIRECTORY, 0)
    disk.open(path, create=False).truncate(64 + 128 + left)
    log = open_log(disk)
    assert (log.recovery.bytes_truncated, log.recovery.damages) == (left, [])
    assert (log.log_end_offset, len(disk.read_file(path))) == (3, 64 + 128)
