"""Lives of a quorum's log: what was promised, what may be there, and disks that stop anywhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from quiverlog.core.raft.messages import (
    Entry,
    EntryKind,
    HardState,
    ReplicaKey,
    SnapshotChunk,
    SnapshotMeta,
)
from quiverlog.core.raft.outbox import Write
from quiverlog.core.raft.snapshots import SnapshotRead
from quiverlog.errors import QuiverlogError, StorageFault
from quiverlog.storage.disk.disk import Disk
from quiverlog.storage.metadata.quorum_log import QuorumLog
from tests.sim.disk import SimDisk

KEY = ReplicaKey(0, "disk")
OTHER = ReplicaKey(1, "disk")
VOTERS = {KEY: "", OTHER: "elsewhere"}


def entry(index: int, term: int) -> Entry:
    return Entry(index, term, EntryKind.DATA, b"%d of term %d" % (index, term))


class State(NamedTuple):
    """All that a start finds."""

    hard_state: HardState
    snapshot: SnapshotMeta
    records: bytes
    entries: tuple[Entry, ...]


def open_log(disk: Disk, path: str, **options: bool) -> QuorumLog:
    return QuorumLog.open(disk, path, KEY, **options)  # type: ignore[arg-type]


def state_of(log: QuorumLog, records: bytes | None = None) -> State:
    entries = tuple(log.entries(log.first_index, 1 << 30))
    found = log.take_records() if records is None else records
    return State(log.hard_state, log.snapshot, found, entries)


def read(disk: Disk, path: str) -> State:
    log = open_log(disk, path)
    state = state_of(log)
    log.close()
    return state


class Story:
    """A life of a log. `promised`: the last state that was shown; `possible`: what may be there."""

    def __init__(self, log: QuorumLog, incoming: bytes) -> None:
        self.log = log
        self.incoming = incoming
        self.promised = state_of(log)
        self.possible = [self.promised]
        self._number = 0

    def write(
        self,
        *entries: Entry,
        state: HardState | None = None,
        chunk: SnapshotChunk | None = None,
        restored: State | None = None,
    ) -> None:
        if entries and not self.log.first_index <= entries[0].index <= self.log.last_index + 1:
            return  # What came before it has failed.
        term = (state or self.log.hard_state).term
        if (entries and entries[-1].term > term) or (chunk is not None and chunk.term > term):
            return  # So has the term that it is of.
        self._number += 1
        write = Write(self._number, state, entries, chunk)
        steps = self._steps(write, restored)
        try:
            job = self.log.begin_write(write)
        except StorageFault:
            return
        try:
            written = job.run()
        except QuiverlogError as error:
            if self.log.fail_write(job, error):
                self.possible = [self.promised, *steps]
            else:
                self.promised = state_of(self.log, self.promised.records)
                self.possible = [self.promised, steps[0]]
            return
        self.log.complete_write(job, written)
        self.promised = steps[-1]
        self.possible = [self.promised]
        assert state_of(self.log, self.promised.records) == self.promised

    def _steps(self, write: Write, restored: State | None) -> list[State]:
        now = self.promised
        steps = [now._replace(hard_state=write.hard_state or now.hard_state)]
        if write.entries:
            kept = tuple(e for e in now.entries if e.index < write.entries[0].index)
            steps.append(steps[-1]._replace(entries=kept + write.entries))
        if restored is not None:
            steps.append(restored._replace(hard_state=steps[-1].hard_state))
        return steps

    def snapshot(self, index: int, kept: int) -> None:
        now = self.promised
        if not now.snapshot.index < index <= self.log.last_index or index < self.log.first_index:
            return
        meta = SnapshotMeta(index, self.log.term(index), VOTERS)
        after = now._replace(
            snapshot=meta,
            records=b"as of %d" % index,
            entries=tuple(e for e in now.entries if e.index > index - kept),
        )
        try:
            job = self.log.begin_snapshot(meta, lambda: b"as of %d" % index, kept=kept)
        except StorageFault:
            return
        try:
            size = job.run()
        except QuiverlogError as error:
            if self.log.fail_snapshot(job, error):
                self.possible.append(after)
            return
        self.log.complete_snapshot(job, size)
        self.promised = after
        self.possible = [after]

    def install(self) -> None:
        """A snapshot of another replica, in chunks of 40 bytes."""
        meta = SnapshotMeta(20, 5, VOTERS)
        restored = State(self.promised.hard_state, meta, b"of another", ())
        size = len(self.incoming)
        before = self.promised.snapshot
        for offset in range(0, size, 40):
            chunk = SnapshotChunk(
                source=OTHER,
                target=KEY,
                term=6,
                snapshot=meta,
                offset=offset,
                data=self.incoming[offset : offset + 40],
                done=offset + 40 >= size,
            )
            failed = self.promised
            self.write(chunk=chunk, restored=restored if chunk.done else None)
            if self.promised == failed and chunk.done and self.promised.snapshot == before:
                return

    def run(self) -> None:
        self.write(state=HardState(1, KEY))
        self.write(entry(1, 1), entry(2, 1), entry(3, 1))
        self.write(entry(4, 1), state=HardState(2, OTHER))
        self.write(entry(3, 3), state=HardState(3, None))  # In place of 3 and 4.
        self.snapshot(2, kept=1)
        self.write(entry(4, 3), entry(5, 3))
        self.snapshot(4, kept=0)
        self.write(entry(5, 4), state=HardState(4, None))
        self.write(state=HardState(6, None))
        self.install()
        self.write(entry(21, 6), state=HardState(6, OTHER))


def incoming() -> bytes:
    """The bytes that a leader sends of its snapshot."""
    disk = SimDisk()
    log = QuorumLog.open(disk, "m", OTHER)
    life = [Entry(n, 5, EntryKind.NO_OP, b"") for n in range(1, 21)]
    write = Write(1, HardState(5, OTHER), tuple(life), None)
    job = log.begin_write(write)
    log.complete_write(job, job.run())
    meta = SnapshotMeta(20, 5, VOTERS)
    snapshot = log.begin_snapshot(meta, lambda: b"of another", kept=0)
    log.complete_snapshot(snapshot, snapshot.run())
    data, offset = b"", 0
    while True:
        chunk = log.begin_read(SnapshotRead(KEY, meta, offset, 7)).run()
        assert chunk.data is not None
        assert len(chunk.data) <= 7
        data += chunk.data
        offset += len(chunk.data)
        if chunk.done:
            return data


class Cut(BaseException):
    """The power fails between two calls."""


class SteppingDisk(SimDisk):
    """Counts its operations; at the nth one something is raised."""

    fuse = -1
    error: Callable[[str], BaseException] = Cut

    def step(self, kind: str, path: str) -> None:
        if self.fuse == 0:
            self.fuse = -1
            raise self.error(path)
        self.fuse -= self.fuse > 0


def new_disk(seed: int) -> SteppingDisk:
    disk = SteppingDisk(seed)
    disk.reorder_pages = bool(seed % 2)
    open_log(disk, "m").close()
    disk.sync_dir("m")
    return disk
