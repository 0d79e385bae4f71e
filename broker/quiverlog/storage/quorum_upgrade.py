"""A broker that had no quorum becomes a quorum of one: its metadata log is written anew, once.

Owns that step. Every entry of the old log is an entry of the new one, of term 1, with the index
that the metadata version had after it; where the old log began with a snapshot, so does the new
one. The vote's file is written first, then the log beside the old one: one rename later the
directory is that of a quorum. Before it, the next start begins again; an older broker refuses the
directory afterwards.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from quiverlog.core.controller.records import SnapshotRecord, decode_entry
from quiverlog.core.raft.messages import Entry, EntryKind, HardState, ReplicaKey, SnapshotMeta
from quiverlog.storage.disk import Disk
from quiverlog.storage.metadata_frames import VERSION_QUORUM, file_header, pack_frame
from quiverlog.storage.quorum_items import Snapshot, pack_entry, pack_snapshot
from quiverlog.storage.quorum_state import pack_state

__all__ = ["UPGRADED_TERM", "upgrade"]

UPGRADED_TERM: Final = 1
"""Of all entries that were decided without a quorum. Nobody votes in it."""


def upgrade(
    disk: Disk,
    path: str,
    state_path: str,
    key: ReplicaKey,
    state: HardState | None,
    old: Sequence[bytes],
) -> HardState:
    """Replace the log at `path`, whose entries are `old`. Returns the hard state from now on.

    Raises:
        DiskFull: there is no room for both logs; the old one is as it was.
        StorageFault: the disk failed; either log is there, whole.
    """
    if state is None or state.term < UPGRADED_TERM:
        state = HardState(UPGRADED_TERM, None)
        disk.write_file_atomic(state_path, pack_state(state))
    assert state.term >= UPGRADED_TERM
    base = 0
    records = b""
    if old:
        first = decode_entry(old[0])[0]
        if isinstance(first, SnapshotRecord):
            base, records, old = first.version, old[0], old[1:]
    meta = SnapshotMeta(base, UPGRADED_TERM if base else 0, {key: ""})
    log = file_header(VERSION_QUORUM) + pack_frame([pack_snapshot(Snapshot(meta, records))])
    if old:
        log += pack_frame(
            [
                pack_entry(Entry(base + n, UPGRADED_TERM, EntryKind.DATA, data))
                for n, data in enumerate(old, 1)
            ]
        )
    disk.write_file_atomic(path, log)
    return state
