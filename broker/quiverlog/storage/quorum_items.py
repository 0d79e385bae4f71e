"""The entries of the metadata log of a quorum, as bytes: a snapshot first, then what came after it.

Owns how a snapshot and an entry of the Raft become an entry of the file (metadata_frames.py):

```
snapshot: "S" | u32 size of the meta | meta | the state machine's records
meta:     msgpack [1, index, term, [[node id, directory id, endpoint], ...]]
entry:    "E" | u64 index | u64 term | u8 kind | data
```

The snapshot has a frame of its own, the first; there is one from the beginning, of index 0 or more.
An entry whose index is there already takes the place of that one and of all behind it: so the log
is cut and grows in one write, and nothing is ever overwritten.

Invariant: an item that `unpack` returns follows from bytes that a checksum has covered; one that
makes no sense all the same is damage (CorruptLog).

Must not know: files.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec

from quiverlog.core.raft.membership import unpack_voters
from quiverlog.core.raft.messages import (
    Entry,
    EntryKind,
    ReplicaKey,
    SnapshotMeta,
)
from quiverlog.errors import UnsupportedFormat
from quiverlog.storage.metadata_frames import (
    FRAME_OVERHEAD_BYTES,
    ITEM_OVERHEAD_BYTES,
    restore_error,
)

__all__ = [
    "History",
    "Snapshot",
    "is_item",
    "pack_entry",
    "pack_snapshot",
    "snapshot_frame_bytes",
    "unpack_history",
    "unpack_snapshot",
]

_SNAPSHOT: Final = b"S"
_ENTRY: Final = b"E"
_U32: Final = struct.Struct("<I")
_HEAD: Final = struct.Struct("<cQQB")
_META_VERSION: Final = 1
_KINDS: Final = frozenset(map(int, EntryKind))


class _Meta(msgspec.Struct, array_like=True):
    """Fields are appended, never changed."""

    version: int
    index: int
    term: int
    voters: list[tuple[int, str, str]]


_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder(_Meta)


class Snapshot(NamedTuple):
    """`records`: what the state machine was at `meta.index`, in its own words."""

    meta: SnapshotMeta
    records: bytes


class History(NamedTuple):
    """What a log holds: a snapshot and the entries that are kept, without gaps."""

    snapshot: Snapshot
    entries: list[Entry]


def is_item(item: bytes) -> bool:
    """True for what this module packs; a log of a broker without a quorum begins with others."""
    return item[:1] in (_SNAPSHOT, _ENTRY)


def pack_snapshot(snapshot: Snapshot) -> bytes:
    """One item."""
    meta, records = snapshot
    assert meta.index >= 0
    assert meta.term >= 0
    voters = [(*key, endpoint) for key, endpoint in sorted(meta.voters.items())]
    packed = _encoder.encode(_Meta(_META_VERSION, meta.index, meta.term, voters))
    return b"".join((_SNAPSHOT, _U32.pack(len(packed)), packed, records))


def snapshot_frame_bytes(item_bytes: int) -> int:
    """Length of the frame that holds a snapshot's item and nothing else."""
    assert item_bytes > 0
    return FRAME_OVERHEAD_BYTES + ITEM_OVERHEAD_BYTES + item_bytes


def unpack_snapshot(path: str, item: bytes) -> Snapshot:
    """What `pack_snapshot` packed. Raises CorruptLog or UnsupportedFormat."""
    if item[:1] != _SNAPSHOT or len(item) < 1 + _U32.size:
        raise restore_error(path, "does not begin with a snapshot")
    end = 1 + _U32.size + int(_U32.unpack_from(item, 1)[0])
    try:
        meta = _decoder.decode(item[1 + _U32.size : end])
    except msgspec.MsgspecError as error:
        raise restore_error(path, f"has a snapshot that cannot be read ({error})") from error
    if meta.version < _META_VERSION:
        raise UnsupportedFormat(f"{path} has a snapshot of version {meta.version}.")
    voters = {ReplicaKey(node, directory): endpoint for node, directory, endpoint in meta.voters}
    return Snapshot(SnapshotMeta(meta.index, meta.term, voters), item[end:])


def pack_entry(entry: Entry) -> bytes:
    """One item."""
    assert entry.index > 0
    assert entry.term >= 0
    return _HEAD.pack(_ENTRY, entry.index, entry.term, entry.kind) + entry.data


def _unpack_entry(path: str, item: bytes) -> Entry:
    if item[:1] != _ENTRY or len(item) < _HEAD.size:
        raise restore_error(path, "has an entry that is none")
    _, index, term, kind = _HEAD.unpack_from(item)
    if kind not in _KINDS:
        raise UnsupportedFormat(f"{path} has an entry of an unknown kind, {kind}.")
    entry = Entry(index, term, EntryKind(kind), item[_HEAD.size :])
    if entry.kind is EntryKind.VOTERS:
        try:
            unpack_voters(entry.data)
        except (msgspec.MsgspecError, UnicodeError) as error:
            raise restore_error(path, f"has voters that cannot be read ({error})") from error
    return entry


def unpack_history(path: str, items: Sequence[bytes]) -> History:
    """All items of a file, oldest first.

    Raises:
        CorruptLog: they do not follow each other.
        UnsupportedFormat: a newer version wrote one of them.
    """
    if not items:
        raise restore_error(path, "does not begin with a snapshot")
    snapshot = unpack_snapshot(path, items[0])
    entries: list[Entry] = []
    for item in items[1:]:
        entry = _unpack_entry(path, item)
        if not entries:
            if not 0 < entry.index <= snapshot.meta.index + 1:
                raise restore_error(
                    path, f"has entry {entry.index} after snapshot {snapshot.meta.index}"
                )
        else:
            place = entry.index - entries[0].index
            if not 0 <= place <= len(entries):
                raise restore_error(path, f"has entry {entry.index} after {entries[-1].index}")
            del entries[place:]
        if entries and entry.term < entries[-1].term:
            raise restore_error(path, f"has a term that falls at entry {entry.index}")
        entries.append(entry)
    assert not entries or entries[-1].index - entries[0].index == len(entries) - 1
    _check_agreement(path, snapshot.meta, entries)
    return History(snapshot, entries)


def _check_agreement(path: str, meta: SnapshotMeta, entries: Sequence[Entry]) -> None:
    if not entries:
        return
    place = meta.index - entries[0].index
    if entries[-1].index < meta.index:
        raise restore_error(path, f"ends at entry {entries[-1].index}, before its snapshot")
    if place >= 0 and entries[place].term != meta.term:
        raise restore_error(path, f"has another entry {meta.index} than its snapshot")
    if place < 0 and entries[0].term < meta.term:
        raise restore_error(path, "has an older term behind its snapshot")
