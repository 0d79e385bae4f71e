"""Starting: from a data directory to a broker that serves.

The metadata log is replayed first. A broker that is not the whole quorum joins: it votes and
follows at once, and continues when everything decided before the present leader's election is
applied and this incarnation is registered. Directories without a topic are removed if it was
deleted, else set aside. RUNNING begins when every assigned partition is open or offline.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, NamedTuple, TypeGuard

from quiverlog.core.controller.elections import broker_unfenced, restarted_alone
from quiverlog.core.controller.features import SECURITY_LEVEL
from quiverlog.core.controller.image import Image
from quiverlog.core.controller.records import (
    BrokerChangeRecord,
    BrokerRecord,
    Record,
    UnregisterBrokerRecord,
    decode_entry,
)
from quiverlog.core.raft.messages import ReplicaKey
from quiverlog.core.security.users import SECURITY_KEY_BYTES, first_user
from quiverlog.errors import InvalidConfig, QuiverlogError
from quiverlog.limits import FEATURE_LEVEL_MIN
from quiverlog.node.apis.admin import first_level
from quiverlog.node.apis.brokers import has_others
from quiverlog.node.broker import Broker
from quiverlog.node.controller.registration import wants_vote
from quiverlog.node.metadata.decision import why
from quiverlog.node.runtime.admission import Phase
from quiverlog.node.runtime.config import Asked
from quiverlog.node.runtime.effects import ListenToBrokers, StartComplete
from quiverlog.roles import ROLE_BROKER
from quiverlog.storage.directory.data_directory import DataDirectory
from quiverlog.storage.log.files import printable
from quiverlog.storage.metadata.metadata_log import restore_error
from quiverlog.storage.metadata.quorum_log import QuorumLog
from quiverlog.types import Now, TopicPartition
from quiverlog.wire.authentication_messages import CERTIFICATE

__all__ = [
    "Joining",
    "Leftovers",
    "LeftoversJob",
    "disk_space",
    "owners_of",
    "report",
    "run_if_started",
    "start",
    "take_up",
]


class Leftovers(NamedTuple):
    """Directories by name; `later`: removed while the broker serves."""

    removed: list[str]
    aside: list[str]
    later: dict[str, bytes]
    free_bytes: int


class LeftoversJob:
    """Removes directories without a topic in the image; `owners`: topic ids by partition name."""

    __slots__ = ("_broker", "_deleted", "key", "kind", "owners")

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.owners, self._deleted = owners_of(broker, broker.metadata.image)
        self.key = broker.directory.data.path
        self.kind = "leftovers"

    def run(self) -> Leftovers:
        directory = self._broker.directory
        later: dict[str, bytes] = {}
        removed, aside = directory.data.remove_leftovers(
            self.owners, self._deleted, written=directory.written, later=later
        )
        free_bytes = self._broker.disk.free_bytes(self._broker.config.data_dir)
        assert not later.keys() & self.owners.keys(), "nothing that is owned is removed"
        return Leftovers(removed, aside, later, free_bytes)


def owners_of(broker: Broker, image: Image) -> tuple[dict[str, bytes], set[bytes]]:
    """Return topic ids: by name of the partitions here, and of what is deleted or elsewhere."""
    owners = {
        str(TopicPartition(topic.name, partition.partition)): topic.topic_id
        for topic in image.topics.values()
        for partition in topic.partitions
        if broker.config.node_id in partition.replicas
    }
    # The files of a partition that moved away are removed like those of a deleted topic.
    elsewhere = {
        topic.topic_id
        for topic in image.topics.values()
        if any(broker.config.node_id not in one.replicas for one in topic.partitions)
    }
    return owners, {*image.removed_topic_ids, *elsewhere}


def report(broker: Broker, found: Leftovers, job: LeftoversJob) -> None:
    topics = broker.metadata.image.topics_by_id
    assert not set(found.aside) & found.later.keys(), "a directory has one fate"
    # Of topics that were deleted while the job ran.
    later = found.later | {n: t for n, t in job.owners.items() if t not in topics}
    if found.removed:
        broker.outbox.log("info", "leftovers removed", count=len(found.removed))
    if later:
        broker.outbox.log("info", "leftovers are being removed", count=len(later))
        broker.assignment.remove_leftovers(later)
    log_path = f"{broker.directory.metadata_path}/metadata.log"
    for name in found.aside:
        broker.outbox.log(
            "error",
            "rows of an unknown topic set aside",
            name=name,
            file=log_path,
            why=f"{log_path} does not name their topic. No row was removed. If the file is of"
            f" another day: stop this broker, put the right one back, rename data/{name}.*.orphan"
            f" to data/{name} (docs/operating.md).",
        )
    for note in broker.directory.notes:
        broker.outbox.log("warning", "data directory", note=note)


_NAMES_SHOWN: Final = 3


def start(broker: Broker, join: Callable[[Now], None], now: Now) -> None:
    """Start the broker; blocks. `join`: begins to wait for the metadata. Raises as `Node.start`."""
    assert broker.admission.phase is Phase.NEW
    config = broker.config
    directory = DataDirectory.open(
        broker.disk,
        config.data_dir,
        node_id=config.node_id,
        cluster_id=config.cluster_id,
        entropy=broker.entropy,
        proof_required=bool(config.cluster_secrets) and config.proof_required is not False,
        also_of_old=config.proof_required is True,
    )
    broker.take(directory)
    try:
        broker.proofs.begin(config, directory.cluster_id, recorded=directory.proof_required)
        is_required = "true" if broker.proofs.is_required else "false"
        broker.live_config.took_effect("cluster.secret.required", is_required)
        _start_in(broker, directory, join, now)
    except BaseException:
        _give_back(broker, directory)
        raise


def _give_back(broker: Broker, directory: DataDirectory) -> None:
    # No row was touched: the clean mark is as true as before.
    if broker.quorum.log is not None:
        broker.quorum.log.close()
    with contextlib.suppress(OSError, QuiverlogError):
        directory.close(
            clean=directory.clean,
            metadata_bytes=directory.metadata_bytes,
            written=directory.written,
        )


def _start_in(
    broker: Broker, directory: DataDirectory, join: Callable[[Now], None], now: Now
) -> None:
    config = broker.config
    broker.clock.load(directory)
    broker.creation_note.load(directory)
    _load_metadata(broker, directory, now)
    if not directory.clean:
        broker.metrics.unclean_starts += 1
    if not broker.quorum.is_alone:
        join(now)
        return
    known = broker.metadata.image.brokers.get(config.node_id)
    records: list[Record] = [
        BrokerRecord(
            config.node_id,
            directory.incarnation,
            config.advertised_host,
            config.advertised_port,
            config.rack,
            config.endpoints,
            directory_id=directory.directory_id,
            wants_vote=wants_vote(config),
            takes_partitions=ROLE_BROKER in config.roles,
            feature_level_min=FEATURE_LEVEL_MIN,
            feature_level_max=config.feature_level_max,
            decommissioning=known is not None and known.decommissioning,
        )
    ]
    image = broker.metadata.image
    levels = first_level(config, image, directory.cluster_id)
    records += levels
    level = config.feature_level_max if levels else image.feature_level
    if config.first_user is not None and not image.users and level >= SECURITY_LEVEL:
        key = broker.entropy(SECURITY_KEY_BYTES)
        records += first_user(image, config.first_user, key, now.wall_us)
    if not directory.clean:
        # Rows may be lost: new leader epochs show it to readers, or other replicas lead.
        records.extend(restarted_alone(image, config.node_id))
    elif known is not None and (known.fenced or known.in_shutdown):
        # It was stopping when there were other brokers, which are gone: it leads again.
        records.extend(broker_unfenced(image, config.node_id))
    # Committed before any log is opened: an epoch must not begin twice.
    broker.metadata.commit_at_start(records, now)
    broker.producer_ids.start()
    job = LeftoversJob(broker)
    take_up(broker, job.run(), job, now)


def take_up(broker: Broker, found: Leftovers, job: LeftoversJob, now: Now) -> None:
    """Open the assigned partitions: the metadata is applied, leftovers are gone."""
    assert broker.admission.phase in (Phase.NEW, Phase.JOINING)
    report(broker, found, job)
    disk_space(broker, found.free_bytes, now)
    broker.admission.enter(Phase.STARTING)
    assert not broker.replicas, "no log is open before the records of the start are logged"
    image = broker.metadata.image
    # No part was called for the decisions that were applied while joining.
    broker.broker_addresses.brokers_changed(image.brokers.values())
    broker.live_config.look(now)
    clean = broker.directory.clean
    never_created = broker.creation_note.at_start()
    assert never_created.isdisjoint(broker.replicas), "nothing is open yet"
    # `now` is when the start began, long ago perhaps; the jobs are timed from the first tick.
    broker.assignment.reconcile(
        image,
        dict.fromkeys(image.topics_by_id),
        now,
        clean=clean,
        open_now=False,
        never_created=never_created,
    )


def _load_metadata(broker: Broker, directory: DataDirectory, now: Now) -> None:
    log = QuorumLog.open(
        broker.disk,
        directory.metadata_path,
        ReplicaKey(broker.config.node_id, directory.directory_id),
        create=not directory.data.partitions(),
        founds=not broker.config.controllers,
        bytes_min=directory.metadata_bytes,
        before_cut=partial(_why_not_torn, broker, directory),
        if_no_voter=partial(_why_not_own, broker, directory),
    )
    broker.quorum.start(log, broker.metadata, now)
    broker.quorum_inbox.serve(broker.quorum.take)
    broker.broker_addresses.brokers_changed(broker.metadata.image.brokers.values())
    image = broker.metadata.image
    if not broker.quorum.is_alone:
        return  # Its image comes from the leader.
    if not image.topics and not image.removed_topic_ids:
        unknown = directory.data.unknown_rows({}, ())
        if unknown:
            path = f"{directory.metadata_path}/metadata.log"
            raise restore_error(path, f"names no topic, yet there are rows in {_shown(unknown)}")


def _why_not_torn(broker: Broker, directory: DataDirectory, entries: Sequence[bytes]) -> str:
    """Return why the frame behind these entries was once durable; empty: no evidence."""
    # A partition gets its first row after the frame with its topic is durable.
    unknown = _unknown_rows(broker, directory, entries)
    return f"yet no frame names the topics of the rows in {_shown(unknown)}" if unknown else ""


def _why_not_own(broker: Broker, directory: DataDirectory, entries: Sequence[bytes]) -> str:
    """Return why a log with these entries is another directory's; empty: no evidence.

    A broker gets its first partition after its registration, and the log of a cluster that it has
    left still has the topics of its partitions.
    """
    node_id = broker.config.node_id
    records = (one for entry in reversed(entries) for one in reversed(decode_entry(entry)))
    newest = next((one for one in records if _is_of_brokers(one) and one.node_id == node_id), None)
    if newest is not None and not (
        isinstance(newest, BrokerRecord) and newest.directory_id not in ("", directory.directory_id)
    ):
        return ""
    assert newest is None or newest.node_id == node_id
    unknown = _unknown_rows(broker, directory, entries)
    if not unknown:
        return ""
    assert directory.directory_id
    which = f"directory {directory.directory_id!r}, nor the topics of the rows in"
    return f"it does not name {which} {_shown(unknown)}"


def _unknown_rows(broker: Broker, directory: DataDirectory, entries: Sequence[bytes]) -> list[str]:
    """Return the directories with rows of no topic of these entries, deleted ones included."""
    image = Image({})
    for entry in entries:
        # Registrations own no rows, and refer to entries that may be missing here.
        records = [one for one in decode_entry(entry) if not _is_of_brokers(one)]
        if records:
            image.replay_entry(records)
    assert not image.brokers, "registrations are left out"
    return directory.data.unknown_rows(*owners_of(broker, image))


def _is_of_brokers(
    record: Record,
) -> TypeGuard[BrokerRecord | BrokerChangeRecord | UnregisterBrokerRecord]:
    return isinstance(record, BrokerRecord | BrokerChangeRecord | UnregisterBrokerRecord)


def _shown(names: Sequence[str]) -> str:
    shown = ", ".join(printable(name) for name in names[:_NAMES_SHOWN])
    more = f" and {len(names) - _NAMES_SHOWN} more" if len(names) > _NAMES_SHOWN else ""
    return f"{shown}{more} (to give them up, rename each directory to <name>.orphan)"


def disk_space(broker: Broker, free_bytes: int, now: Now) -> None:
    """Take a measurement of free space."""
    if not broker.metadata.has_unsaved_start_records:
        broker.admission.disk_space(free_bytes)
        return
    # Until the start's records are durable, nothing is written under their epochs.
    broker.admission.disk_filled()
    if free_bytes >= broker.config.disk_reserve_bytes:
        broker.metadata.save_start_records(now)


def run_if_started(broker: Broker, now: Now) -> None:
    if broker.assignment.opening:
        return
    assert broker.admission.phase is Phase.STARTING
    assert not broker.tasks.live, "no request is served before the start is complete"
    broker.admission.enter(Phase.RUNNING)
    broker.retention.start(now)
    broker.membership.serve(now)
    broker.outbox.log(
        "info",
        "started",
        cluster_id=broker.directory.cluster_id,
        clean=broker.directory.clean,
        topics=len(broker.metadata.image.topics),
        partitions=len(broker.replicas),
        offline=len(broker.assignment.offline),
        proof_required=broker.proofs.is_required,
    )
    _warn_of_strangers(broker)
    _warn_of_no_users(broker)
    broker.outbox.emit(StartComplete())


def _warn_of_strangers(broker: Broker) -> None:
    """A lone broker serves no other, and takes none without proof."""
    if broker.proofs.is_required or broker.config.brokers_have_certificates:
        return
    if not (broker.config.lets_others_join or has_others(broker)):
        return
    broker.outbox.log(
        "warning",
        "other brokers are taken without proof",
        why="`cluster.secret.required` is not true"
        if broker.proofs.secrets
        else "`cluster.secret.file` is not given",
        remedy="every program that reaches the listener between brokers can take rows away:"
        " docs/security.md has the steps",
    )


def _warn_of_no_users(broker: Broker) -> None:
    asking = broker.config.authentication.items()
    closed = [
        name
        for name, one in asking
        if one.asked is Asked.REQUIRED and CERTIFICATE not in one.mechanisms
    ]
    if closed and not broker.metadata.image.users:
        broker.outbox.log(
            "warning",
            "the cluster has no user, and a listener serves users alone",
            listeners=",".join(closed),
            remedy="`admin.credential.file` makes the first one, at feature level 3 and above:"
            " docs/security.md",
        )


_RETRY_US: Final = 5_000_000


class Joining:
    __slots__ = ("_broker", "_due_us", "_has_failed", "_is_looking")

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._is_looking = False
        self._has_failed = False
        self._due_us: int | None = None

    def next_us(self) -> int | None:
        return self._due_us

    def begin(self, now: Now) -> None:
        """Raises InvalidConfig: no other broker is configured or known."""
        broker = self._broker
        assert not broker.quorum.is_alone, "a quorum of one has its metadata on its own disk"
        assert broker.admission.phase is Phase.NEW
        others = broker.broker_addresses.known()
        if not broker.quorum.raft.voters and not others:
            raise InvalidConfig(
                "`controller.quorum.bootstrap.servers` names no other broker, and this data"
                " directory belongs to no quorum yet. To begin a new cluster with this"
                " broker, start it without that key the first time."
            )
        broker.admission.enter(Phase.JOINING)
        asks = ", ".join(f"{node_id}@{where}" for node_id, where in sorted(others.items()))
        broker.outbox.log(
            "info", "waiting for the metadata of the cluster", asks=asks or "no broker"
        )
        # The quorum may need this vote, and clients wait for StartComplete.
        broker.outbox.emit(ListenToBrokers())
        broker.quorum.follow(now)
        broker.membership.begin(now)

    def run(self, now: Now) -> None:
        broker = self._broker
        assert broker.admission.phase is Phase.JOINING
        if self._is_looking or not broker.quorum.has_applied_earlier_terms:
            return
        if not broker.membership.registration.is_registered:
            return  # Until then it may still be the leader of what its earlier life led.
        if broker.metadata.image.version != broker.quorum.applied_index:
            return  # A snapshot is being made of the image, and later entries wait.
        if self._due_us is not None and now.mono_us < self._due_us:
            return
        self._is_looking, self._due_us = True, None
        job = LeftoversJob(broker)
        broker.jobs.start(job, partial(self._looked, [job]))

    def _looked(
        self,
        jobs: list[LeftoversJob],
        result: object,
        error: BaseException | None,
        now: Now,
    ) -> None:
        assert self._is_looking, "one look at a time"
        self._is_looking = False
        broker = self._broker
        if broker.admission.phase is not Phase.JOINING:
            return
        if error is not None:
            # The quorum may need this vote all the same: the process stays.
            self._due_us = now.mono_us + _RETRY_US
            if not self._has_failed:
                self._has_failed = True
                broker.outbox.log("error", "the data directory cannot be used", why=why(error))
            return
        assert isinstance(result, Leftovers)
        assert jobs, "a job comes back once"
        assert broker.metadata.image.version <= broker.quorum.applied_index
        broker.metadata.begin_to_serve()
        broker.producer_ids.start()
        take_up(broker, result, jobs.pop(), now)
