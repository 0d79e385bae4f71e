"""A quorum replica's metadata log: core/raft's `LogStore` on two files, `metadata.log` (a snapshot
and the entries after it) and `quorum-state` (term and vote). Both exist or neither, unless a start
was interrupted before any promise.

Invariants: the hard state is never older than the newest entry: it is written first. After a write
with an unknown outcome nothing more is written until a restart.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Sequence

from quiverlog.core.raft.membership import unpack_voters
from quiverlog.core.raft.messages import Entry, EntryKind, HardState, ReplicaKey, SnapshotMeta
from quiverlog.core.raft.outbox import Write
from quiverlog.core.raft.snapshots import SnapshotRead
from quiverlog.errors import StorageFault
from quiverlog.storage.disk.disk import Disk
from quiverlog.storage.metadata.metadata_log import MetadataLog, pack_frame, restore_error
from quiverlog.storage.metadata.quorum_jobs import (
    INSTALL_SUFFIX,
    STATE_FILE,
    History,
    Plate,
    ReadChunkJob,
    Snapshot,
    SnapshotJob,
    WriteJob,
    Written,
    is_passing,
    load_state,
    pack_entry,
    pack_snapshot,
    pack_state,
    snapshot_frame_bytes,
    unpack_history,
)

__all__ = ["QuorumLog"]


_NEW = HardState(0, None)


class QuorumLog:
    __slots__ = ("_entries", "_file", "_plate", "_records", "hard_state", "key", "snapshot")

    def __init__(
        self,
        key: ReplicaKey,
        file: MetadataLog,
        state_path: str,
        state: HardState,
        history: History,
    ) -> None:
        snapshot, entries = history
        assert not entries or entries[-1].index >= snapshot.meta.index, "the history was checked"
        item_bytes = len(pack_snapshot(snapshot))
        self.key = key
        self.hard_state = state
        self.snapshot = snapshot.meta
        self._file = file
        self._plate = Plate(file.tail, state_path, snapshot.meta, snapshot_frame_bytes(item_bytes))
        self._records = snapshot.records
        self._entries = entries

    @classmethod
    def open(
        cls,
        disk: Disk,
        directory: str,
        key: ReplicaKey,
        *,
        create: bool = True,
        founds: bool = True,
        bytes_min: int = 0,
        before_cut: Callable[[Sequence[bytes]], str] = lambda _records: "",
        if_no_voter: Callable[[Sequence[bytes]], str] = lambda _records: "",
    ) -> QuorumLog:
        """Open the log, or make a new one.

        Args: see `MetadataLog.open`; `before_cut` is called with the records of the snapshot and
            those of the entries.
            if_no_voter: called with the same, where `key` is no voter; returns why this cannot be
                the log of this directory, or nothing.
            founds: a new log is that of a quorum of one; otherwise of a replica outside of any
                quorum, which needs to be sent everything.

        Raises: as `MetadataLog.open`.
        """
        try:
            first = Snapshot(SnapshotMeta(0, 0, {key: ""} if founds else {}), b"")
            return cls._open(
                disk, directory, key, create, first, bytes_min, before_cut, if_no_voter
            )
        except OSError as error:
            raise StorageFault(f"{directory} cannot be opened: {error.strerror}.") from error

    @classmethod
    def _open(
        cls,
        disk: Disk,
        directory: str,
        key: ReplicaKey,
        create: bool,
        first: Snapshot,
        bytes_min: int,
        before_cut: Callable[[Sequence[bytes]], str],
        if_no_voter: Callable[[Sequence[bytes]], str],
    ) -> QuorumLog:
        path, state_path = f"{directory}/metadata.log", f"{directory}/{STATE_FILE}"
        disk.make_dir(directory)
        state = load_state(disk, state_path)
        new = not disk.exists(path)
        if new and state is not None and state.term > 0:
            raise restore_error(path, f"is missing, yet {STATE_FILE} has term {state.term}")
        # Before the log: a log without it is taken for damage.
        if new and create and not bytes_min and state is None:
            disk.write_file_atomic(state_path, pack_state(_NEW))
            state = _NEW

        def judge(items: Sequence[bytes]) -> None:
            history = unpack_history(path, items)
            voters = _check(path, state_path, key, state, history, create=create)
            if key not in voters and (why := if_no_voter(_records_of(path, items))):
                raise restore_error(path, f"is not of this data directory: {why}")

        file = MetadataLog.open(
            disk,
            directory,
            create=create,
            bytes_min=bytes_min,
            before_cut=lambda items: before_cut(_records_of(path, items)),
            first=pack_frame([pack_snapshot(first)]),
            judge=judge,
        )
        # A vote must not be lost with its file's name.
        file.flush_name()
        for suffix in (INSTALL_SUFFIX, ".new"):
            if disk.exists(path + suffix):
                with contextlib.suppress(OSError):
                    disk.remove(path + suffix)
        assert state is not None, "the files were checked"
        return cls(key, file, state_path, state, unpack_history(path, list(file.records())))

    # --- what a Raft reads -----------------------------------------------------------------------
    @property
    def first_index(self) -> int:
        return self._entries[0].index if self._entries else self.snapshot.index + 1

    @property
    def last_index(self) -> int:
        return self._entries[-1].index if self._entries else self.snapshot.index

    def term(self, index: int) -> int:
        assert self.first_index <= index <= self.last_index
        return self._entries[index - self.first_index].term

    def entries(self, first: int, bytes_max: int) -> Sequence[Entry]:
        assert first >= self.first_index
        found: list[Entry] = []
        size = 0
        for place in range(first - self.first_index, len(self._entries)):
            entry = self._entries[place]
            size += entry.size_bytes
            # One entry at least, however large, or a follower would be stuck.
            if found and size > bytes_max:
                break
            found.append(entry)
        return found

    # --- looking -------------------------------------------------------------------------------
    @property
    def size_bytes(self) -> int:
        return self._file.size_bytes

    @property
    def fault(self) -> str:
        return self._file.fault

    @property
    def wants_compaction(self) -> bool:
        return self._file.wants_compaction

    def check_usable(self) -> None:
        self._file.check_usable()

    def take_records(self) -> bytes:
        """Return the records of the snapshot at opening, once."""
        records, self._records = self._records, b""
        return records

    # --- writing -------------------------------------------------------------------------------
    def begin_write(self, write: Write) -> WriteJob:
        self.check_usable()
        append = None
        if write.entries:
            assert self.first_index <= write.entries[0].index <= self.last_index + 1
            last = write.entries[-1]
            assert last.index == write.entries[0].index + len(write.entries) - 1
            assert last.term <= (write.hard_state or self.hard_state).term
            append = self._file.begin_append([pack_entry(entry) for entry in write.entries])
        return WriteJob(self._plate, write, append)

    def complete_write(self, job: WriteJob, written: Written) -> None:
        write = job.write
        assert written.restored is None or write.chunk is not None
        assert written.restored is None or job.append is None
        if write.hard_state is not None:
            self.hard_state = write.hard_state
        if job.append is not None:
            self._file.complete_append(job.append, written.size)
            # Entries of a later term replace these (Raft, 5.3).
            del self._entries[write.entries[0].index - self.first_index :]
            self._entries.extend(write.entries)
        if written.restored is not None:
            self.snapshot = written.restored.meta
            self._entries.clear()
            self._file.replaced(written.size)
        assert self.first_index <= self.snapshot.index + 1, "no gap after the snapshot"

    def fail_write(self, job: WriteJob, error: BaseException) -> bool:
        """Record the job's `error`; return whether the log is out of service now.

        False: at most the hard state has changed, and the whole write may be tried again.
        """
        # It is durable, whatever became of the rest: a vote must not be given twice.
        if job.state_written and job.write.hard_state is not None:
            self.hard_state = job.write.hard_state
        if is_passing(error) or job.harmless:
            return False
        self._file.put_out_of_service(error)
        return True

    # --- snapshots -----------------------------------------------------------------------------
    def begin_snapshot(
        self, meta: SnapshotMeta, make_records: Callable[[], bytes], *, kept: int
    ) -> SnapshotJob:
        """Return a job that makes a snapshot of the state machine, as of `meta`, the log's
        beginning.

        Writes may begin meanwhile. `kept`: number of covered entries to keep, for slow followers.
        """
        assert self.snapshot.index <= meta.index <= self.last_index
        first_index = max(self.first_index, meta.index + 1 - kept)
        rest = [pack_entry(e) for e in self._entries[first_index - self.first_index :]]
        assert len(rest) == self.last_index + 1 - first_index
        return SnapshotJob(
            self._plate,
            meta,
            first_index,
            lambda make_items: self._file.begin_compact(make_items, rest),
            make_records,
        )

    def complete_snapshot(self, job: SnapshotJob, size: int) -> None:
        self._file.complete_compact(job.compact, size)
        if job.meta.index > self.snapshot.index:
            del self._entries[: job.first_index - self.first_index]
            self.snapshot = job.meta
        assert self.first_index <= self.snapshot.index + 1
        assert self.snapshot.index <= self.last_index

    def fail_snapshot(self, job: SnapshotJob, error: BaseException) -> bool:
        return self._file.fail_compact(job.compact, error)

    def begin_read(self, read: SnapshotRead) -> ReadChunkJob:
        return ReadChunkJob(self._plate, read)

    def close(self) -> None:
        self._file.close()


def _check(
    path: str,
    state_path: str,
    key: ReplicaKey,
    state: HardState | None,
    history: History,
    *,
    create: bool,
) -> Collection[ReplicaKey]:
    snapshot, entries = history
    last_term = entries[-1].term if entries else snapshot.meta.term
    if not create and not entries and not snapshot.meta.index:
        raise restore_error(path, "holds no entry, yet there are partitions")
    if state is None:
        raise restore_error(state_path, "is missing, yet there is a log")
    if state.term < last_term:
        raise restore_error(state_path, f"has term {state.term}, the log {last_term}")
    sets = (unpack_voters(e.data) for e in reversed(entries) if e.kind is EntryKind.VOTERS)
    voters = next(sets, snapshot.meta.voters)
    if len(voters) == 1 and key not in voters and next(iter(voters)).node_id == key.node_id:
        # No other broker can have sent this log: two files of three show which is foreign.
        (other,) = voters
        if state.vote == key:
            whose = f"directory {other.directory_id!r}, {STATE_FILE} and node.json of"
            raise restore_error(path, f"is of {whose} {key.directory_id!r}")
        node_file = f"{path.rsplit('/', 2)[0]}/node.json"
        raise restore_error(
            node_file, f"has another directory id than {other.directory_id!r} in {path}"
        )
    return voters


def _records_of(path: str, items: Sequence[bytes]) -> list[bytes]:
    if not items:
        return []
    snapshot, entries = unpack_history(path, items)
    # Entries that the snapshot covers may be kept before others.
    behind = [entry for entry in entries if entry.index > snapshot.meta.index]
    assert not behind or behind[0].index == snapshot.meta.index + 1, "no gap behind the snapshot"
    records = [entry.data for entry in behind if entry.kind is EntryKind.DATA]
    return [snapshot.records, *records] if snapshot.records else records
