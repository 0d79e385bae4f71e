"""The names in `data/`, and the file in each directory that says whose it is.

Owns which names are partitions, which are on their way out or set aside, and `partition.json`. No
name here is longer than a file system takes (255 bytes), whatever the topic is called: the names of
directories on their way out are made from ids, and `partition.json` knows the partition's own name.

Partitions' names end in a number, so no topic can be called such that its partition looks as if it
were on its way out.
"""

from __future__ import annotations

import contextlib
import os
import re
from typing import Final

import msgspec

from quiverlog.batch.checksum import crc32c
from quiverlog.errors import QuiverlogError
from quiverlog.storage.disk import Disk
from quiverlog.storage.frames import check_version

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
    "names_itself",
    "orphan_name",
    "printable",
    "read_topic_id",
    "sync_partition_file",
    "write_partition_file",
]

DELETED: Final = ".deleted"
_DOOMED: Final = re.compile(
    r"(?:(?:[0-9a-f]{32}|unknown)-|.+-[0-9]+\.)(?:[0-9a-f]{8}|unknown)\.deleted", re.DOTALL
)
ORPHAN: Final = ".orphan"
DAMAGED: Final = ".damaged"
DAMAGED_FILE: Final = "damaged"
"""There where rows were found to be damaged: they come from other brokers again, whatever a later
start finds of the damage. What it says is for people."""
PARTITION_FILE: Final = "partition.json"
EMPTIED_FILE: Final = "emptied"
"""There where a start after a clean stop found nothing: nobody may take it for a new partition."""
NAME_BYTES_MAX: Final = 255
_TOPIC_ID_BYTES: Final = 16
_DAMAGED_BITS_MAX: Final = 4
"""Two random ids differ in 64 of 128 bits; in so few, once in 10^31 pairs."""
_MAGIC: Final = "quiverlog-partition"
_VERSION: Final = 1
_PARTITION_NAME: Final = re.compile(r".+-[0-9]+", re.DOTALL)


class PartitionFile(msgspec.Struct, kw_only=True):
    """`partition.json`. `topic_id` in hex; `name` is the partition's, empty in older files."""

    magic: str = _MAGIC
    version: int = _VERSION
    topic_id: str
    name: str = ""


_DECODER: Final = msgspec.json.Decoder(PartitionFile)
"""Made here: partitions are opened by threads, and msgspec describes a type in one thread only."""


def is_partition_name(name: str) -> bool:
    """True for what may be `<topic>-<partition>`."""
    return _PARTITION_NAME.fullmatch(name) is not None


def doomed_name(name: str, topic_id: bytes) -> str:
    """What a partition's directory is called on its way out: short, one for each partition."""
    assert len(topic_id) in (0, _TOPIC_ID_BYTES)
    owner = topic_id.hex() or "unknown"
    doomed = f"{owner}-{crc32c(os.fsencode(name)):08x}{DELETED}"
    assert len(doomed) <= NAME_BYTES_MAX
    assert is_doomed_name(doomed), "a start must not take it for a partition"
    return doomed


def is_doomed_name(name: str) -> bool:
    """True for a name of `doomed_name`, or one that older brokers gave for the same purpose."""
    return _DOOMED.fullmatch(name) is not None


def orphan_name(name: str, topic_id: bytes, attempt: int) -> str:
    """What a directory that no topic owns is called: its own name, cut where it is too long."""
    assert attempt >= 0
    return aside_name(name, topic_id, f".{attempt}" if attempt else "", ORPHAN)


def aside_name(name: str, topic_id: bytes, number: str, kind: str) -> str:
    """What a partition's directory that was set aside is called."""
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
    """A name that anybody may have put there, as a log line takes it."""
    return ascii(name)[1:-1]


def read_topic_id(disk: Disk, directory: str) -> bytes | None:
    """The id of the topic that a directory belongs to.

    Empty when its file is missing or torn, as a power failure during the creation leaves it, or
    holds what is no topic's id; None when it cannot be read, so that nobody knows.

    Raises:
        UnsupportedFormat: a newer version wrote it.
    """
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
    """True when the file in a partition's directory has the directory's name, or none."""
    try:
        data = disk.read_file(f"{directory}/{PARTITION_FILE}")
        return _DECODER.decode(data).name in (printable(name), "")
    except (OSError, msgspec.MsgspecError):
        return False


def is_damaged_id(found: bytes, own: bytes) -> bool:
    """True when `found` differs from `own` in so few bits that no other topic has that id."""
    if len(found) != len(own) or found == own:
        return False
    return sum((a ^ b).bit_count() for a, b in zip(found, own, strict=True)) <= _DAMAGED_BITS_MAX


def write_partition_file(disk: Disk, directory: str, name: str, topic_id: bytes) -> None:
    """Say whose directory this is. Durable with the first rows: see `create_partition`."""
    file = PartitionFile(topic_id=topic_id.hex(), name=printable(name))
    try:
        disk.write_file_atomic(
            f"{directory}/{PARTITION_FILE}", msgspec.json.encode(file) + b"\n", durable=False
        )
    except QuiverlogError as error:
        error.details.setdefault("partition", name)
        raise


def sync_partition_file(disk: Disk, directory: str) -> None:
    """Bring what says whose rows these are to the disk.

    Without it they are nobody's once their topic is deleted, and stay for ever. Its failure is none
    of the rows'.
    """
    with contextlib.suppress(OSError):
        disk.open(f"{directory}/{PARTITION_FILE}", create=False).sync()
