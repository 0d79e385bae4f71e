"""A name in place of a segment behind which there is no file: its rows are missing, no others."""

from __future__ import annotations

from pathlib import Path

import pytest

from quiverlog.errors import CorruptLog
from quiverlog.storage.disk.posix import PosixDisk
from quiverlog.storage.log.log import Log, LogConfig
from quiverlog.types import Now
from tests.model.test_log_model import make_batch
from tests.support.logs import flush

NOW = Now(0, 1_000_000_000_000_000)
ROWS = 12
ROWS_PER_SEGMENT = 4


def open_log(path: Path, *, clean: bool) -> Log:
    config = LogConfig(segment_bytes=600, retention_ms=-1)
    return Log.open(PosixDisk(), str(path), config=config, clean=clean, now=NOW)


def readable(log: Log) -> list[int]:
    found = []
    for offset in range(log.log_start_offset, log.log_end_offset):
        try:
            if log.reader.read(offset, bytes_max=1, end_offset=offset + 1):
                found.append(offset)
        except CorruptLog:
            continue
    return found


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("kind", ["link", "directory", "removed"])
@pytest.mark.parametrize("number", range(ROWS // ROWS_PER_SEGMENT))
def test_exactly_its_rows_are_missing(tmp_path: Path, number: int, kind: str, clean: bool) -> None:
    log = open_log(tmp_path, clean=True)
    for _ in range(ROWS):
        log.append([make_batch(1, NOW.wall_us, 1, 7)], 0, NOW)
    job = log.begin_flush(background=True)
    log.complete_flush(job, job.run())
    log.close(clean=clean)
    paths = sorted(tmp_path.glob("*.log"))
    assert len(paths) == ROWS // ROWS_PER_SEGMENT
    paths[number].unlink()
    if kind == "link":
        paths[number].symlink_to("nowhere")
    elif kind == "directory":
        paths[number].mkdir()
    log = open_log(tmp_path, clean=clean)
    lost = range(number * ROWS_PER_SEGMENT, (number + 1) * ROWS_PER_SEGMENT)
    assert readable(log) == [offset for offset in range(ROWS) if offset not in lost]
    assert log.append([make_batch(1, NOW.wall_us, 1, 7)], 0, NOW) == ROWS
    flush(log)
    log.close(clean=False)
