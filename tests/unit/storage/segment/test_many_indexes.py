"""Questions to more segments than the memory for indexes holds: they end all the same."""

from __future__ import annotations

import pytest

from quiverlog.storage.log.log import Log, LogConfig
from quiverlog.storage.segment.reading_jobs import NotResident, ReadingJob
from quiverlog.storage.segment.segments import IndexCache
from quiverlog.types import Now
from tests.model.test_log_model import make_batch
from tests.sim.disk import SimDisk
from tests.support.logs import flush

DIRECTORY = "data/t-0"
START = Now(0, 1_000_000_000_000_000)
CONFIG = LogConfig(segment_bytes=700, index_interval_bytes=100, retention_ms=1000)
CACHE_BYTES = 200
"""Less than the indexes of the log take together."""
JOBS_OF_A_SEGMENT_MAX = 12


def old_log() -> Log:
    """A log of many segments, as a start finds it: no index is in memory."""
    disk = SimDisk()
    disk.make_dir(DIRECTORY)
    log = Log.open(disk, DIRECTORY, config=CONFIG, clean=False, now=START)
    for number in range(100):
        log.append([make_batch(3, START.wall_us + number, 1, number)], 0, START)
    flush(log)
    log.close(clean=True)
    cache = IndexCache(CACHE_BYTES)
    log = Log.open(disk, DIRECTORY, config=CONFIG, clean=True, now=START, indexes=cache)
    index_bytes = sum(segment.load().byte_count for segment in log.reader.segments)
    for segment in log.reader.segments:
        segment.release_index()
        segment.newest_us = -(2**63)
    assert index_bytes > 3 * CACHE_BYTES
    return log


@pytest.mark.parametrize("age_ms", [1_001, 60_000])
def test_retention_of_more_indexes_than_memory_holds_ends(age_ms: int) -> None:
    log = old_log()
    now = Now(0, START.wall_us + age_ms * 1000)
    done: list[ReadingJob] = []
    total = 0
    while True:
        try:
            target = log.retention_target(now, log.log_end_offset, cold_ok=False, just_read=done)
            break
        except NotResident as cold:
            # As the node does it: what belongs to another segment is forgotten.
            if done and done[-1].segment is not cold.job.segment:
                done.clear()
            done.append(cold.job)
            log.reader.complete_read(cold.job, cold.job.run())
        total += 1
        assert total <= JOBS_OF_A_SEGMENT_MAX * log.reader.segment_count, "it does not end"
    assert target == log.log_end_offset
