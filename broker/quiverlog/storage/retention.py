"""Which rows are too old or too many.

Owns the two rules. By time: the log start moves, batch by batch, past rows whose time is older
than `retention.ms`; a row younger than that is never taken, so an older row behind it waits. The
time is the producer's, whose clock may be behind: a row that came later than its time says counts
from its arrival, as its segment has it (adr/0071). By
size: whole segments go, oldest first, until the files fit `retention.bytes`; the newest segment
stays (at most an eighth of the bound, plus one append). Neither goes beyond the high watermark.

The new log start is not written down for it: after a crash the rows are judged again, by the same
rule. A segment that holds none but expired rows is removed even if it is the newest.
"""

from __future__ import annotations

from quiverlog.storage.readable_log import ReadableLog
from quiverlog.storage.reading_jobs import JustRead
from quiverlog.types import Now

__all__ = ["target"]


def target(
    log: ReadableLog,
    now: Now,
    high_watermark: int,
    *,
    cold_ok: bool,
    just_read: JustRead = (),
    clock_us: int = 0,
) -> int:
    """Decide where the log should start: where it does or later. See `Log.retention_target`."""
    if log.log_start_offset >= log.log_end_offset:
        return log.log_start_offset
    assert high_watermark >= 0
    by_time = _by_time(log, now, max(clock_us, now.wall_us), cold_ok, just_read)
    wanted = min(max(by_time, _by_size(log)), high_watermark)
    start = max(wanted, log.log_start_offset)
    assert start <= log.log_end_offset
    assert start <= max(high_watermark, log.log_start_offset), "rows that are not replicated stay"
    return start


def _by_time(log: ReadableLog, now: Now, clock_us: int, cold_ok: bool, just_read: JustRead) -> int:
    retention_ms = log.config.retention_ms
    if retention_ms < 0:
        return 0
    cutoff_us = now.wall_us - retention_ms * 1000
    oldest_us = log.oldest_us(cold_ok=cold_ok, just_read=just_read)
    if oldest_us is not None and oldest_us >= cutoff_us:
        return 0
    found = log.offset_for_timestamp(cutoff_us, cold_ok=cold_ok, just_read=just_read)
    end_offset = log.log_end_offset if found is None else found[0]
    return _by_arrival(log, Now(now.mono_us, clock_us), cutoff_us, end_offset)


def _by_arrival(log: ReadableLog, clock: Now, cutoff_us: int, end_offset: int) -> int:
    """Where to stop in front of `end_offset`: at the first row that arrived after the cutoff.

    The header of each segment in front of it was read, for `end_offset` was found by its index.
    """
    assert cutoff_us <= clock.wall_us
    for segment in log.segments:
        if segment.base_offset >= end_offset:
            break
        if not segment.created_us and not segment.arrived_us:  # A damaged header: it may have told.
            segment.note_arrival(clock.wall_us, segment.base_offset)
        assert segment.arrived_from >= segment.base_offset
        if segment.arrival_by(clock) >= max(cutoff_us, 1):
            return min(end_offset, segment.arrived_from)
    return end_offset


def _by_size(log: ReadableLog) -> int:
    limit = log.config.retention_bytes
    target = 0
    if limit >= 0:
        size = log.size_bytes
        for segment in log.segments[:-1]:
            if size <= limit:
                break
            size -= segment.file.size
            assert size >= 0, "the log counts the bytes of all segments"
            assert segment.end_offset >= target
            target = segment.end_offset
    return target
