"""Partitions' directories and foreign files in them: owners, strays, lost names."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Sequence
from itertools import pairwise
from typing import Final

import msgspec

from quiverlog.batch.checksum import crc32c
from quiverlog.batch.header import link
from quiverlog.errors import CorruptLog, QuiverlogError, UnsupportedFormat
from quiverlog.limits import BATCH_HEADER_BYTES
from quiverlog.storage.disk.byte_source import FileBytes
from quiverlog.storage.disk.disk import Disk, short_name
from quiverlog.storage.disk.frames import check_version
from quiverlog.storage.segment.names import own_offset, rename_aside
from quiverlog.storage.segment.scan import Found, scan
from quiverlog.storage.segment.segment import Segment
from quiverlog.storage.segment.segment_files import LOG_SUFFIX, SEGMENT_HEADER_BYTES, read_header

__all__ = [
    "DAMAGED",
    "DAMAGED_FILE",
    "DELETED",
    "EMPTIED_FILE",
    "NAME_BYTES_MAX",
    "ORPHAN",
    "PARTITION_FILE",
    "PartitionFile",
    "aside_name",
    "doomed_name",
    "is_damaged_id",
    "is_doomed_name",
    "is_partition_name",
    "lost_unflushed",
    "names_itself",
    "orphan_name",
    "printable",
    "read_topic_id",
    "set_aside_strays",
    "sync_partition_file",
    "write_partition_file",
]


DELETED: Final = ".deleted"
_DOOMED: Final = re.compile(r"(?:[0-9a-f]{32}|unknown)-[0-9a-f]{8}\.deleted")
ORPHAN: Final = ".orphan"
DAMAGED: Final = ".damaged"
DAMAGED_FILE: Final = "damaged"
"""Exists where rows were found damaged: they are fetched from other brokers again, whatever a later
start finds of the damage."""
PARTITION_FILE: Final = "partition.json"
EMPTIED_FILE: Final = "emptied"
"""Exists where a start after a clean stop found nothing: it must not pass for a new partition."""
NAME_BYTES_MAX: Final = 255
_TOPIC_ID_BYTES: Final = 16
_DAMAGED_BITS_MAX: Final = 4
"""Two random ids differ in 64 of 128 bits; in at most 4, in one of 10^31 pairs."""
_MAGIC: Final = "quiverlog-partition"
_VERSION: Final = 1
_PARTITION_NAME: Final = re.compile(r".+-[0-9]+", re.DOTALL)


class PartitionFile(msgspec.Struct, kw_only=True):
    magic: str = _MAGIC
    version: int = _VERSION
    topic_id: str
    name: str


_DECODER: Final = msgspec.json.Decoder(PartitionFile)
"""Made at import: threads open partitions, and only one may build a decoder for a type."""


def is_partition_name(name: str) -> bool:
    return _PARTITION_NAME.fullmatch(name) is not None


def doomed_name(name: str, topic_id: bytes) -> str:
    assert len(topic_id) in (0, _TOPIC_ID_BYTES)
    owner = topic_id.hex() or "unknown"
    doomed = f"{owner}-{crc32c(os.fsencode(name)):08x}{DELETED}"
    assert len(doomed) <= NAME_BYTES_MAX
    assert is_doomed_name(doomed), "a start must not take it for a partition"
    return doomed


def is_doomed_name(name: str) -> bool:
    return _DOOMED.fullmatch(name) is not None


def orphan_name(name: str, topic_id: bytes, attempt: int) -> str:
    assert attempt >= 0
    return aside_name(name, topic_id, f".{attempt}" if attempt else "", ORPHAN)


def aside_name(name: str, topic_id: bytes, number: str, kind: str) -> str:
    end = f".{topic_id.hex()[:8] or 'unknown'}{number}{kind}"
    raw = os.fsencode(name)
    if len(raw) + len(end) > NAME_BYTES_MAX:
        end = f"~{crc32c(raw):08x}{end}"
        raw = raw[: NAME_BYTES_MAX - len(end)]
    aside = os.fsdecode(raw) + end
    assert len(os.fsencode(aside)) <= NAME_BYTES_MAX
    assert not is_partition_name(aside), "a start must not take it for a partition"
    return aside


def printable(name: str) -> str:
    return ascii(name)[1:-1]


def read_topic_id(disk: Disk, directory: str) -> bytes | None:
    """Return the topic's id; empty if its file is missing, torn (by a power failure during the
    creation) or without a valid id; None if it cannot be read. Raises UnsupportedFormat."""
    path = f"{directory}/{PARTITION_FILE}"
    try:
        file = _DECODER.decode(disk.read_file(path))
        topic_id = bytes.fromhex(file.topic_id)
    except (FileNotFoundError, NotADirectoryError):
        return b""
    except OSError:
        return None
    except (msgspec.MsgspecError, ValueError):
        return b""
    check_version(path, file.version, _VERSION)
    return topic_id if len(topic_id) == _TOPIC_ID_BYTES else b""


def names_itself(disk: Disk, directory: str, name: str) -> bool:
    try:
        data = disk.read_file(f"{directory}/{PARTITION_FILE}")
        return _DECODER.decode(data).name == printable(name)
    except (OSError, msgspec.MsgspecError):
        return False


def is_damaged_id(found: bytes, own: bytes) -> bool:
    if len(found) != len(own) or found == own:
        return False
    return sum((a ^ b).bit_count() for a, b in zip(found, own, strict=True)) <= _DAMAGED_BITS_MAX


def write_partition_file(disk: Disk, directory: str, name: str, topic_id: bytes) -> None:
    """Write the directory's owner; durable with the first rows."""
    file = PartitionFile(topic_id=topic_id.hex(), name=printable(name))
    try:
        disk.write_file_atomic(
            f"{directory}/{PARTITION_FILE}", msgspec.json.encode(file) + b"\n", durable=False
        )
    except QuiverlogError as error:
        error.details.setdefault("partition", name)
        raise


def sync_partition_file(disk: Disk, directory: str) -> None:
    """Without it, files stay for ever once their topic is deleted."""
    with contextlib.suppress(OSError):
        disk.open(f"{directory}/{PARTITION_FILE}", create=False).sync()


# Strays: files with a segment's name whose rows the neighbour holds. Content decides, not the name.
def set_aside_strays(
    disk: Disk, directory: str, segments: list[Segment], names: Sequence[str]
) -> list[str]:
    """Take strays out of `segments`, which are in order, and move them aside; return notes on
    them."""
    kept: list[Segment] = []
    notes: list[str] = []
    for segment in segments:
        name = short_name(segment.path)
        own = segment.path.rpartition("/")[2]
        indexed = segment.index_path.rpartition("/")[2] in names
        if not kept or not _is_void(segment, indexed) or not _reaches(kept[-1], segment):
            kept.append(segment)
            continue
        new = rename_aside(disk, directory, own, names)
        segment.dropped = True
        segment.file.close()
        owner = short_name(kept[-1].path)
        notes.append(f"{name} holds no batch, its rows are in {owner}: moved to {new}.")
    assert len(kept) + len(notes) == len(segments), "each is kept or noted"
    assert kept[:1] == segments[:1], "the first one has no neighbour in front of it"
    if notes:
        for segment, following in pairwise(kept):
            segment.end_offset = following.base_offset
        kept[-1].end_offset = kept[-1].base_offset
        kept[-1].finished = False
        segments[:] = kept
    return notes


def _is_void(segment: Segment, indexed: bool) -> bool:
    """Return True if the file does not begin with a batch of its rows.

    An `indexed` one had rows when it was finished.
    """
    file = segment.file
    if file.size < SEGMENT_HEADER_BYTES + BATCH_HEADER_BYTES:
        return True
    if indexed:
        return False
    try:
        read_header(file, segment.base_offset)
    except UnsupportedFormat:
        return False
    except CorruptLog:
        pass
    head = FileBytes(file, file.size, window_bytes=BATCH_HEADER_BYTES)
    view = head.read(SEGMENT_HEADER_BYTES, BATCH_HEADER_BYTES)
    return not link(view, 0, segment.base_offset, file.size - SEGMENT_HEADER_BYTES)


def _reaches(segment: Segment, following: Segment) -> bool:
    file, offset = segment.file, following.base_offset
    if file.size <= SEGMENT_HEADER_BYTES or segment.files.ends_by_index(offset):
        return False
    source = FileBytes(file, file.size)
    for entry in scan(source, SEGMENT_HEADER_BYTES, segment.base_offset, verify=False):
        if not isinstance(entry, Found) or entry.header.next_offset <= offset:
            continue
        batch = scan(source, entry.position, entry.header.base_offset, verify=True)
        return isinstance(next(batch, None), Found)
    return False


# A log whose first file lost its name in a power failure before any flush (adr/0017).
def lost_unflushed(
    segments: Sequence[Segment],
    start_offset: int,
    known_offset: int,
    names: Sequence[str],
    moved: Sequence[str],
) -> bool:
    """Return True if the log should end at its start, before all its files; False if rows may have
    been flushed, which then are missing.

    Indexes and snapshots count as flushed, because they are written after a flush; so does a
    `moved` entry with a segment's name that was no file: it was put there by hand. `known_offset`:
    the end by the log's small files and the last stop.
    """
    assert start_offset >= 0
    assert known_offset >= 0
    if not segments or segments[0].base_offset <= start_offset:
        return False
    if known_offset > start_offset or any(name.endswith(LOG_SUFFIX) for name in moved):
        return False
    for name in names:
        index, snapshot = own_offset(name, "index"), own_offset(name, "snapshot")
        if index is not None and index >= start_offset:
            return False
        if snapshot is not None and snapshot > start_offset:
            return False
    return not any(_may_be_ahead(segment, start_offset) for segment in segments)


def _may_be_ahead(segment: Segment, offset: int) -> bool:
    """Return True if the header has bounds above `offset`, or is damaged and may have had; zeros or
    half a header never arrived."""
    file = segment.file
    if file.size < SEGMENT_HEADER_BYTES:
        return False
    try:
        header = read_header(file, segment.base_offset)
    except CorruptLog:
        source = FileBytes(file, SEGMENT_HEADER_BYTES)
        return any(source.read(0, source.size)) or not source.holds(0, source.size)
    return max(header.mark.offset, header.start_offset) > offset
