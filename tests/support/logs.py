"""A log's jobs, carried out at once: what the node spreads over two turns of the loop.

Owns the pairs of begin and complete, so that a test of the log can ask for each in one word.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from quiverlog.core.partition.producers import SEQUENCE_MODULUS
from quiverlog.errors import CorruptLog, QuiverlogError
from quiverlog.storage.disk.disk import Disk
from quiverlog.storage.disk.frames import pack_file, unpack_file
from quiverlog.storage.log.checkpoint import RECOVERY_COPY_FILE, RECOVERY_FILE
from quiverlog.storage.log.jobs import TrimJob
from quiverlog.storage.log.log import Log
from quiverlog.storage.metadata.metadata_log import MetadataLog
from quiverlog.types import Now

__all__ = [
    "compact",
    "flush",
    "foreign_snapshot",
    "remove_point",
    "retain",
    "trim",
    "truncate",
]

_FURTHER_ROWS = 1_000_003


def flush(log: Log, *, background: bool = False) -> int:
    """Flush all; the new flushed offset. A failure is reported to the log and raised."""
    job = log.begin_flush(background=background)
    try:
        result = job.run()
    except (OSError, QuiverlogError) as error:
        log.fail_flush(job, error)
        raise
    return log.complete_flush(job, result)


def compact(log: MetadataLog, entries: Sequence[bytes]) -> None:
    """Compact the metadata log to `entries`. A failure is reported to the log and raised."""
    job = log.begin_compact(lambda: entries)
    try:
        size = job.run()
    except QuiverlogError as error:
        log.fail_compact(job, error)
        raise
    log.complete_compact(job, size)


def trim(log: Log, offset: int) -> int:
    """Give up the rows below `offset`; the new log start."""
    job = log.begin_trim(offset)
    if job is not None:
        _carry_out(log, job)
    return log.log_start_offset


def remove_point(disk: Disk, directory: str) -> None:
    """So that a start looks at all rows, and has no record of others."""
    for name in (RECOVERY_FILE, RECOVERY_COPY_FILE):
        if disk.exists(f"{directory}/{name}"):
            disk.remove(f"{directory}/{name}")


def foreign_snapshot(path: str, data: bytes) -> bytes:
    """Another partition's in place of a producer snapshot: the same offset, producers further on.

    One without producers belongs to no partition; a damaged one stays as it is.
    """
    try:
        payload = unpack_file(path, data, b"QVPRODUC", 1)
    except CorruptLog:
        return data
    version, producers = msgspec.msgpack.decode(payload[8:]) if len(payload) > 8 else (1, [])
    for producer in producers:
        producer[2] = (producer[2] + _FURTHER_ROWS) % SEQUENCE_MODULUS
        for batch in producer[3]:
            batch[0] = (batch[0] + _FURTHER_ROWS) % SEQUENCE_MODULUS
    foreign = payload[:8] + msgspec.msgpack.encode([version, producers])
    return pack_file(b"QVPRODUC", 1, foreign) if producers else data


def retain(log: Log, now: Now, high_watermark: int) -> tuple[int, int, int]:
    """A round of retention: (log start, segments removed, bytes removed)."""
    count, byte_count = log.reader.segment_count, log.reader.size_bytes
    job = log.begin_trim(log.retention_target(now, high_watermark), promised=False)
    if job is not None:
        _carry_out(log, job)
    log.roll_if_due(now)
    return (
        log.log_start_offset,
        count - log.reader.segment_count,
        byte_count - log.reader.size_bytes,
    )


def _carry_out(log: Log, job: TrimJob) -> None:
    try:
        result = job.run()
    except (OSError, QuiverlogError) as error:
        log.fail_trim(job, error)
        raise
    remove = log.complete_trim(job, result)
    if remove is not None:
        remove.run()


def truncate(log: Log, offset: int) -> int:
    """Cut the rows from `offset` on; the log's end."""
    job = log.begin_truncate(offset)
    if job is not None:
        log.complete_truncate(job, job.run())
    return log.log_end_offset
