"""What a restart makes of a log: damage in several segments, clean starts, producers, lost rows."""

from __future__ import annotations

from pathlib import Path

import pytest

from quiverlog.errors import CorruptLog
from quiverlog.storage.log import Log, LogConfig
from quiverlog.storage.segment import segment_path
from quiverlog.types import Now
from tests.model.test_log_model import make_batch
from tests.sim.disk import SimDisk
from tests.support.node import NodeDriver, batch_of

NOW = Now(0, 1_000_000_000_000_000)
DIRECTORY = "data/t-0"
CONFIG = LogConfig(segment_bytes=700, index_interval_bytes=100)


def open_log(disk: SimDisk, *, clean: bool = False) -> Log:
    disk.make_dir(DIRECTORY)
    return Log.open(disk, DIRECTORY, config=CONFIG, clean=clean, now=NOW)


def append(log: Log, rows: int = 3) -> None:
    log.append([make_batch(rows, NOW.wall_us, 1, 7)], 0, NOW)


def flush(log: Log) -> None:
    ticket = log.begin_sync()
    ticket.run()
    log.complete_sync(ticket)


@pytest.mark.parametrize("stop", ["clean", "killed"])
def test_rows_after_given_up_rows_that_were_lost_are_no_damage(stop: str) -> None:
    """All rows given up, then lost in a crash: the next row is not the old file's first."""
    disk = SimDisk(1)
    log = open_log(disk)
    append(log)
    flush(log)
    log.delete_before(2)
    disk.kill()
    # As if the power had taken the bytes: the segment's header is all that is left.
    disk.open(segment_path(DIRECTORY, 0), create=False).truncate(64)
    disk.remove(f"{DIRECTORY}/recovery-point")
    log = open_log(disk)
    assert log.log_end_offset == log.log_start_offset == 2
    log.close(clean=stop == "clean")
    disk.kill()
    log = open_log(disk, clean=stop == "clean")
    append(log)
    flush(log)
    disk.kill()
    disk.remove(f"{DIRECTORY}/recovery-point")
    log = open_log(disk)
    assert not log.recovery.damages
    assert (log.log_start_offset, log.log_end_offset) == (2, 5)
    assert log.read(2, bytes_max=1, end_offset=5)


@pytest.mark.parametrize("scanned", [False, True], ids=["found by reading", "found by a scan"])
def test_damage_in_the_middle_of_several_segments(scanned: bool) -> None:
    disk = SimDisk(1)
    log = open_log(disk)
    for _ in range(15):
        append(log)
    flush(log)
    bases = [segment.base_offset for segment in log.segments]
    assert bases == [0, 12, 24, 36]
    log.close(clean=not scanned)
    disk.kill()
    for base in (12, 24):
        disk.flip_bit(segment_path(DIRECTORY, base), (64 + 128 + 100) * 8)  # its second batch
    if scanned:
        disk.remove(f"{DIRECTORY}/recovery-point")
    log = open_log(disk, clean=not scanned)
    assert len(log.recovery.damages) == (2 if scanned else 0)
    assert (log.log_end_offset, log.segment_count) == (45, 4)
    for offset in range(0, 45, 3):
        if offset in (15, 27):
            with pytest.raises(CorruptLog) as raised:
                log.read(offset, bytes_max=1, end_offset=45)
            details = raised.value.details
            base = offset - 3
            assert details["file"] == segment_path(DIRECTORY, base)
            assert (details["position"], details["offset"], details["end_offset"]) == (
                192,
                offset,
                offset + 3,
            )
        else:
            (view,) = log.read(offset, bytes_max=1, end_offset=offset + 3)
            assert len(view) == 128
    assert [len(v) for v in log.read(12, bytes_max=10_000, end_offset=45)] == [128]


def test_the_node_tells_of_damage_that_its_start_found(tmp_path: Path) -> None:
    node = NodeDriver(tmp_path)
    topic = node.create()
    for _ in range(3):
        node.produced(topic, batch_of([1, 2]))
    (path,) = Path(node.config.data_dir, "data").rglob("*.log")
    point = path.with_name("recovery-point")
    data = bytearray(path.read_bytes())
    data[64 + 100] ^= 1
    path.write_bytes(data)
    point.unlink(missing_ok=True)
    node.crash()
    (line,) = [line for line in node.lines if line.event == "damaged rows found"]
    assert (line.level, line.fields["partition"], line.fields["places"]) == ("warning", "t-0", 1)
    assert "00.log: bytes 64 to" in str(line.fields["first"])
    assert "rows 0 to 2" in str(line.fields["first"])
    assert node.fetched(topic, 2)[0].error_code == 0
