"""`quiverlog dump-log`: the batches of a segment file, and the rows of the cluster's own topics.

Damage and torn tails are distinguished as in a recovery. Files are opened read-only; a broker may
write to them meanwhile.
"""

from __future__ import annotations

import contextlib
import mmap
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

import click

from quiverlog.batch.header import (
    FLAG_CODEC_MASK,
    FLAG_CODEC_SHIFT,
    FLAG_CONTROL,
    FLAG_TRANSACTIONAL,
    BatchHeader,
)
from quiverlog.cli.console.failures import ExitCode
from quiverlog.cli.console.options import debug_option, format_option
from quiverlog.cli.console.output import counted, human_bytes, print_json, print_table
from quiverlog.cli.console.terminal import printable
from quiverlog.errors import CorruptBatch, CorruptLog, UnsupportedFormat
from quiverlog.storage.segment.index import Boundaries, SparseIndex
from quiverlog.storage.segment.scan import Damage, Found, Torn, batch_at, scan
from quiverlog.storage.segment.segment_files import (
    LOG_SUFFIX,
    SEGMENT_HEADER_BYTES,
    index_path,
    peek_base_offset,
)
from quiverlog.types import GROUPS_TOPIC, STAGED_TOPIC, TRANSACTIONS_TOPIC, Compression

__all__ = ["DumpedBatch", "dump_log", "walk"]

_SHOWN_MAX: Final = 10
"""Of a longer list the table has the length alone; JSON has all of it."""

_CODECS = {codec.value: codec.label for codec in Compression}


@dataclass(frozen=True, slots=True)
class DumpedBatch:
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


def walk(buffer: memoryview, index: SparseIndex | None = None) -> Iterator[DumpedBatch | str]:
    """Yield the batches of a segment, with those of a wrong checksum, and messages about other
    bytes."""
    base_offset = peek_base_offset(buffer)
    if base_offset is None:
        yield "this is not a segment file"
        return
    boundaries = Boundaries(base_offset, index)
    at = SEGMENT_HEADER_BYTES
    for found in scan(buffer, at, base_offset, verify=True, boundaries=lambda: boundaries):
        match found:
            case Found(position, header):
                yield _dumped(position, header, crc_ok=True)
            case Torn(position, offset):
                left = len(buffer) - position
                yield (
                    f"position {position}: torn: {left} bytes of a batch at offset {offset}; a "
                    "broker that starts cuts them"
                )
            case Damage(position, end_position, offset, end_offset):
                damaged = batch_at(buffer, position, offset)
                if damaged is not None:
                    yield _dumped(position, damaged, crc_ok=False)
                yield (
                    f"position {position}: damaged: {end_position - position} bytes, offsets "
                    f"{offset} to {end_offset - 1} cannot be read"
                )


def _dumped(position: int, header: BatchHeader, *, crc_ok: bool) -> DumpedBatch:
    return DumpedBatch(
        position=position,
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
@click.option("--problems", is_flag=True, help="Show only what is wrong.")
@format_option()
@debug_option
def dump_log(files: tuple[Path, ...], problems: bool, output_format: str) -> int:
    """Show the batches of segment files (data/<topic>-<partition>/<offset>.log).

    Of the cluster's own topics, `__transactions`, `__staged` and `__groups`, also their rows.
    Reads, never writes. Exit code 4 if bytes are damaged or the end is torn; a running broker's
    newest file may look torn for a moment.
    """
    dumps = [_dump(path) for path in files]
    if output_format == "json":
        print_json([_as_json(dump, only_problems=problems) for dump in dumps])
    else:
        for dump in dumps:
            _print(dump, only_problems=problems)
    return ExitCode.PROBLEMS_FOUND if any(d.problems for d in dumps) else ExitCode.OK


@dataclass(frozen=True, slots=True)
class _Dump:
    """`records`: rows of a file of an internal topic, by the batch's position."""

    path: Path
    batches: list[DumpedBatch]
    problems: list[str]
    records: dict[int, list[dict[str, object]]] = field(default_factory=dict)

    def shown(self, *, only_problems: bool) -> list[DumpedBatch]:
        return [b for b in self.batches if not (only_problems and b.crc_ok)]


def _dump(path: Path) -> _Dump:
    dump = _Dump(path, [], [])
    topic = path.resolve().parent.name.rpartition("-")[0]
    with path.open("rb") as file:
        if os.fstat(file.fileno()).st_size == 0:
            dump.problems.append("the file is empty")
            return dump
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
            view = memoryview(mapped)
            try:
                for found in walk(view, _index_of(path, peek_base_offset(view))):
                    if isinstance(found, str):
                        dump.problems.append(found)
                    else:
                        dump.batches.append(found)
                        if topic in _READABLE and found.crc_ok:
                            _add_rows(dump, topic, view, found)
            finally:
                view.release()
    return dump


def _add_rows(dump: _Dump, topic: str, view: memoryview, found: DumpedBatch) -> None:
    from quiverlog.batch.codec import read_rows
    from quiverlog.core.controller.internal_topics import INTERNAL_TOPICS

    header = batch_at(view, found.position, found.base_offset)
    assert header is not None, "its checksum was right"
    schema = INTERNAL_TOPICS[topic].schema
    readable = _READABLE[topic]
    rows = dump.records[found.position] = []
    try:
        # A copy: the mapping is closed while Arrow may still hold its buffers.
        batch = memoryview(bytes(view[found.position : found.position + found.size_bytes]))
        for offset, row in enumerate(
            read_rows(batch, header, schema, schema).to_pylist(), found.base_offset
        ):
            rows.append({"offset": offset, **readable(row)})
    except (CorruptBatch, CorruptLog, UnsupportedFormat, UnicodeDecodeError) as error:
        offset = found.base_offset + len(rows)
        dump.problems.append(f"position {found.position}: row {offset}: {error}")


def _decision(row: dict[str, Any]) -> dict[str, object]:
    from quiverlog.core.transactions.records import decode_row

    tid, change = decode_row(row["kind"], row["transactional_id"], row["value"])
    values = {name: _plain(getattr(change, name)) for name in change.__struct_fields__}
    return {"kind": type(change).__name__, "transactional_id": tid, **values}


def _staged_row(row: dict[str, Any]) -> dict[str, object]:
    from quiverlog.core.transactions import staged_rows

    kind, batch = row.pop("kind"), row.pop("batch")
    if kind == staged_rows.KIND_BATCH:
        return {"kind": "Staged", **_plain(row), "byte_count": len(batch)}
    key = {name: row[name] for name in ("transactional_id", "epoch", "sequence")}
    found = staged_rows.decode_row(
        kind, row["transactional_id"], row["epoch"], row["sequence"], batch
    )
    if isinstance(found, staged_rows.DoneRow):
        ends = [_plain(one._asdict()) for one in found.ends]
        return {"kind": "Done", **key, "durability": found.durability, "ends": ends}
    targets = [
        {
            "topic_id": one.topic_id.hex(),
            "partition": one.partition,
            "batches": len(one.offsets),
            "rows": one.row_count,
        }
        for one in found.targets
    ]
    return {
        "kind": "Publish",
        **key,
        "producer_id": found.producer_id,
        "durability": found.durability,
        "targets": targets,
    }


def _group_row(row: dict[str, Any]) -> dict[str, object]:
    from quiverlog.core.groups.records import Kind, decode_row, partition_of

    record = decode_row(row["kind"], row["group"], row["key"], row["value"])
    key: dict[str, object] = {"key": record.key.hex()} if record.key else {}
    if record.kind is Kind.OFFSET:
        topic_id, partition = partition_of(record.key)
        key = {"topic_id": topic_id.hex(), "partition": partition}
    elif record.kind is Kind.PENDING:
        key = {"transactional_id": record.key.decode()}
    values = {"deleted": True} if record.value is None else _plain(record.value)
    if "offset" in values:  # The row's own is shown beside it.
        values["committed_offset"] = values.pop("offset")
    kind = record.kind.name.lower()
    state = {"is_state": True} if record.is_state else {}
    if record.kind in (Kind.SNAPSHOT_BEGIN, Kind.SNAPSHOT_END):
        return {"kind": kind}
    return {"kind": kind, **state, "group": record.group, **key, **values}


_READABLE: Final = {
    TRANSACTIONS_TOPIC: _decision,
    STAGED_TOPIC: _staged_row,
    GROUPS_TOPIC: _group_row,
}


def _plain(value: Any) -> Any:
    """Return a value for JSON: bytes as hex."""
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, dict):
        return {name: _plain(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if fields := getattr(value, "__struct_fields__", None):
        return {name: _plain(getattr(value, name)) for name in fields}
    return value


def _index_of(path: Path, base_offset: int | None) -> SparseIndex | None:
    """Return the index beside the file; None: there is no valid one."""
    if path.suffix != LOG_SUFFIX:
        return None
    with contextlib.suppress(OSError, CorruptLog, UnsupportedFormat):
        path = Path(index_path(str(path)))
        summary, index = SparseIndex.load(str(path), path.read_bytes())
        return index if summary.base_offset == base_offset else None
    return None


def _as_json(dump: _Dump, *, only_problems: bool) -> dict[str, object]:
    return {
        "file": str(dump.path),
        "batches": [
            asdict(b)
            | ({"records": dump.records[b.position]} if b.position in dump.records else {})
            for b in dump.shown(only_problems=only_problems)
        ],
        "rows": sum(b.row_count for b in dump.batches if b.crc_ok),
        "problems": dump.problems,
    }


def _print(dump: _Dump, *, only_problems: bool) -> None:
    print(dump.path)
    numbers = ["POSITION", "BYTES", "FIRST", "LAST", "EPOCH", "ROWS", "SCHEMA"]
    shown = dump.shown(only_problems=only_problems)
    if shown:
        print_table(
            [*numbers, "CODEC", "PRODUCER", "TIME", "CRC"],
            [_row(batch) for batch in shown],
            right=numbers,
        )
    for batch in shown:
        for row in dump.records.get(batch.position, ()):
            print(_line(row))
    good = [batch for batch in dump.batches if batch.crc_ok]
    stored = human_bytes(sum(b.size_bytes for b in good))
    rows = counted(sum(b.row_count for b in good), "row", "rows")
    print(f"{counted(len(good), 'batch', 'batches')}, {rows}, {stored}")
    for problem in dump.problems:
        print(f"PROBLEM  {problem}")


def _line(row: dict[str, object]) -> str:
    values = (f"{name}={_short(value)}" for name, value in list(row.items())[2:])
    return printable(f"{row['offset']:>8}  {row['kind']}  {' '.join(values)}")


def _short(value: object) -> str:
    if isinstance(value, list) and len(value) > _SHOWN_MAX:
        return f"{len(value):,} of them"
    if isinstance(value, list):
        return "[" + ", ".join(_short(one) for one in value) + "]"
    if isinstance(value, dict):
        return "(" + " ".join(f"{name}={_short(one)}" for name, one in value.items()) + ")"
    return str(value)


def _row(b: DumpedBatch) -> tuple[object, ...]:
    from datetime import UTC, datetime

    producer = f"{b.producer_id}/{b.producer_epoch}:{b.base_sequence}" if b.producer_id >= 0 else ""
    try:
        moment = datetime.fromtimestamp(b.timestamp_max_us / 1e6, UTC).strftime("%F %T.%f")
    except (OverflowError, ValueError, OSError):  # A damaged header may hold any number.
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
    )
