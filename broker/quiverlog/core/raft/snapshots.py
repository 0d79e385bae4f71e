"""Sending a snapshot to a follower, chunk by chunk (paper, section 7; KIP-630).

```
 leader    read (job) ─▶ SnapshotChunk(offset, data, done) ─▶ the answer's offset ─▶ read ...
 follower  chunk fits ─▶ write to a temporary file (job) ──▶ answer
           last chunk ─▶ write, fsync, rename (job) ────────▶ the snapshot is the log; answer
```

Invariants:
- One chunk of a transfer is in flight, so a follower holds one chunk in memory.
- A follower continues only a snapshot of the same leader and term: two replicas may have written
  different bytes for the same index.
- A chunk that fits is answered when it is in the file; the last one when the snapshot is durable.
- A snapshot that the log has reached meanwhile is not installed: acknowledged entries would go.
"""

from __future__ import annotations

from typing import NamedTuple

from quiverlog.core.raft.log import LogView
from quiverlog.core.raft.messages import (
    RaftConfig,
    ReplicaKey,
    SnapshotChunk,
    SnapshotChunkResponse,
    SnapshotMeta,
)
from quiverlog.core.raft.outbox import Outbox
from quiverlog.core.raft.progress import Progress, ProgressState

__all__ = ["SnapshotRead", "SnapshotReceiver", "SnapshotSender"]


class SnapshotRead(NamedTuple):
    target: ReplicaKey
    snapshot: SnapshotMeta
    offset: int
    bytes_max: int


class SnapshotSender:
    """The leader's end; each transfer's state is in the follower's progress."""

    __slots__ = ("_config", "_key", "_log", "_outbox", "_reads", "_term")

    def __init__(
        self, key: ReplicaKey, term: int, config: RaftConfig, log: LogView, outbox: Outbox
    ) -> None:
        self._key = key
        self._term = term
        self._config = config
        self._log = log
        self._outbox = outbox
        self._reads: list[SnapshotRead] = []

    def continue_transfer(self, progress: Progress, now_us: int) -> None:
        transfer = progress.transfer
        if transfer is None or transfer.read_under_way:
            return
        assert progress.state is ProgressState.SNAPSHOT
        assert transfer.snapshot.index > progress.match, "the follower needs the snapshot"
        if transfer.sent_us is not None:
            if now_us - transfer.sent_us < self._config.election_timeout_us:
                return
            transfer.sent_us = None  # The chunk or its answer was lost.
        transfer.read_under_way = True
        self._reads.append(
            SnapshotRead(
                progress.key, transfer.snapshot, transfer.offset, self._config.chunk_bytes_max
            )
        )

    def take_reads(self) -> tuple[SnapshotRead, ...]:
        reads, self._reads = tuple(self._reads), []
        return reads

    @property
    def has_reads(self) -> bool:
        return bool(self._reads)

    def on_read(
        self, progress: Progress, read: SnapshotRead, data: bytes | None, done: bool, now_us: int
    ) -> None:
        transfer = progress.transfer
        if transfer is None or transfer.snapshot != read.snapshot:
            return  # The follower reached the snapshot without it.
        assert progress.state is ProgressState.SNAPSHOT
        transfer.read_under_way = False
        if data is None:
            progress.abandon_snapshot()
            return
        # The follower asked for another offset while this one was read.
        if transfer.offset != read.offset:
            return
        assert len(data) <= read.bytes_max
        transfer.sent_us = now_us
        self._outbox.send(
            SnapshotChunk(
                source=self._key,
                target=progress.key,
                term=self._term,
                snapshot=read.snapshot,
                offset=read.offset,
                data=data,
                done=done,
            )
        )

    def on_response(self, progress: Progress, message: SnapshotChunkResponse, now_us: int) -> bool:
        transfer = progress.transfer
        if transfer is None or message.snapshot_index != transfer.snapshot.index:
            return False
        assert transfer.snapshot.index > progress.match
        if message.installed:
            progress.accepted(transfer.snapshot.index)
            assert progress.transfer is None, "the follower gets entries again"
            return True
        # The follower names the next offset: it may have started again after a crash. A delayed
        # answer costs one chunk, which the follower does not take, and one more answer.
        if message.offset != transfer.offset:
            transfer.offset = message.offset
            transfer.sent_us = None
        self.continue_transfer(progress, now_us)
        return False


class _Incoming(NamedTuple):
    source: ReplicaKey
    term: int
    snapshot: SnapshotMeta


class SnapshotReceiver:
    __slots__ = ("_incoming", "_key", "_log", "_offset", "_outbox", "_writing")

    def __init__(self, key: ReplicaKey, log: LogView, outbox: Outbox) -> None:
        self._key = key
        self._log = log
        self._outbox = outbox
        self._incoming: _Incoming | None = None
        self._offset = 0
        self._writing: SnapshotChunk | None = None

    @property
    def is_installing(self) -> bool:
        """True while a snapshot is about to replace the log. What is appended meanwhile would be
        dropped after it was acknowledged."""
        return self._writing is not None and self._writing.done

    def on_chunk(self, message: SnapshotChunk) -> None:
        snapshot = message.snapshot
        if self._writing is not None:
            return  # The answer to that chunk names the offset.
        if self._is_reached(snapshot):
            self._incoming = None
            self._answer(message, installed=True)
            return
        incoming = _Incoming(message.source, message.term, snapshot)
        if incoming != self._incoming:
            self._incoming = incoming
            self._offset = 0
        if message.offset != self._offset:
            self._answer(message, installed=False)
            return
        assert snapshot.index > self._log.commit, "what is committed is not replaced"
        self._writing = message
        self._outbox.write_chunk(message)

    def _is_reached(self, snapshot: SnapshotMeta) -> bool:
        """Return whether the log holds all that the snapshot does (paper, figure 13, rule 6)."""
        if self._log.commit >= snapshot.index:
            return True
        if self._log.matches(snapshot.index, snapshot.term):
            self._log.commit_to(snapshot.index)
            return True
        return False

    def written(self, chunk: SnapshotChunk) -> bool:
        assert chunk is self._writing
        assert chunk.offset == self._offset, "chunks are written one behind the other"
        self._writing = None
        self._offset = chunk.offset + len(chunk.data)
        if chunk.done:
            self._incoming = None
        return chunk.done

    def answer_written(self, chunk: SnapshotChunk) -> None:
        self._answer(chunk, installed=chunk.done)

    def _answer(self, chunk: SnapshotChunk, *, installed: bool) -> None:
        assert not installed or self._log.commit >= chunk.snapshot.index
        response = SnapshotChunkResponse(
            source=self._key,
            target=chunk.source,
            term=chunk.term,
            snapshot_index=chunk.snapshot.index,
            offset=self._offset,
            installed=installed,
        )
        self._outbox.send_durable(response, chunk.snapshot.index if installed else 0)

    def drop_unwritten(self) -> None:
        under_way = self._outbox.under_way
        assert under_way is None or under_way.chunk in (None, self._writing)
        if self._writing is not None and (under_way is None or under_way.chunk is None):
            self._outbox.drop_chunk()
            self._writing = None
