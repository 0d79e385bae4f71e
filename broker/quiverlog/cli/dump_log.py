"""`quiverlog dump-log`: what lies in a segment file, batch by batch.

Owns the walk over a file that may be torn or damaged: it reads headers, never trusts a size beyond
the file's end, and goes on after a batch whose checksum is wrong. It opens files read-only and
needs no broker; a broker that writes to the file at the same time does no harm.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import click

from quiverlog.batch.checksum import crc32c
from quiverlog.batch.header import (
    CRC_START,
    FLAG_CODEC_MASK,
    FLAG_CODEC_SHIFT,
    FLAG_CONTROL,
    FLAG_TRANSACTIONAL,
    MAGIC,
    BatchHeader,
)
from quiverlog.cli.failures import ExitCode
from quiverlog.cli.options import debug_option, format_option
from quiverlog.cli.output import print_json, print_table
from quiverlog.limits import BATCH_BYTES_MAX, BATCH_HEADER_BYTES
from quiverlog.types import Compression

__all__ = ["DumpedBatch", "dump_log", "walk"]

_CODECS = {codec.value: codec.label for codec in Compression}


@dataclass(frozen=True, slots=True)
class DumpedBatch:
    """A batch's header and what is wrong with the batch ("" when nothing is)."""

    position: int
    size_bytes: int
    base_offset: int
    last_offset: int
    leader_epoch: int
    row_count: int
    schema_id: int
    compression: str
    is_control: bool
    is_transactional: bool
    producer_id: int
    producer_epoch: int
    base_sequence: int
    timestamp_min_us: int
    timestamp_max_us: int
    crc_ok: bool
    problem: str = ""


def walk(buffer: memoryview) -> Iterator[DumpedBatch | str]:
    """The batches of a segment; a str says why the walk ends before the buffer does."""
    at, expected_offset = 0, None
    while at < len(buffer):
        left = len(buffer) - at
        if left < BATCH_HEADER_BYTES:
            yield f"position {at}: torn: {left} bytes are left, a header has {BATCH_HEADER_BYTES}"
            return
        header = BatchHeader.unpack(buffer, at)
        if header.magic != MAGIC or not BATCH_HEADER_BYTES <= header.total_bytes <= BATCH_BYTES_MAX:
            yield f"position {at}: no batch begins here (magic {header.magic})"
            return
        if header.total_bytes > left:
            yield f"position {at}: torn: the batch has {header.total_bytes} bytes, {left} are left"
            return
        yield _dumped(buffer, at, header, expected_offset)
        at += header.total_bytes
        expected_offset = header.next_offset


def _dumped(
    buffer: memoryview, at: int, header: BatchHeader, expected_offset: int | None
) -> DumpedBatch:
    crc_ok = crc32c(buffer[at + CRC_START : at + header.total_bytes]) == header.crc32c
    problems = [] if crc_ok else ["checksum is wrong"]
    if expected_offset is not None and header.base_offset != expected_offset:
        problems.append(f"offset {expected_offset} should follow")
    return DumpedBatch(
        position=at,
        size_bytes=header.total_bytes,
        base_offset=header.base_offset,
        last_offset=header.next_offset - 1,
        leader_epoch=header.leader_epoch,
        row_count=header.row_count,
        schema_id=header.schema_id,
        compression=_codec(header.flags),
        is_control=bool(header.flags & FLAG_CONTROL),
        is_transactional=bool(header.flags & FLAG_TRANSACTIONAL),
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=header.base_sequence,
        timestamp_min_us=header.timestamp_min_us,
        timestamp_max_us=header.timestamp_max_us,
        crc_ok=crc_ok,
        problem=", ".join(problems),
    )


def _codec(flags: int) -> str:
    number = (flags & FLAG_CODEC_MASK) >> FLAG_CODEC_SHIFT
    return _CODECS.get(number, f"unknown ({number})")


@click.command()
@click.argument(
    "files",
    metavar="FILE...",
    nargs=-1,
    required=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
)
@click.option("--problems", is_flag=True, help="Show only batches that something is wrong with.")
@format_option()
@debug_option
def dump_log(files: tuple[Path, ...], problems: bool, output_format: str) -> int:
    """Show the batches of segment files (data/<topic>-<partition>/<offset>.log).

    Reads, never writes. Exit code 4 if a checksum is wrong, offsets do not follow each other or the
    end is torn; a running broker's newest file may look torn for a moment.
    """
    results = [_dump(path) for path in files]
    if output_format == "json":
        print_json([_as_json(*result, only_problems=problems) for result in results])
    else:
        for path, batches, broken in results:
            _print(path, batches, broken, only_problems=problems)
    bad = any(broken or any(b.problem for b in batches) for _, batches, broken in results)
    return ExitCode.PROBLEMS_FOUND if bad else ExitCode.OK


def _dump(path: Path) -> tuple[Path, list[DumpedBatch], str]:
    batches: list[DumpedBatch] = []
    broken = ""
    with path.open("rb") as file:
        if os.fstat(file.fileno()).st_size == 0:
            return path, batches, broken
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
            view = memoryview(mapped)
            try:
                for found in walk(view):
                    if isinstance(found, str):
                        broken = found
                    else:
                        batches.append(found)
            finally:
                view.release()
    return path, batches, broken


def _as_json(
    path: Path, batches: list[DumpedBatch], broken: str, *, only_problems: bool
) -> dict[str, object]:
    return {
        "file": str(path),
        "batches": [asdict(b) for b in batches if b.problem or not only_problems],
        "rows": sum(b.row_count for b in batches),
        "broken": broken,
    }


def _print(path: Path, batches: list[DumpedBatch], broken: str, *, only_problems: bool) -> None:
    from quiverlog.cli.output import human_bytes, human_count

    print(path)
    numbers = ["POSITION", "BYTES", "FIRST", "LAST", "EPOCH", "ROWS", "SCHEMA"]
    shown = [b for b in batches if b.problem or not only_problems]
    if shown:
        print_table(
            [*numbers, "CODEC", "PRODUCER", "TIME", "CRC", "PROBLEM"],
            [_row(b) for b in shown],
            right=numbers,
        )
    stored = human_bytes(sum(b.size_bytes for b in batches))
    rows = human_count(sum(b.row_count for b in batches))
    print(f"{len(batches)} batches, {rows} rows, {stored}")
    if broken:
        print(f"PROBLEM  {broken}")


def _row(b: DumpedBatch) -> tuple[object, ...]:
    from datetime import UTC, datetime

    producer = f"{b.producer_id}/{b.producer_epoch}:{b.base_sequence}" if b.producer_id >= 0 else ""
    try:
        moment = datetime.fromtimestamp(b.timestamp_max_us / 1e6, UTC).strftime("%F %T.%f")
    except (OverflowError, ValueError, OSError):  # a damaged header may say anything
        moment = str(b.timestamp_max_us)
    flags = ("control " if b.is_control else "") + ("txn " if b.is_transactional else "")
    return (
        b.position,
        b.size_bytes,
        b.base_offset,
        b.last_offset,
        b.leader_epoch,
        b.row_count,
        b.schema_id,
        flags + b.compression,
        producer,
        moment,
        "ok" if b.crc_ok else "WRONG",
        b.problem,
    )
