"""`quorum-state`: what a replica of the quorum must never forget, its term and its vote.

```
payload: u64 term | u8 has voted | i64 node id | directory id, UTF-8
```

Framed as frames.py draws it, magic `QVQUORUM`. Written anew for each change: a temporary file,
fsync, rename, fsync of the directory. A replica that came back without it might vote twice in one
term, so a damaged one, or none beside a log, refuses the start; it is never guessed.
"""

from __future__ import annotations

import struct
from typing import Final

from quiverlog.core.raft.messages import HardState, ReplicaKey
from quiverlog.errors import CorruptLog
from quiverlog.storage.disk import Disk, is_special_file
from quiverlog.storage.frames import pack_file, unpack_file
from quiverlog.storage.metadata_frames import restore_error

__all__ = ["STATE_FILE", "load_state", "pack_state"]

STATE_FILE: Final = "quorum-state"
_MAGIC: Final = b"QVQUORUM"
_VERSION: Final = 1
_STATE: Final = struct.Struct("<QBq")


def pack_state(state: HardState) -> bytes:
    """The file's bytes."""
    assert state.term >= 0
    assert state.term > 0 or state.vote is None, "no vote is given before the first term"
    vote = state.vote
    node_id, directory_id = (0, "") if vote is None else vote
    payload = _STATE.pack(state.term, vote is not None, node_id) + directory_id.encode()
    return pack_file(_MAGIC, _VERSION, payload)


def load_state(disk: Disk, path: str) -> HardState | None:
    """What was written last; None when there is no such file.

    Raises:
        CorruptLog: it is damaged.
        UnsupportedFormat: a newer version wrote it.
        OSError: it cannot be read.
    """
    if not disk.exists(path):
        return None
    try:
        payload = unpack_file(path, disk.read_file(path), _MAGIC, _VERSION)
        term, has_voted, node_id = _STATE.unpack_from(payload)
        vote = ReplicaKey(node_id, payload[_STATE.size :].decode()) if has_voted else None
    except (CorruptLog, struct.error, UnicodeDecodeError) as error:
        raise restore_error(path, "is damaged") from error
    except OSError as error:
        if not is_special_file(error):
            raise
        raise restore_error(path, "is not a regular file") from error
    return HardState(term, vote)
