"""Do the replicas of a partition hold the same bytes? By their files, while no broker runs.

Owns the walk over segments. Where a file ends and the next begins may differ between replicas;
batches may not: offset, length and checksum of each are compared.

Not here: brokers, clients.
"""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import NamedTuple

from quiverlog.batch.header import BatchHeader
from quiverlog.limits import BATCH_HEADER_BYTES
from quiverlog.storage.segment.segment_files import SEGMENT_HEADER_BYTES

__all__ = ["StoredBatch", "batches", "compare"]


class StoredBatch(NamedTuple):
    """One batch of a replica; the checksum is over all its bytes, header included."""

    base_offset: int
    next_offset: int
    checksum: int


def batches(directory: Path) -> list[StoredBatch]:
    """All batches of a partition's directory, in the order of its files."""
    found = []
    for path in sorted(directory.glob("*.log")):
        data = memoryview(path.read_bytes())
        at = SEGMENT_HEADER_BYTES
        while at + BATCH_HEADER_BYTES <= len(data):
            header = BatchHeader.unpack(data, at)
            if not header.is_plausible or at + header.total_bytes > len(data):
                break
            checksum = zlib.crc32(data[at : at + header.total_bytes])
            found.append(StoredBatch(header.base_offset, header.next_offset, checksum))
            at += header.total_bytes
    return found


def compare(name: str, replicas: dict[int, Path]) -> list[str]:
    """What differs between the directories of one partition, by node id."""
    found = {node_id: batches(directory) for node_id, directory in replicas.items()}
    longest = max(found, key=lambda node_id: len(found[node_id]))
    problems = []
    for node_id, own in found.items():
        expected = 0
        for mine, theirs in zip(own, found[longest], strict=False):
            if mine.base_offset != expected:
                problems.append(
                    f"replicas: {name} on broker {node_id} goes on at {mine.base_offset}"
                    f" instead of {expected}"
                )
                break
            if mine != theirs:
                problems.append(
                    f"replicas: {name} has {mine} on broker {node_id} and {theirs} on {longest}"
                )
                break
            expected = mine.next_offset
        if len(own) != len(found[longest]):
            problems.append(
                f"replicas: {name} has {len(own)} batches on broker {node_id} and"
                f" {len(found[longest])} on {longest}"
            )
    return problems
