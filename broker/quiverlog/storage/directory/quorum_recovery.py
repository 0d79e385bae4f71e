"""The quorum of a stopped data directory: its voters, and making its own node the only voter.

One entry is appended to the metadata log, in a new term, that names the directory's own node as the
only voter.

Invariants:
- `quorum-state` gets the new term, then the log the entry, which is one frame: a crash leaves the
  log with it or without it, and a crash before it a term without a leader. Besides, only unfinished
  temporary files go; the mark of a clean stop stays.
- The directory is locked: no broker runs on it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from quiverlog.addresses import Address
from quiverlog.core.controller.records import BrokerRecord, decode_entry
from quiverlog.core.raft.log import LogView
from quiverlog.core.raft.membership import Membership, pack_voters
from quiverlog.core.raft.messages import Entry, EntryKind, HardState, ReplicaKey, Voters
from quiverlog.core.raft.outbox import Write
from quiverlog.errors import ForeignDataDirectory
from quiverlog.storage.directory.data_directory import typed_errors
from quiverlog.storage.directory.node_file import NodeFile, read_node
from quiverlog.storage.disk.disk import Disk
from quiverlog.storage.metadata.quorum_log import QuorumLog

__all__ = ["StoppedQuorum"]

_ALL_BYTES = 1 << 62


_GIVE: Final = ": give the directory of a broker that voted and is left."


class StoppedQuorum:
    def __init__(self, disk: Disk, path: str) -> None:
        if not disk.exists(f"{path}/node.json"):
            raise ForeignDataDirectory(f"{path} is no data directory of a broker{_GIVE}")
        if not disk.exists(f"{path}/metadata"):
            raise ForeignDataDirectory(f"{path} has no folder metadata, and so no quorum{_GIVE}")
        with typed_errors(path):
            self._lock = disk.lock(path, guarded=("data", "metadata"))
        try:
            self.node: NodeFile = read_node(disk, path)
            self.key = ReplicaKey(self.node.node_id, self.node.directory_id)
            self._log = QuorumLog.open(
                disk,
                f"{path}/metadata",
                self.key,
                create=False,
                founds=False,
                before_cut=lambda _entries: (
                    "and this command cuts nothing: start the broker on it"
                    " once, stop it, and try again"
                ),
            )
            self._addresses = self._registered()
            self.voters: Voters = dict(Membership(LogView(self._log)).voters)
            if not self.voters:
                raise ForeignDataDirectory(
                    f"{path} has never been given the metadata of a quorum{_GIVE}"
                )
        except BaseException:
            self._lock.release()
            raise

    @property
    def term(self) -> int:
        return self._log.hard_state.term

    @property
    def last_index(self) -> int:
        return self._log.last_index

    @property
    def is_only_voter(self) -> bool:
        return set(self.voters) == {self.key}

    def others(self) -> dict[int, list[str]]:
        found: dict[int, list[str]] = {}
        for voter, endpoint in self.voters.items():
            if voter.node_id != self.key.node_id:
                known = [endpoint, *self._addresses.get(voter.node_id, ())]
                found[voter.node_id] = [one for one in dict.fromkeys(known) if one]
        assert self.key.node_id not in found
        return found

    def recover(self) -> None:
        assert not self.is_only_voter, "nothing is written for nothing"
        term = self.term + 1
        data = pack_voters({self.key: self.voters.get(self.key, "")})
        entry = Entry(self.last_index + 1, term, EntryKind.VOTERS, data)
        job = self._log.begin_write(Write(1, HardState(term, None), (entry,), None))
        self._log.complete_write(job, job.run())
        self.voters = {self.key: self.voters.get(self.key, "")}
        assert set(self.voters) == {self.key}
        assert self.last_index == entry.index
        assert self.term == term

    def close(self) -> None:
        self._log.close()
        self._lock.release()

    def _registered(self) -> Mapping[int, list[str]]:
        found: dict[int, list[str]] = {}
        for records in self._decided():
            for record in decode_entry(records):
                if isinstance(record, BrokerRecord):
                    where = [str(Address(host, port)) for _, host, port in record.listeners]
                    found[record.node_id] = [*where, str(Address(record.host, record.port))]
        return found

    def _decided(self) -> Iterator[bytes]:
        if snapshot := self._log.take_records():
            yield snapshot
        for entry in self._log.entries(self._log.first_index, _ALL_BYTES):
            if entry.kind is EntryKind.DATA:
                yield entry.data
