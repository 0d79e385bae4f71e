"""Finds a replica for a request, or the error that sends the client elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from copy import copy
from typing import Final

from quiverlog.core.security.acls import NO_RULE
from quiverlog.errors import (
    CorruptLog,
    NotLeader,
    QuiverlogError,
    ReplicaNotAvailable,
    StorageFault,
    ThrottledBroker,
    UnknownPartition,
)
from quiverlog.node.assignment.assignment import Assignment
from quiverlog.node.controller.leader_lease import LeaderLease
from quiverlog.node.metadata.metadata import Metadata
from quiverlog.node.partitions.cold_reads import cold_read
from quiverlog.node.partitions.replica import Replica
from quiverlog.node.replication.replica_fetcher import Replication
from quiverlog.node.runtime.config import NodeConfig
from quiverlog.node.runtime.jobs import Jobs, Starter
from quiverlog.node.runtime.metrics import NodeMetrics
from quiverlog.node.runtime.outbox import Outbox
from quiverlog.node.runtime.purgatory import Waiter
from quiverlog.node.security.audit import Audit
from quiverlog.node.security.authoriser import Guard, no_topic_id
from quiverlog.storage.disk.disk import is_unreadable_file
from quiverlog.storage.segment.reading_jobs import NotResident
from quiverlog.types import Operation
from quiverlog.wire.apis import Api

__all__ = ["RULES_CHANGED", "Lookup"]

RULES_CHANGED: Final = -2
"""In place of an entry's index: all of them."""


class Lookup:
    __slots__ = (
        "_assignment",
        "_audit",
        "_guard",
        "_jobs",
        "_leader_lease",
        "_metadata",
        "_metrics",
        "_node_id",
        "_on_damage",
        "_outbox",
        "_replicas",
        "_replication",
        "fetch_bytes_default",
    )

    def __init__(
        self,
        assignment: Assignment,
        replication: Replication,
        metadata: Metadata,
        jobs: Jobs,
        outbox: Outbox,
        metrics: NodeMetrics,
        config: NodeConfig,
        on_damage: Callable[[Replica, str], None],
        leader_lease: LeaderLease,
        audit: Audit,
    ) -> None:
        self._audit = audit
        self._guard: Guard | None = None
        self._leader_lease = leader_lease
        self._on_damage = on_damage
        self._assignment = assignment
        self._replicas = assignment.replicas
        self._replication = replication
        self._metadata = metadata
        self._jobs = jobs
        self._outbox = outbox
        self._metrics = metrics
        self._node_id = config.node_id
        self.fetch_bytes_default = config.fetch_bytes_default

    def guarded(self, guard: Guard | None) -> Lookup:
        """Return the look-up of one client, which has no other way to a partition."""
        assert self._guard is None, "a client's look-up stays its own"
        if guard is None:
            return self
        found = guard.lookup
        if found is None:
            found = guard.lookup = copy(self)
            found._guard = guard
            guard.leading = found.leading
        assert isinstance(found, Lookup)
        return found

    # --- partitions ----------------------------------------------------------------------------
    def leading(self, topic_id: bytes, partition: int) -> Replica:
        """Return the partition for what only its leader may do (the table in leader_lease.py).

        Raises:
            NotLeader: another broker leads it, or may by now.
            Other errors: as `replica`.
        """
        if self._guard is not None:
            self._guard.check(topic_id)
        replica = self._replicas.get((topic_id, partition))
        if replica is None:
            raise self._why_not(topic_id, partition, from_follower=False)
        if self._leader_lease.is_over:
            self._leader_lease.check(replica)
        return replica

    def check_end(self, replica: Replica) -> None:
        """Raise NotLeader if another leader may have served rows behind the end here."""
        self._leader_lease.check_end(replica)

    def leader_for_offsets(self, topic_id: bytes, partition: int) -> Replica:
        """Return the partition for an answer about ends: `leading` and `check_end`."""
        replica = self.leading(topic_id, partition)
        self.check_end(replica)
        assert replica.state.leads
        return replica

    def unreadable_here(self, replica: Replica | None, error: QuiverlogError) -> QuiverlogError:
        # CORRUPT_LOG ends readers and makes operators give rows up: only if no replica has them.
        if not isinstance(error, CorruptLog | StorageFault) or replica is None:
            return error
        if not replica.state.leads and isinstance(error, CorruptLog):
            # The leader has these rows.
            return ReplicaNotAvailable(f"{replica.name}: rows of the copy are damaged.")
        if self._leader_lease.hands_over(replica):
            return NotLeader(f"{replica.name}: rows are damaged here, another broker is to lead.")
        return error

    def replica(self, topic_id: bytes, partition: int, *, from_follower: bool = False) -> Replica:
        """Return the partition if it is led here and open, or with `from_follower` a readable copy.

        Raises:
            UnknownTopicId, UnknownPartition, NotLeader
            NotAuthorized: the client of a guarded look-up may describe the topic, and no more.
            CorruptLog, StorageFault, DiskFull: it is offline.
            ThrottledBroker: it is being opened.
            ReplicaNotAvailable: the copy here cannot be read now.
        """
        if self._guard is not None:
            self._guard.check(topic_id)
        replica = self._replicas.get((topic_id, partition))
        if replica is None and from_follower:
            replica = self._copy(topic_id, partition)
        if replica is None:
            raise self._why_not(topic_id, partition, from_follower)
        return replica

    def find_leader(self, topic_id: bytes, partition: int) -> Replica | None:
        if self._guard is not None and not self._guard.allows(topic_id):
            return None
        return self._replicas.get((topic_id, partition))

    def read(self, topic_id: bytes, partition: int, *, from_follower: bool) -> Replica | None:
        """As `replica`, with None in place of an error."""
        if self._guard is not None and not self._guard.allows(topic_id):
            return None
        replica = self._replicas.get((topic_id, partition))
        if replica is None and from_follower:
            return self._copy(topic_id, partition)
        return replica

    def _copy(self, topic_id: bytes, partition: int) -> Replica | None:
        replica = self._replication.shown((topic_id, partition))
        topic = self._metadata.image.topics_by_id.get(topic_id)
        if replica is None or topic is None:
            return None
        assert (topic_id, partition) not in self._replicas, "led or followed"
        # A copy is read while it is in sync (docs/adr/0036).
        in_sync = topic.partitions[partition].in_sync_replicas
        return replica if self._node_id in in_sync else None

    def _why_not(self, topic_id: bytes, partition: int, from_follower: bool) -> QuiverlogError:
        topic = self._metadata.image.topics_by_id.get(topic_id)
        if topic is None:
            return no_topic_id(topic_id)
        name = f"{topic.name}-{partition}"
        if not 0 <= partition < len(topic.partitions):
            return UnknownPartition(
                f"topic {topic.name!r} has partitions 0 to {len(topic.partitions) - 1},"
                f" not {partition}."
            )
        if from_follower and self._node_id in topic.partitions[partition].replicas:
            return ReplicaNotAvailable(f"the copy of {name} here cannot be read now.")
        image = topic.partitions[partition]
        assert image.partition == partition, "partitions lie in the order of their numbers"
        leader_id = image.leader_id
        if leader_id >= 0 and leader_id != self._node_id:
            # The client goes there, whatever is wrong with the copy here.
            return NotLeader(f"{name} is led by broker {leader_id}.")
        offline = self._assignment.offline.get((topic_id, partition))
        # Without a leader, other brokers may have the rows that are missing here.
        if offline is not None and (leader_id >= 0 or image.replicas == (self._node_id,)):
            return type(offline.error)(offline.error.message)
        if leader_id < 0:
            return NotLeader(f"{name} has no leader now.")
        return ThrottledBroker(f"{name} is being opened.")

    def cold_read(self, replica: Replica, cold: NotResident) -> Starter:
        return cold_read(self._jobs, replica, cold, self.unreadable)

    def audit_reads(self, connection_id: int, names: Iterable[str]) -> None:
        """Record the topics of rows that a client of this look-up gets."""
        if self._audit.has_topics:
            rights = None if self._guard is None else self._guard.rights
            for name in dict.fromkeys(names):
                rule = NO_RULE if rights is None else rights.rule_for(Operation.READ, name)
                self._audit.allowed(connection_id, Api.FETCH, Operation.READ, name, rule)

    def count_local_read(self, byte_count: int) -> None:
        self._metrics.local_read_bytes += byte_count

    def corrupt_read(self, replica: Replica | None, error: CorruptLog) -> None:
        self._metrics.corrupt_reads += 1
        if replica is not None and replica.found_corrupt():
            self._outbox.log("error", "corrupt log", partition=str(replica.name), why=error.message)
            self._on_damage(replica, error.message)

    def unreadable(self, replica: Replica, error: BaseException) -> None:
        if is_unreadable_file(error):
            self._on_damage(replica, f"a file cannot be read: {error}")

    def internal_error(self, where: str, error: BaseException) -> None:
        self._outbox.internal_error(where, error)

    # --- waiting for a change ------------------------------------------------------------------
    @property
    def metadata_version(self) -> int:
        return self._metadata.image.version

    @property
    def rules_seen(self) -> int:
        """Another number: the client's rights may have changed. 0: all is allowed."""
        return 0 if self._guard is None else self._guard.rights.changes

    def watch_rules(self, waiter: Waiter) -> None:
        """Wake a waiter with the index RULES_CHANGED."""
        if self._guard is not None:
            self._guard.rights.watched.watch(waiter, RULES_CHANGED)

    def unwatch_rules(self, waiter: Waiter) -> None:
        if self._guard is not None:
            self._guard.rights.watched.unwatch(waiter)

    def watch_metadata(self, waiter: Waiter) -> None:
        """Wake a waiter with the index -1 when the version changes."""
        self._metadata.watch(waiter, -1)

    def unwatch(self, waiter: Waiter, topic_id: bytes, partition: int) -> None:
        replica = self._assignment.find((topic_id, partition))
        if replica is not None:
            replica.unwatch(waiter)

    def unwatch_metadata(self, waiter: Waiter) -> None:
        self._metadata.unwatch(waiter)
