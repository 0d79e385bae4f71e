"""What must hold in a cluster after every event, seen from outside of all nodes.

Owns what was seen of each node, and these rules:

1. one leader: no two brokers lead a partition under the same leader epoch.
2. high watermark: of a leader under one epoch it never falls, in one life of a process.
3. in sync: they are replicas, the leader is one of them, and no eligible one is also in sync.
4. committed: what lies below any high watermark is the same bytes on every replica, and a new
   leader has all of it. A broker that was paused through its own term learns of its election when
   another one has led for long: it has what was committed before that one began, and commits
   nothing.
5. image: nodes at one metadata version have the same image.
6. quorum: one leader in a term.

`counted` checks what the metadata record of replicas. The list of leader epochs of a copy names the
epoch in each batch, and a leader has its own epoch in it (part of 4: by this list logs are cut).

Committed batches are compared once for each copy and life: what came since the last look is walked
over, by the files' bytes. The fault's owner reports when it had the right to take rows (`forgive`).
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field

from quiverlog.batch.header import BatchHeader
from quiverlog.core.controller.records import encode_entry
from quiverlog.core.raft.election import Role
from quiverlog.node.partitions.replica import Replica
from quiverlog.storage.segment.segment_files import SEGMENT_HEADER_BYTES
from quiverlog.types import NO_EPOCH
from tests.sim.checker import Key, Violation

from .counted import Counted
from .host import ClusterHost

__all__ = ["Committed", "Invariants"]


@dataclass(slots=True, eq=False)
class Committed:
    """The batches of one partition that readers may have seen: base offset -> (next, checksum)."""

    batches: dict[int, tuple[int, int]] = field(default_factory=dict)
    end: int = 0
    lossy: int = 0
    """How often a fault had the right to take rows."""
    is_ragged: bool = False
    """Copies may show rows that are cut later: before the end only leaders' are compared."""
    from_epoch: int = -1
    """Leaders of earlier epochs may not have learned yet of later ones that lack their rows."""
    begun: dict[int, int] = field(default_factory=dict)
    """Leader epoch -> what was committed when the first broker began to lead under it."""


@dataclass(slots=True, eq=False)
class _Copy:
    """One replica in one life of its process: how far it was compared."""

    life: int
    offset: int = 0
    path: str = ""
    at: int = 0
    leader_epoch: int = -1
    high_watermark: int = 0
    forgiven: int = 0


class Invariants:
    def __init__(self) -> None:
        self.partitions: dict[Key, Committed] = {}
        self.leaders: dict[tuple[Key, int], int] = {}
        self.terms: dict[int, int] = {}
        self.elections = 0
        self.on_elected: Callable[[ClusterHost], None] = lambda host: None
        self.versions_us: dict[int, int] = {}
        """When any node knew a version of the metadata for the first time."""
        self.counted = Counted()
        self.counted.is_lossy = lambda key: (
            key in self.partitions and self.partitions[key].is_ragged
        )
        self.compared = 0
        """Batches of all copies that were compared."""
        self._copies: dict[tuple[int, Key], _Copy] = {}
        self._images: dict[int, bytes] = {}
        self._versions: dict[int, tuple[int, int]] = {}
        self._lossy = 0
        self._settled: dict[int, tuple[int, dict[Replica, tuple[object, ...]]]] = {}
        """Of each node's life: what of each replica was looked at last, so that a look costs what
        has moved."""

    # --- what faults report --------------------------------------------------------------------
    def committed_end(self, key: Key) -> int:
        """Up to where any node has rows as committed."""
        return self.partitions[key].end if key in self.partitions else 0

    def forgive(self, key: Key, kept: int, *, from_epoch: int | None = None) -> None:
        """A fault took rows: those from `kept` on may be gone, and others take their places.

        With `from_epoch` not all machines lost their power: leaders of this epoch and later ones
        have lost the rows, and others may go on showing them for a while.
        """
        found = self.partitions.setdefault(key, Committed())
        found.batches = {base: one for base, one in found.batches.items() if one[0] <= kept}
        found.end = max((after for after, _ in found.batches.values()), default=0)
        found.begun = {epoch: min(end, found.end) for epoch, end in found.begun.items()}
        found.lossy += 1
        if from_epoch is not None:
            found.is_ragged = True
            found.from_epoch = max(found.from_epoch, from_epoch)
        self._lossy += 1

    def look_at_all(self, host: ClusterHost) -> None:
        """At the end, when no leader shows rows that are to be cut: copies are compared anew."""
        for known in self.partitions.values():
            if known.is_ragged:
                known.is_ragged = False
                known.lossy += 1
                self._lossy += 1
        self.look(host)

    # --- looking -------------------------------------------------------------------------------
    def look(self, host: ClusterHost) -> None:
        """Code of this node has run."""
        node = host.node
        assert node is not None
        broker = node.broker
        if broker.quorum.log is None:
            return
        self._look_at_quorum(host)
        self._look_at_image(host)
        if host.node_id in self.counted.fenced:
            self.counted.look_at_fenced(host)
        life, settled = self._settled.get(host.node_id, (0, {}))
        if life != host.life:
            settled = {}
            self._settled[host.node_id] = (host.life, settled)
        for replica in broker.assignment.all_open():
            state = replica.state
            now = (
                state.high_watermark, state.leadership, state.leader_epoch, replica.cutting,
                self._lossy,
            )  # fmt: skip
            before = settled.get(replica)
            if before != now and not replica.deleted:
                was_cut = before is not None and before[3] and not replica.cutting
                if was_cut:
                    self.counted.look_at_producers(replica)
                if was_cut or before is None:
                    key = (replica.topic.topic_id, replica.name.partition)
                    self.counted.look_at_rows(key, self.committed_end(key))
                self._look_at_replica(host, replica)
                settled[replica] = now

    def _look_at_quorum(self, host: ClusterHost) -> None:
        assert host.node is not None
        raft = host.node.broker.quorum.raft
        if raft.role is Role.LEADER:
            self.check_term(raft.term, host.node_id)

    def check_term(self, term: int, node_id: int) -> None:
        """Rule 6."""
        known = self.terms.setdefault(term, node_id)
        if known != node_id:
            raise Violation(f"nodes {known} and {node_id} lead the quorum in {term}")

    def _look_at_image(self, host: ClusterHost) -> None:
        assert host.node is not None
        image = host.node.broker.metadata.image
        seen = (host.life, image.version)
        if self._versions.get(host.node_id) == seen:
            return
        self._versions[host.node_id] = seen
        self.versions_us.setdefault(image.version, host.real_world.mono_us)
        records = [encode_entry([record]) for record in image.snapshot_records()]
        digest = hashlib.blake2b(b"".join(sorted(records)), digest_size=12).digest()
        self.check_image(host.name, image.version, digest)
        for topic in image.topics.values():
            for one in topic.partitions:
                self.check_in_sync(
                    f"{topic.name}-{one.partition}",
                    one.replicas,
                    one.in_sync_replicas,
                    getattr(one, "eligible_leader_replicas", ()),
                    one.leader_id,
                )
        self.counted.look_at_image(image, host.real_world.mono_us, self.committed_end)

    def check_image(self, name: str, version: int, digest: bytes) -> None:
        """Rule 5."""
        if self._images.setdefault(version, digest) != digest:
            raise Violation(f"{name} has other metadata at version {version}")

    @staticmethod
    def check_in_sync(
        name: str,
        replicas: tuple[int, ...],
        in_sync: tuple[int, ...],
        eligible: tuple[int, ...],
        leader_id: int,
    ) -> None:
        """Rule 3, of the metadata of one partition."""
        if not set(in_sync) <= set(replicas) or not set(eligible) <= set(replicas):
            raise Violation(f"{name}: in sync {in_sync}, eligible {eligible}, of {replicas}")
        if set(in_sync) & set(eligible):
            raise Violation(f"{name}: eligible {eligible} are in sync {in_sync}")
        if leader_id >= 0 and leader_id not in in_sync:
            raise Violation(f"{name}: {leader_id} leads, in sync are {in_sync}")

    # --- replicas ------------------------------------------------------------------------------
    def _look_at_replica(self, host: ClusterHost, replica: Replica) -> None:
        key = (replica.topic.topic_id, replica.name.partition)
        state = replica.state
        known = self.partitions.setdefault(key, Committed())
        copy = self._copies.get((host.node_id, key))
        if copy is None or copy.life != host.life or copy.forgiven != known.lossy:
            copy = self._copies[host.node_id, key] = _Copy(host.life, forgiven=known.lossy)
        if replica.cutting:
            copy.path, copy.offset = "", 0
            return
        if known.is_ragged and (not state.leads or state.leader_epoch < known.from_epoch):
            return
        if state.leads:
            self._look_at_leader(host, replica, key, copy)
        copy.leader_epoch = state.leader_epoch if state.leads else -1
        copy.high_watermark = state.high_watermark
        if state.high_watermark < copy.offset:
            copy.path, copy.offset = "", 0
        if state.high_watermark > copy.offset:
            self.compare(host, replica, copy, state.high_watermark)

    def _look_at_leader(self, host: ClusterHost, replica: Replica, key: Key, copy: _Copy) -> None:
        state = replica.state
        epoch = state.leader_epoch
        if copy.leader_epoch == epoch:
            self.check_monotonic(str(replica.name), copy.high_watermark, state.high_watermark)
            return
        self.check_one_leader(key, epoch, host.node_id)
        self.elections += 1
        self.on_elected(host)
        self.check_epoch(f"{replica.name} leads", replica.log.epochs.latest()[0], epoch)
        # Whatever any leader showed before must be in the log of the present one.
        committed_end = self.begins(key, epoch)
        self.check_complete(str(replica.name), replica.log.log_end_offset, committed_end)
        copy.path, copy.offset = "", 0
        self.compare(host, replica, copy, committed_end)

    def begins(self, key: Key, epoch: int) -> int:
        """A broker leads under this epoch. Returns up to where it has the committed rows."""
        known = self.partitions.setdefault(key, Committed())
        known.begun.setdefault(epoch, known.end)
        later = [end for other, end in known.begun.items() if other > epoch]
        return min([known.end, *later])

    def check_one_leader(self, key: Key, epoch: int, node_id: int) -> None:
        """Rule 1."""
        before = self.leaders.setdefault((key, epoch), node_id)
        if before != node_id:
            raise Violation(f"nodes {before} and {node_id} lead {key[1]} under epoch {epoch}")

    @staticmethod
    def check_monotonic(name: str, before: int, after: int) -> None:
        """Rule 2."""
        if after < before:
            raise Violation(f"{name}: the high watermark fell from {before} to {after}")

    @staticmethod
    def check_complete(name: str, log_end_offset: int, committed_end: int) -> None:
        """Rule 4, of a new leader."""
        if log_end_offset < committed_end:
            raise Violation(
                f"{name}: the leader has rows up to {log_end_offset}, committed was {committed_end}"
            )

    @staticmethod
    def check_epoch(name: str, listed: int, epoch: int) -> None:
        """Rule 4, of the list by which logs are cut; what was before its first entry is unknown."""
        if listed not in (NO_EPOCH, epoch):
            raise Violation(f"{name}: the list has epoch {listed}, it is {epoch}")

    # --- bytes ---------------------------------------------------------------------------------
    def compare(self, host: ClusterHost, replica: Replica, copy: _Copy, limit: int) -> None:
        """Rule 4: all batches of a copy below `limit` that were not compared yet.

        Not on a disk on which bits were flipped: what brokers give of it is looked at (`scrub`).
        """
        key = (replica.topic.topic_id, replica.name.partition)
        if host.is_rotten:
            known = self.partitions.setdefault(key, Committed())
            known.end = max(known.end, limit)
            return
        start = replica.log.log_start_offset
        copy.offset = max(copy.offset, start)
        while copy.offset < limit:
            found = self._batch(host, replica, copy)
            if found is None:
                raise Violation(
                    f"{replica.name} on {host.name}: no batch at {copy.offset}, below {limit}"
                )
            header, checksum = found
            if header.next_offset > limit:
                copy.at -= header.total_bytes  # A log start inside of it may be all that is shown.
                break
            self.committed(
                key, f"{replica.name} on {host.name}", header.base_offset, header.next_offset,
                checksum,
            )  # fmt: skip
            listed = replica.log.epochs.epoch_for(header.base_offset)
            self.check_epoch(
                f"{replica.name} on {host.name} at {header.base_offset}",
                listed,
                header.leader_epoch,
            )
            copy.offset = header.next_offset
            self.compared += 1

    def committed(self, key: Key, where: str, base: int, after: int, checksum: int) -> None:
        """A batch that readers of this copy may see."""
        known = self.partitions.setdefault(key, Committed())
        if known.batches.setdefault(base, (after, checksum)) != (after, checksum):
            raise Violation(f"{where}: other bytes at {base} than were committed")
        if after > known.end:
            known.end = after
            self.counted.look_at_rows(key, after)

    def _batch(
        self, host: ClusterHost, replica: Replica, copy: _Copy
    ) -> tuple[BatchHeader, int] | None:
        """The batch of the copy's files that holds `copy.offset`, and move behind it."""
        disk, log = host.disk, replica.log
        while True:
            if not copy.path or not disk.exists(copy.path):
                bases = [s.base_offset for s in log.reader.segments if s.base_offset <= copy.offset]
                if not bases:
                    return None
                copy.path, copy.at = f"{log.directory}/{bases[-1]:020d}.log", SEGMENT_HEADER_BYTES
            data = disk.inode(copy.path).data
            if copy.at >= len(data):
                # The log start may have moved on, into the middle of a later file.
                bases = [s.base_offset for s in log.reader.segments if s.base_offset <= copy.offset]
                path = f"{log.directory}/{max(bases, default=0):020d}.log"
                if not bases or path == copy.path:
                    copy.path = ""
                    return None
                copy.path, copy.at = path, SEGMENT_HEADER_BYTES
                continue
            header = BatchHeader.unpack(data, copy.at)
            begins, copy.at = copy.at, copy.at + header.total_bytes
            if header.next_offset > copy.offset:
                return header, zlib.crc32(memoryview(data)[begins : copy.at])
