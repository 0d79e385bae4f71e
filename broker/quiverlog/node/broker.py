"""The parts of one broker, wired together.

Each part owns its state, and uses only what it is given here; `Broker` owns none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from functools import partial
from operator import attrgetter
from typing import Any, Final, NamedTuple

from quiverlog.core.controller.features import cluster_number
from quiverlog.core.controller.records import (
    BrokerChangeRecord,
    BrokerRecord,
    PartitionChangeRecord,
    PartitionRecord,
    ProducerEpochRecord,
    ProducerIdBlockRecord,
    Record,
    RemoveRuleRecord,
    RuleNumberRecord,
    RuleRecord,
    TopicRecord,
    UnregisterBrokerRecord,
    changed_by,
)
from quiverlog.errors import QuiverlogError
from quiverlog.node.assignment.assignment import Assignment
from quiverlog.node.assignment.lookup import Lookup
from quiverlog.node.assignment.retention import Retention
from quiverlog.node.controller.controller_link import ControllerLink
from quiverlog.node.controller.elections import Elections, FullDisks, InternalRaises
from quiverlog.node.controller.in_sync_decisions import InSyncDecisions
from quiverlog.node.controller.leader_lease import LeaderLease
from quiverlog.node.controller.membership import Membership
from quiverlog.node.controller.not_controller import refusal
from quiverlog.node.controller.registration import Registered
from quiverlog.node.groups.coordinators import GroupCoordinators
from quiverlog.node.live_config import LiveConfig
from quiverlog.node.metadata.creation_note import CreationNote
from quiverlog.node.metadata.metadata import Metadata
from quiverlog.node.metadata.producer_ids import ProducerIds
from quiverlog.node.metadata.quorum import Dice, Quorum, sender
from quiverlog.node.metadata.quorum_wire import QuorumInbox
from quiverlog.node.partitions.appends import Appends
from quiverlog.node.partitions.directories import CreateDirectoriesJob, Removal
from quiverlog.node.partitions.flushing import Flushes
from quiverlog.node.partitions.produce_checks import HeldProduces
from quiverlog.node.partitions.replica import Replica
from quiverlog.node.partitions.trimming import Trims
from quiverlog.node.replication.fetch_sessions import CopySessions
from quiverlog.node.replication.in_sync import InSyncChanges
from quiverlog.node.replication.log_starts import CopiedStarts, FollowedStarts
from quiverlog.node.replication.move_quota import MoveQuota
from quiverlog.node.replication.offline_replicas import OfflineReplicas
from quiverlog.node.replication.repairs import Repairs
from quiverlog.node.replication.replica_fetcher import Replication
from quiverlog.node.runtime.admission import Admission, Phase
from quiverlog.node.runtime.clients import Clients
from quiverlog.node.runtime.clock import Clock
from quiverlog.node.runtime.config import NodeConfig
from quiverlog.node.runtime.jobs import Jobs, Then
from quiverlog.node.runtime.metadata_view import MetadataView
from quiverlog.node.runtime.metrics import NodeMetrics
from quiverlog.node.runtime.outbox import Outbox
from quiverlog.node.runtime.peers import BrokerAddresses, Peers
from quiverlog.node.runtime.proofs import PeerProofs
from quiverlog.node.runtime.purgatory import Purgatory, Waits, Wakeups, Watched
from quiverlog.node.runtime.tasks import Tasks, TopicOrder
from quiverlog.node.security.audit import Audit
from quiverlog.node.security.authoriser import Authoriser
from quiverlog.node.security.logins import Logins
from quiverlog.node.security.quotas import Quotas
from quiverlog.node.transactions.coordinators import Coordinators
from quiverlog.node.transactions.forwarded import Targets
from quiverlog.node.transactions.forwarding import Forwarding
from quiverlog.node.transactions.hosted import Hosting
from quiverlog.node.transactions.leaders import Leaders
from quiverlog.node.transactions.resolving import Reaper
from quiverlog.node.transactions.staging import Staging
from quiverlog.storage.directory.data_directory import DataDirectory
from quiverlog.storage.disk.disk import Disk
from quiverlog.types import Now, TopicPartition
from quiverlog.wire import messages as m

__all__ = ["Broker", "Copying", "Ending", "Timed", "make_copying"]


def make_copying(broker: Broker) -> Copying:
    offline_replicas = OfflineReplicas(
        broker.config.node_id,
        broker.registered.own_epoch,
        broker.view,
        broker.controller.ask,
        broker.outbox,
    )
    return Copying(
        broker.replication,
        InSyncChanges(
            broker.config.node_id,
            broker.registered.own_epoch,
            broker.registered,
            broker.controller.ask,
            broker.wakeups,
            broker.outbox,
            broker.metrics,
        ),
        CopiedStarts(broker.registered, broker.outbox),
        offline_replicas,
        Repairs(
            broker.config,
            broker.disk,
            broker.jobs,
            broker.outbox,
            broker.metrics,
            broker.view,
            lambda: broker.directory.data,
            lambda: broker.assignment,
            offline_replicas,
            broker.replication.went_offline,
        ),
    )


def make_live_config(broker: Broker) -> LiveConfig:
    def give_defaults(given: Mapping[str, str]) -> None:
        broker.metadata.give_defaults(given)
        broker.assignment.reconfigure()

    setters = {
        "leader.balance.period.ms": broker.elections.set_period,
        "leader.balance.moves.max": broker.elections.set_moves_max,
        "partition.move.bytes.per.second": broker.replication.set_move_rate,
        "damaged.replicas.kept": broker.repairs.set_kept,
        "super.users": lambda names, _now: broker.authoriser.set_super_users(names),
        "audit.topics": lambda names, _now: broker.audit.set_topics(names),
        # These are made later; no value is set before.
        "transactional.id.expiry.ms": lambda ms, now: broker.coordinators.set_expiry(ms, now),
        "offsets.retention.ms": lambda ms, now: broker.groups.set_retention(ms, now),
        "staged.bytes.max": lambda bytes_max, now: broker.staging.set_bytes_max(bytes_max, now),
    }
    config = broker.config
    return LiveConfig(
        config.node_id,
        config.given,
        broker.view,
        broker.outbox,
        setters,
        give_defaults,
    )


class Copying:
    """The turn of replication in a call of the node: of leaders and of followers."""

    __slots__ = (
        "_replication", "copied_starts", "in_sync_changes", "offline_replicas", "repairs",
    )  # fmt: skip

    def __init__(
        self,
        replication: Replication,
        in_sync_changes: InSyncChanges,
        copied_starts: CopiedStarts,
        offline_replicas: OfflineReplicas,
        repairs: Repairs,
    ) -> None:
        self._replication = replication
        self.in_sync_changes = in_sync_changes
        self.copied_starts = copied_starts
        self.offline_replicas = offline_replicas
        self.repairs = repairs

    @property
    def is_needed(self) -> bool:
        """False where every partition has one replica."""
        return (
            self._replication.is_needed
            or self.in_sync_changes.is_needed
            or self.copied_starts.is_needed
            or self.offline_replicas.is_needed
            or self.repairs.is_needed
        )

    def next_us(self) -> int | None:
        earliest = self._replication.next_us()
        others = (
            self.in_sync_changes, self.copied_starts, self.offline_replicas, self.repairs
        )  # fmt: skip
        for due_us in [part.next_us() for part in others if part.is_needed]:
            if due_us is not None and (earliest is None or due_us < earliest):
                earliest = due_us
        return earliest

    def run(self, now: Now) -> None:
        # A bug in fetching must not keep the leaders' side from its turn.
        try:
            self._replication.run(now)
        finally:
            self.in_sync_changes.run(now)
            if self.copied_starts.is_needed:
                self.copied_starts.run(now)
            if self.offline_replicas.is_needed:
                self.offline_replicas.run(now)
            if self.repairs.is_needed:
                self.repairs.run(now)


class Timed(NamedTuple):
    """A part that is called at a time.

    next_us: when (monotonic) at the latest; 0: at once; None: at no time.
    run: what a tick does then; None: another call of the part does it.
    phases: none: in all.
    """

    next_us: Callable[[], int | None]
    run: Callable[[Now], None] | None
    phases: tuple[Phase, ...] = ()


class Ending(NamedTuple):
    """A part that may have work at the end of a call of the node; no `phases`: in all."""

    part: Any
    is_due: Callable[[Any], Any]
    run: Callable[[Now], None]
    phases: tuple[Phase, ...] = ()


_OF_RULES: Final = RuleRecord | RemoveRuleRecord | RuleNumberRecord
_OF_BROKERS: Final = BrokerRecord | BrokerChangeRecord | UnregisterBrokerRecord


class Broker:
    __slots__ = (
        "admission",
        "appends",
        "assignment",
        "audit",
        "authoriser",
        "broker_addresses",
        "clients",
        "clock",
        "config",
        "controller",
        "coordinators",
        "copied_starts",
        "copy_sessions",
        "copying",
        "creation_note",
        "directory",
        "disk",
        "elections",
        "entropy",
        "flushes",
        "forwarding",
        "groups",
        "held_produces",
        "in_sync_changes",
        "in_sync_decisions",
        "internal_raises",
        "jobs",
        "leader_lease",
        "leading",
        "live_config",
        "logins",
        "lookup",
        "membership",
        "metadata",
        "metrics",
        "offline_replicas",
        "outbox",
        "peers",
        "producer_ids",
        "proofs",
        "purgatory",
        "quorum",
        "quorum_inbox",
        "quotas",
        "reaper",
        "registered",
        "removal",
        "repairs",
        "replicas",
        "replication",
        "retention",
        "staging",
        "tasks",
        "topic_order",
        "transactions",
        "trims",
        "view",
        "waits",
        "wakeups",
    )

    directory: DataDirectory

    def __init__(
        self,
        config: NodeConfig,
        disk: Disk,
        entropy: Callable[[int], bytes],
        metrics: NodeMetrics,
    ) -> None:
        self.config = config
        self.disk = disk
        self.entropy = entropy
        self.metrics = metrics
        self.clients = clients = Clients(config.super_users)
        self.outbox = outbox = Outbox(metrics)
        self.proofs = PeerProofs(config, clients, outbox, metrics, entropy)
        self.peers = Peers(outbox)
        self.broker_addresses = BrokerAddresses(config, self.peers.addresses_changed, outbox.log)
        self.quorum_inbox = QuorumInbox()
        self.jobs = jobs = Jobs(outbox)
        self.view = MetadataView(config.topic_defaults)
        self.quorum = self._make_quorum()
        self.controller = ControllerLink(self.quorum, self.peers)
        self.tasks = Tasks(outbox, self.fail)
        self.topic_order = TopicOrder()
        self.purgatory = purgatory = Purgatory(
            outbox, clients, config.parked_requests_max, config.parked_entries_max
        )
        self.wakeups = wakeups = Wakeups(purgatory)
        self.copy_sessions = CopySessions(wakeups)
        self._make_security()
        self.admission = admission = Admission(
            outbox, metrics, reserve_bytes=config.disk_reserve_bytes
        )
        self.flushes = flushes = Flushes(
            jobs, wakeups, outbox, metrics, in_flight_max=config.flushes_in_flight_max
        )
        self.appends = Appends(flushes, wakeups, admission, outbox, lambda *key: self.leading(*key))
        self.held_produces = HeldProduces()
        self.removal = Removal(jobs, outbox)
        self.registered = Registered(config.node_id, self.view, lambda: self.directory.incarnation)
        self.trims = Trims(jobs, wakeups, flushes, admission, outbox)
        self.replication = self._make_replication()
        self.copying = copying = make_copying(self)
        self.in_sync_changes = copying.in_sync_changes
        self.copied_starts = copying.copied_starts
        self.offline_replicas = copying.offline_replicas
        self.repairs = copying.repairs
        flushes.listen(self._took_fault)
        wakeups.listen(self._moved)
        self.assignment = self._make_assignment()
        self.creation_note = self._make_creation_note()
        self.metadata: Metadata = self._make_metadata()
        self.in_sync_decisions = InSyncDecisions(self.quorum, self.metadata)
        self.elections = self._make_elections()
        self.internal_raises = InternalRaises(self.quorum, self.metadata, outbox)
        self.live_config = make_live_config(self)
        self.membership = self._make_membership()
        self.producer_ids = ProducerIds(self.metadata, self.membership.registration.known_us)
        self.clock = Clock(jobs, outbox)
        self.retention = self._make_retention()
        self.replicas = self.assignment.replicas
        self.leader_lease = LeaderLease(
            self.membership, self.metadata, self.replicas, wakeups, outbox
        )
        self.lookup = self._make_lookup()
        self.leading = self.lookup.leading
        self.forwarding = self._make_forwarding()
        self._make_transactions()
        self.waits = Waits(
            purgatory.answer, purgatory.fail, wakeups.mark, self.tasks.start, purgatory.hasten
        )

    def _make_security(self) -> None:
        self.audit = audit = Audit(
            self.clients,
            self.outbox,
            lambda connection_id: self.logins.described(connection_id)[0],
            self.metrics,
            is_on=self.config.authorises or self.config.audit_wanted,
        )
        audit.set_topics(self.config.audit_topics)
        self.quotas = Quotas(self.view, self.clients, self.outbox, self.metrics)
        self.logins = Logins(
            self.config,
            self.clients,
            self.view,
            self.outbox,
            audit,
            self.metrics,
            self.entropy,
            lambda: self.directory.cluster_id,
            self.quotas.enter,
            self._login_ended,
        )
        self.authoriser = Authoriser(self.config, self.view, self.clients, self.wakeups, audit)

    def _make_quorum(self) -> Quorum:
        config, outbox = self.config, self.outbox
        return Quorum(
            self.jobs,
            Dice(self.entropy),
            lambda level, event, why: outbox.log(level, event, why=why),
            send=sender(
                config,
                self.peers,
                self.broker_addresses,
                lambda: self.directory.cluster_id,
                lambda leader, now: self.quorum.on_leader_named(leader, now),
                outbox.log,
            ),
            voters_changed=self.broker_addresses.voters_changed,
            seeds=tuple(node_id for node_id in config.controllers if node_id != config.node_id),
        )

    def _make_replication(self) -> Replication:
        return Replication(
            self.config.node_id,
            self.registered.own_epoch,
            self.peers,
            self.jobs,
            self.flushes,
            self.wakeups,
            self.outbox,
            FollowedStarts(
                self.trims,
                moved=lambda replica: self.replication.moved(replica),
                failed=lambda replica, now: self.replication.start_failed(replica, now),
            ),
            lambda key, now: self.assignment.reconcile(self.view.image, {key[0]: (key[1],)}, now),
            MoveQuota(self.config.node_id, self.config.move_bytes_per_s, self.view),
        )

    def _make_assignment(self) -> Assignment:
        return Assignment(
            self.config,
            self.disk,
            self.jobs,
            self.flushes,
            self.removal,
            self.replication,
            self.in_sync_changes,
            self.wakeups,
            self.outbox,
            self.metrics,
            self.repairs,
        )

    def _make_metadata(self) -> Metadata:
        return Metadata(
            self.jobs,
            self.wakeups,
            self.admission,
            self.outbox,
            self.quorum,
            self.view,
            make_directories=lambda owners: CreateDirectoriesJob(self.directory.data, owners),
            on_applied=self._applied,
            on_replayed=self.creation_note.replayed,
        )

    def _make_retention(self) -> Retention:
        return Retention(
            self.assignment,
            self.trims,
            self.flushes,
            self.jobs,
            self.clock,
            self.outbox,
            self.metrics,
            period_ms=self.config.retention_check_ms,
        )

    def _make_creation_note(self) -> CreationNote:
        return CreationNote(
            self.config.node_id,
            self.view,
            lambda: self.assignment.waiting,
            lambda: self.quorum.is_alone,
            self.jobs,
            self.outbox,
        )

    def _make_elections(self) -> Elections:
        return Elections(
            self.quorum,
            self.metadata,
            self.outbox,
            self.metrics,
            self.entropy,
            FullDisks(self.metadata, self.outbox, lambda: self.membership.full_disks),
            period_ms=self.config.leader_balance_period_ms,
            moves_max=self.config.leader_balance_moves_max,
        )

    def _make_lookup(self) -> Lookup:
        return Lookup(
            self.assignment,
            self.replication,
            self.metadata,
            self.jobs,
            self.outbox,
            self.metrics,
            self.config,
            self.repairs.found,
            self.leader_lease,
            self.audit,
        )

    def _make_transactions(self) -> None:
        self.transactions = Hosting(
            self.appends, self.jobs, self.lookup, self.trims, self.admission, self.outbox
        )
        self.assignment.listen(self.transactions)
        self.staging = Staging(
            self.transactions, self.forwarding, self.appends, self.view, self.config
        )
        leaders = Leaders(self.config.node_id, self.view, self.peers, self.staging.local)
        self.coordinators = Coordinators(
            self.view,
            self.transactions,
            leaders,
            self.outbox,
            self.metrics,
            self.config.transactional_id_expiry_ms,
        )
        self.groups = GroupCoordinators(
            self.view,
            self.transactions,
            self.outbox,
            self.metrics,
            self.config.offsets_retention_ms,
        )
        self.reaper = Reaper(
            self.config.node_id, self.staging, self.coordinators, self.peers, self.outbox
        )

    def _make_forwarding(self) -> Forwarding:
        return Forwarding(
            self.config.node_id,
            self.view,
            self.lookup,
            self.jobs,
            self.peers,
            Targets(self.lookup, self.appends, self.admission, self.outbox, self.metrics),
            self.outbox,
            lambda: cluster_number(self.directory.cluster_id),
        )

    def _took_fault(self, replica: Replica) -> None:
        """Have another broker lead: this replica takes no writes."""
        self.replication.went_offline(replica)
        self.offline_replicas.changed(
            (replica.topic.topic_id, replica.name.partition), is_offline=True
        )

    def _make_membership(self) -> Membership:
        return Membership(
            self.config,
            self.quorum,
            self.metadata,
            self.view,
            self.peers,
            self.outbox,
            lambda: self.directory,
            self.assignment,
            self.controller,
            self.in_sync_decisions,
            lambda: self.offline_replicas.has_unreported,
            lambda: self.admission.disk_full,
            lambda: self.metrics.partitions_with_faults,
            self.replication.deleted_below,
            self.broker_addresses,
            lambda: self.proofs.is_required,
        )

    def _moved(self, watched: Watched) -> None:
        """Pass rows or a moved high watermark to the followers' sessions, or to the own fetcher."""
        if isinstance(watched, Replica):
            leadership = watched.state.leadership
            if leadership is None:
                self.replication.moved(watched)
            elif leadership.followers:
                self.copy_sessions.moved(watched)
                self.in_sync_changes.grown(watched)

    def timed(self) -> list[Timed]:
        running = (Phase.RUNNING,)
        assignment = self.assignment
        return [
            Timed(self.tasks.next_us, self.tasks.ticked),
            Timed(self.wakeups.next_us, None),
            Timed(self.purgatory.next_deadline_us, None),
            Timed(self.peers.next_us, self.peers.expire),
            Timed(self.logins.next_us, self.logins.run),
            Timed(self.quotas.next_us, self.quotas.run),
            Timed(self.flushes.next_us, self.flushes.run),
            Timed(self.appends.next_us, None),
            Timed(self.quorum.next_us, self.quorum.tick),
            Timed(self.leader_lease.next_us, self.membership.tick),
            Timed(self.retention.next_us, self.retention.run, running),
            Timed(self.elections.next_us, self.elections.run, running),
            Timed(self.internal_raises.next_us, self.internal_raises.run, running),
            Timed(self.creation_note.next_us, self.creation_note.run, running),
            Timed(assignment.next_us, assignment.tick, running),
            Timed(self.transactions.next_us, self.transactions.run, running),
            Timed(self.coordinators.next_us, self.coordinators.run),
            Timed(self.groups.next_us, self.groups.run),
            Timed(
                partial(assignment.next_us, starting=True),
                partial(assignment.tick, starting=True),
                (Phase.STARTING,),
            ),
            Timed(self.copying.next_us, None, running),
            Timed(self.forwarding.next_us, None, running),
            Timed(self.staging.next_us, self.staging.tick, running),
            Timed(self.reaper.next_us, self.reaper.tick, running),
        ]

    def endings(self) -> list[Ending]:
        """Return the parts with work at the end of a call, in their order."""
        # Flushes come late: the parts before them may append, or want a flush.
        waiting, copying = attrgetter("waiting"), self.copying
        running = (Phase.RUNNING,)
        return [
            Ending(copying, attrgetter("is_needed"), copying.run, running),
            Ending(self.tasks, attrgetter("ends_calls"), self.tasks.end_call),
            Ending(self.forwarding, attrgetter("is_needed"), self.forwarding.run, running),
            Ending(self.staging, attrgetter("is_needed"), self.staging.run, running),
            Ending(self.appends, attrgetter("added"), self.appends.run),
            Ending(self.wakeups, attrgetter("busy"), self.wakeups.run),
            Ending(self.flushes, waiting, self.flushes.run),
            Ending(self.removal, waiting, self.removal.run),
            Ending(self.audit, attrgetter("is_due"), self.audit.end_call),
        ]

    def take(self, directory: DataDirectory) -> None:
        self.directory = directory
        self.copy_sessions.begin(1 + int.from_bytes(self.entropy(7), "big"))
        self.removal.load(directory.data)
        self.assignment.load(directory)

    def _applied(self, records: Sequence[Record], made: Set[str] | None, now: Now) -> None:
        assert records
        for record in records:
            if isinstance(record, ProducerIdBlockRecord):
                self.producer_ids.block_added(record)
            elif isinstance(record, ProducerEpochRecord):
                self.membership.registration.report_version()
            elif isinstance(record, _OF_BROKERS):
                self.membership.changed()
                self.in_sync_changes.look_at(self.replicas.values())
        if any(isinstance(record, _OF_RULES) for record in records):
            self.authoriser.rules_changed()
        if any(isinstance(record, _OF_BROKERS) for record in records):
            self.broker_addresses.brokers_changed(self.metadata.image.brokers.values())
        self.live_config.look(now)
        self.logins.look(now)
        self.authoriser.look()
        self.quotas.look()
        self.elections.applied(records, now)
        self.internal_raises.applied(records, now)
        self.creation_note.applied(records, now)
        self.groups.applied(records)
        if changed := changed_by(records):
            self.assignment.reconcile(self.metadata.image, changed, now, made=made)

    def propose(self, records: list[Record], now: Now, then: Then) -> None:
        """Propose with the directories of the partitions that these records place here.

        Raises:
            ThrottledBroker: the name of one of them is not free yet.
            PolicyViolation: the change is too large.
        """
        pending = self.metadata.pending
        names: dict[bytes, str] = {}  # Of topics that these records create.
        directories: dict[str, bytes] = {}
        topic_names: set[str] = set()
        for record in records:
            if isinstance(record, TopicRecord):
                names[record.topic_id] = record.name
            elif isinstance(record, PartitionRecord | PartitionChangeRecord):
                topic = pending.topics_by_id.get(record.topic_id)
                if self.config.node_id not in (record.replicas or ()):
                    continue
                is_new = topic is None or record.partition >= len(topic.partitions)
                if not is_new and topic is not None:
                    if self.config.node_id in topic.partitions[record.partition].replicas:
                        continue  # It was placed before: a missing directory is a loss.
                    self.assignment.check_left((record.topic_id, record.partition))
                name = names[record.topic_id] if topic is None else topic.name
                directories[str(TopicPartition(name, record.partition))] = record.topic_id
                topic_names.add(name)
        self.assignment.check_free(directories, topic_names)
        self.metadata.propose(records, now, then, directories)

    def _login_ended(self, connection_id: int) -> None:
        # Before it is closed: no long poll of it may show rows any more.
        self.tasks.drop(connection_id)
        self.purgatory.drop(connection_id)
        assert not self.purgatory.of_connection(connection_id)

    def drop_connection(self, connection_id: int, now: Now) -> None:
        self.clients.drop(connection_id)
        self.logins.drop(connection_id)
        self.proofs.drop(connection_id, now)
        self.authoriser.drop(connection_id)
        self.quotas.drop(connection_id)
        self.tasks.drop(connection_id)
        self.purgatory.drop(connection_id)

    # --- failing -------------------------------------------------------------------------------
    def fail(self, connection_id: int, request: m.Request, error: QuiverlogError) -> None:
        response = refusal(self, connection_id, request, error)
        self.outbox.respond(connection_id, request.correlation_id, response)
