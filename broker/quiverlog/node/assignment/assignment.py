"""Which partitions are on this broker: what the metadata image assigns to it, and nothing else.

    image: assigned                                             image: not assigned
    (none) ──▶ opening ──▶ led or followed ──▶ ... ─────────────────────▶ removal
       ▲           └─ failed ─▶ offline, with a reason ─▶ opening (where a retry can help)
       └── closed, damaged (repairs) ◀── followed, or offline

Only `Assignment` opens, leads, follows, reconfigures and closes replicas: by `reconcile`, retries
of what is offline, and for repairs. Requests for a partition that cannot be opened get its error.
It calls a `LeaderListener` when this broker begins and ends to lead a partition.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final, Protocol

from quiverlog.core.controller.image import Image
from quiverlog.core.controller.topic_image import PartitionImage, TopicImage
from quiverlog.errors import (
    NotEnoughReplicasAfterAppend,
    QuiverlogError,
    ThrottledBroker,
    UnknownTopicId,
)
from quiverlog.node.partitions.directories import OpenedReplica, Removal
from quiverlog.node.partitions.flushing import Flushes
from quiverlog.node.partitions.offline import (
    Key,
    Offline,
    Opening,
    begins_here,
    may_be_made,
    offline_reason,
)
from quiverlog.node.partitions.opening import Openings
from quiverlog.node.partitions.replica import Replica, log_config
from quiverlog.node.replication.in_sync import InSyncChanges
from quiverlog.node.replication.repairs import Repairs
from quiverlog.node.replication.replica_fetcher import Replication
from quiverlog.node.runtime.config import NodeConfig
from quiverlog.node.runtime.jobs import Jobs, Then
from quiverlog.node.runtime.metrics import NodeMetrics
from quiverlog.node.runtime.outbox import Outbox
from quiverlog.node.runtime.purgatory import Wakeups
from quiverlog.storage.directory.data_directory import DataDirectory
from quiverlog.storage.disk.disk import Disk
from quiverlog.types import Now, TopicPartition

__all__ = [
    "Assignment",
    "Key",
    "LeaderListener",
    "OfflinePartitions",
    "report_notes",
    "report_recovery",
]


_RETRY_US: Final = 5_000_000


class OfflinePartitions:
    __slots__ = ("_metrics", "_node_id", "_outbox", "_retry", "by_key")

    def __init__(self, node_id: int, outbox: Outbox, metrics: NodeMetrics) -> None:
        self._node_id = node_id
        self._outbox = outbox
        self._metrics = metrics
        self.by_key: dict[Key, Offline] = {}
        # By the times, in their order: each retry is after the same pause.
        self._retry: OrderedDict[Key, int] = OrderedDict()

    def next_us(self) -> int | None:
        return next(iter(self._retry.values()), None)

    def failed(self, key: Key, opening: Opening, error: BaseException, now: Now) -> None:
        name = opening.name
        reason, passing = offline_reason(name, error)
        # A directory never created holds no rows; a lost replica may leave the in-sync set.
        lost = isinstance(error, FileNotFoundError)
        passing = passing or opening.never_created or lost
        if not isinstance(error, OSError | QuiverlogError):
            self._outbox.internal_error("opening a log", error)
        if key not in self.by_key:  # One line, not one per retry.
            self._outbox.log(
                "error", "partition offline", partition=str(name), why=reason.message, retry=passing
            )
        self.by_key[key] = Offline(reason, opening, lost)
        self._metrics.partitions_offline = len(self.by_key)
        if passing:
            self._retry[key] = now.mono_us + _RETRY_US

    def remove(self, key: Key) -> Offline | None:
        self._retry.pop(key, None)
        found = self.by_key.pop(key, None)
        self._metrics.partitions_offline = len(self.by_key)
        assert len(self._retry) <= len(self.by_key), "only what is offline is tried again"
        return found

    def look_at(self, key: Key, image: Image) -> None:
        """Retry a lost replica at once if it may be made anew."""
        # The controller may have just chosen it as the leader: clients wait.
        if key in self._retry and self.by_key[key].lost and may_be_made(image, key, self._node_id):
            self._retry[key] = 0
            self._retry.move_to_end(key, last=False)

    def take_due(self, now: Now, image: Image) -> list[tuple[Key, Opening]]:
        due: list[tuple[Key, Opening]] = []
        while self._retry:
            key, due_us = next(iter(self._retry.items()))
            if due_us > now.mono_us:
                break
            del self._retry[key]
            assert key in self.by_key, "only what is offline is tried again"
            _, opening, lost = self.by_key[key]
            may_create = lost and may_be_made(image, key, self._node_id)
            never_created = opening.never_created or may_create
            due.append((key, Opening(opening.name, opening.clean, never_created=never_created)))
        return due


_NOTES_MAX: Final = 20


def report_recovery(replica: Replica, outbox: Outbox, metrics: NodeMetrics) -> None:
    report = replica.log.recovery
    assert report.bytes_scanned >= 0
    assert report.bytes_truncated >= 0
    if report.bytes_scanned:
        metrics.recovery_partitions_scanned += 1
    if report.bytes_truncated:
        metrics.recovery_bytes_truncated += report.bytes_truncated
        outbox.log(
            "warning",
            "torn tail cut",
            partition=str(replica.name),
            bytes=report.bytes_truncated,
            log_end_offset=replica.log.log_end_offset,
        )
    report_notes(replica, outbox)
    if report.damages:
        outbox.log(
            "warning",
            "damaged rows found",
            partition=str(replica.name),
            places=len(report.damages),
            first=report.damages[0],
        )


def report_notes(replica: Replica, outbox: Outbox) -> None:
    """Log files that were ignored or do not belong there, each once."""
    notes = replica.log.recovery.notes
    for note in notes[:_NOTES_MAX]:
        outbox.log("warning", "partition file", partition=str(replica.name), note=note)
    notes.clear()


class LeaderListener(Protocol):
    """Called while decisions are applied: it may start jobs and `Appends.add`, and decides nothing.

    A lease that is over calls nothing: it may come back under the same leader epoch. Until then
    `Lookup.leading` and `Appends.put` refuse, and what waits for copies has failed, with an unknown
    outcome. A fault of the log calls nothing before another broker leads.
    """

    def led(self, replica: Replica, now: Now) -> None:
        """Take a leadership that begins: once for each leader epoch, with the log open.

        Rows of earlier leaders may not be safe yet (`is_current`); appends are refused before the
        broker is running.
        """

    def unled(self, key: Key, now: Now) -> None:
        """Leave the leadership begun by `led`; also before one of another epoch, and at a stop.

        Appends to it may end later: with an error, or as safe where this broker goes on to lead.
        """

    def removed(self, key: Key, now: Now) -> None:
        """Forget a partition that was assigned to this broker: deleted, or moved away."""


class Assignment:
    """`replicas`: those led here, by topic id and partition."""

    __slots__ = (
        "_config", "_flushes", "_followed", "_held", "_in_sync_changes", "_listeners", "_metrics",
        "_offline", "_openings", "_outbox", "_removal", "_repairs", "_replication", "_wakeups",
        "image", "offline", "replicas",
    )  # fmt: skip

    def __init__(
        self,
        config: NodeConfig,
        disk: Disk,
        jobs: Jobs,
        flushes: Flushes,
        removal: Removal,
        replication: Replication,
        in_sync_changes: InSyncChanges,
        wakeups: Wakeups,
        outbox: Outbox,
        metrics: NodeMetrics,
        repairs: Repairs,
    ) -> None:
        self._config = config
        self._repairs = repairs
        self._flushes = flushes
        self._removal = removal
        self._replication = replication
        self._in_sync_changes = in_sync_changes
        self._wakeups = wakeups
        self._outbox = outbox
        self._metrics = metrics
        self.image = Image({})
        self.replicas: dict[Key, Replica] = {}
        self._offline = OfflinePartitions(config.node_id, outbox, metrics)
        self.offline: Mapping[Key, Offline] = self._offline.by_key
        self._followed: dict[Key, Replica] = {}
        self._openings = Openings(
            config, disk, jobs, self, lambda topic_id: self.image.topics_by_id.get(topic_id)
        )
        # By topic id: partitions that are open, opening or offline here.
        self._held: dict[bytes, set[int]] = {}
        self._listeners: list[LeaderListener] = []

    @property
    def opening(self) -> bool:
        return bool(self._openings.under_way)

    @property
    def waiting(self) -> list[Key]:
        """Partitions whose directories are not made yet, or cannot be made now."""
        found = [key for key, one in self._openings.under_way.items() if one.never_created]
        return [*found, *(key for key, one in self.offline.items() if one.opening.never_created)]

    # --- listeners -------------------------------------------------------------------------------
    def listen(self, listener: LeaderListener) -> None:
        """Before the first partition is open: later ones are not repeated to it."""
        assert not self.replicas
        self._listeners.append(listener)

    def _unled(self, key: Key, now: Now) -> None:
        self._call(lambda listener: listener.unled(key, now))

    def _removed(self, key: Key, now: Now) -> None:
        self._call(lambda listener: listener.removed(key, now))

    def _call(self, call: Callable[[LeaderListener], None]) -> None:
        for listener in self._listeners:
            try:
                call(listener)
            except Exception as error:  # The other partitions of the decision must have it, too.
                self._outbox.internal_error("a leader's listener", error)

    def load(self, directory: DataDirectory) -> None:
        self._openings.load(directory)

    def next_us(self, *, starting: bool = False) -> int | None:
        open_us = self._openings.next_us()
        retry_us = None if starting else self._offline.next_us()
        return min((us for us in (open_us, retry_us) if us is not None), default=None)

    def reconcile(
        self,
        image: Image,
        changed: Mapping[bytes, Collection[int] | None],
        now: Now,
        *,
        clean: bool = True,
        made: Collection[str] | None = (),
        open_now: bool = True,
        never_created: Collection[Key] = (),
    ) -> None:
        """Bring the replicas here to the image's assignment.

        Args:
            changed: partitions by topic; None: all of the topic.
            clean: partitions opened now are new, or were closed in order.
            made: partitions whose directories were made for this; None: another broker decided.
            open_now: False at a start, which opens with the next tick.
            never_created: at a start, partitions that never had a directory.
        """
        self.image = image
        for topic_id, numbers in changed.items():
            topic = image.topics_by_id.get(topic_id)
            if topic is None:
                self._drop(topic_id, self._held.get(topic_id, ()), "was deleted", now)
                continue
            never_made = None if open_now else never_created
            for number in range(len(topic.partitions)) if numbers is None else numbers:
                assert 0 <= number < len(topic.partitions), "the controller checked the number"
                partition = topic.partitions[number]
                self._reconcile_partition(topic, partition, now, clean, made, never_made)
        if open_now:
            self._openings.start_jobs(now)

    def _reconcile_partition(
        self,
        topic: TopicImage,
        partition: PartitionImage,
        now: Now,
        clean: bool,
        made: Collection[str] | None,
        never_created_at_start: Collection[Key] | None,
    ) -> None:
        key = (topic.topic_id, partition.partition)
        assert key not in self.replicas or key not in self._followed, "led or followed"
        held = self._held.setdefault(topic.topic_id, set())
        if self._config.node_id not in partition.replicas:
            if partition.partition in held:
                self._drop(topic.topic_id, (partition.partition,), "is not here any more", now)
        elif partition.partition not in held:
            held.add(partition.partition)
            # If it was removed and assigned again before it was open, its opening goes on.
            if key not in self._openings.under_way and not self._repairs.is_leaving(key):
                name = TopicPartition(topic.name, partition.partition)
                new = made is not None and str(name) in made
                never_created = made is None
                if never_created_at_start is None:
                    never_created = never_created or begins_here(partition, self._config.node_id)
                else:
                    never_created = key in never_created_at_start
                self._openings.add(key, Opening(name, clean, new=new, never_created=never_created))
        else:
            replica = self.find(key)
            if replica is not None:
                self._lead_or_follow(replica, partition, now)
                self._reconfigure(replica)
            else:
                self._offline.look_at(key, self.image)

    def _lead_or_follow(self, replica: Replica, partition: PartitionImage, now: Now) -> None:
        key = (replica.topic.topic_id, partition.partition)
        assert not replica.deleted
        assert partition.leader_epoch >= replica.state.leader_epoch, "epochs only grow"
        if partition.leader_id != self._config.node_id:
            self._follow(key, replica, partition, now)
            return
        if not self._replication.leave(key):
            return  # Its log is being truncated: `reconcile` is called when that is done.
        state = replica.state
        begins = not state.leads or partition.leader_epoch != state.leader_epoch
        self._metrics.leader_epoch_changes += partition.leader_epoch != state.leader_epoch
        if begins and key in self.replicas:
            self._unled(key, now)
        moved = replica.lead(partition, now)
        if begins:
            if replica.awaits_own_list:
                self._flushes.want(replica)
            self._followed.pop(key, None)
            self.replicas[key] = replica
            self._metrics.partitions_led = len(self.replicas)
        assert self.replicas.get(key) is replica
        # Also fetches that waited here when it was a follower.
        if moved or (begins and replica.waiters) or partition.replaced_disks:
            self._wakeups.changed(replica)
        replica.look_at_answers(now)
        self._in_sync_changes.look_at((replica,))
        if begins:
            self._call(lambda listener: listener.led(replica, now))

    def _follow(self, key: Key, replica: Replica, partition: PartitionImage, now: Now) -> None:
        assert not replica.admitted, "what is admitted is appended before a decision is applied"
        state = replica.state
        self._metrics.leader_epoch_changes += partition.leader_epoch != state.leader_epoch
        state.follow(partition.leader_epoch)
        self._in_sync_changes.drop(replica)
        if self.replicas.pop(key, None) is not None:
            self._metrics.partitions_led = len(self.replicas)
            self._unled(key, now)
            # The rows are in the log and may stay; NOT_LEADER would promise that none is stored.
            gone = NotEnoughReplicasAfterAppend(f"{replica.name} is led elsewhere.")
            replica.answers.fail(gone, now)
            self._wakeups.changed(replica)
        elif replica.waiters:
            # Fetches from this follower: it may have another leader, or be out of sync.
            self._wakeups.changed(replica)
        self._followed[key] = replica
        self._replication.follow(key, replica, partition.leader_id, partition.leader_epoch, now)

    def reconfigure(self) -> None:
        for replica in (*self.replicas.values(), *self._followed.values()):
            self._reconfigure(replica)

    def _reconfigure(self, replica: Replica) -> None:
        replica.log.config = log_config(replica.topic)
        if replica.state.set_durability(replica.topic.config.durability):
            self._wakeups.changed(replica)
        if replica.state.flushed_offset < replica.state.log_end_offset:
            # Rows written under `memory` get the topic's present durability.
            self._flushes.want(replica)

    # --- opening -------------------------------------------------------------------------------
    def on_opened(
        self,
        key: Key,
        name: TopicPartition,
        topic: TopicImage,
        opened: OpenedReplica,
        now: Now,
    ) -> None:
        partition = topic.partitions[key[1]]
        assert partition.partition == key[1]
        assert key not in self.replicas, "a partition that is served is not opened again"
        replica = Replica(
            topic,
            name,
            opened.log,
            opened.producers,
            partition.leader_epoch,
            self._metrics.topic(name.topic),
            node_id=self._config.node_id,
        )
        report_recovery(replica, self._outbox, self._metrics)
        self._repairs.opened(key, replica)
        self._offline.remove(key)
        self._followed[key] = replica
        if key[0] not in self.image.topics_by_id or key[1] not in self._held.get(key[0], ()):
            self._drop(key[0], (key[1],), "was deleted", now)
        else:
            self._lead_or_follow(replica, partition, now)
            replica.log.config = log_config(topic)  # May be altered since the job began.

    def on_open_failed(self, key: Key, opening: Opening, error: BaseException, now: Now) -> None:
        if key[1] in self._held.get(key[0], ()):
            self._offline.failed(key, opening, error, now)
            self._offline.look_at(key, self.image)
            self._repairs.failed(key, error)
        else:
            self.remove_leftovers({str(opening.name): key[0]})

    def on_not_opened(self, key: Key, opening: Opening) -> None:
        self.remove_leftovers({str(opening.name): key[0]})

    def opened(self, topic_id: bytes, now: Now) -> Callable[[Then], None]:
        return self._openings.opened(topic_id, now)

    def tick(self, now: Now, *, starting: bool = False) -> None:
        self._openings.tick(now)
        # A start has no retries: it ends when nothing is being opened.
        for due in () if starting else self._offline.take_due(now, self.image):
            self._openings.add(*due)
        self._openings.start_jobs(now)

    def stop(self, now: Now) -> None:
        self._openings.stop(now)
        for key in self.replicas:
            self._unled(key, now)
        self._listeners.clear()

    def find(self, key: Key) -> Replica | None:
        return self.replicas.get(key) or self._followed.get(key)

    def all_open(self) -> list[Replica]:
        return [*self.replicas.values(), *self._followed.values()]

    # --- closing -------------------------------------------------------------------------------
    def _close_replica(self, replica: Replica, error: QuiverlogError, now: Now) -> None:
        assert not replica.deleted, "a replica is closed once"
        replica.deleted = True
        self._replication.leave((replica.topic.topic_id, replica.name.partition))
        self._flushes.drop(replica)
        self._in_sync_changes.drop(replica)
        self._metrics.partitions_with_faults -= replica.fault is not None
        assert self._metrics.partitions_with_faults >= 0
        replica.answers.fail(error, now)
        self._wakeups.changed(replica)

    def _drop(self, topic_id: bytes, partitions: Collection[int], why: str, now: Now) -> None:
        gone: list[Replica] = []
        for number in list(partitions):
            key = (topic_id, number)
            held = self._held.get(topic_id, set())
            offline = self._offline.remove(key)
            replica = self.replicas.pop(key, None)
            if replica is not None:
                self._unled(key, now)
            else:
                replica = self._followed.pop(key, None)
            if number in held:  # Else it was dropped before it was open.
                held.discard(number)
                self._removed(key, now)
            if replica is None:
                if offline is not None and key not in self._openings.under_way:
                    self.remove_leftovers({str(offline.opening.name): topic_id})
                continue
            if replica.name.topic not in self.image.topics:
                self._metrics.topics.pop(replica.name.topic, None)
            # Rows of a partition that moved may stay elsewhere; those of a deleted topic do not.
            is_moved = topic_id in self.image.topics_by_id
            kind = NotEnoughReplicasAfterAppend if is_moved else UnknownTopicId
            self._close_replica(replica, kind(f"{replica.name} {why}."), now)
            gone.append(replica)
        if not self._held.get(topic_id):
            self._held.pop(topic_id, None)
        self._metrics.partitions_led = len(self.replicas)
        self._removal.add(gone)

    # --- replicas whose rows are damaged (see `Holder`) ------------------------------------------
    def is_offline(self, key: Key) -> bool:
        return key in self.offline and key not in self._openings.under_way

    def close_damaged(self, key: Key, now: Now) -> tuple[TopicPartition, Replica | None]:
        offline = self._offline.remove(key)
        assert key not in self.replicas, "a leader's replica is served"
        assert key not in self._openings.under_way
        replica = self._followed.pop(key, None)
        if replica is None:
            assert offline is not None, "it is here, or it could not be opened"
            name = offline.opening.name
        else:
            name = replica.name
            gone = NotEnoughReplicasAfterAppend(f"{name} is copied again.")
            self._close_replica(replica, gone, now)
        self._openings.drop_written(str(name))
        return name, replica

    def open_again(self, key: Key, name: TopicPartition, now: Now, *, new: bool) -> None:
        assert self.find(key) is None
        if key[1] not in self._held.get(key[0], ()):
            self.remove_leftovers({str(name): key[0]})
        else:
            self._openings.add(key, Opening(name, clean=False, new=new))
            self._openings.start_jobs(now)

    def remove_leftovers(self, owners: Mapping[str, bytes]) -> None:
        """Remove directories of partitions that are not open here; `owners`: topic ids by name."""
        for name, topic_id in owners.items():
            self._openings.drop_written(name)
            self._removal.add_unopened(name, topic_id)

    def opening_deleted(self, topic_name: str) -> bytes | None:
        """Return the id of a deleted topic of this name, a partition of which is being opened."""
        return self._openings.deleted_of(topic_name)

    def check_left(self, key: Key) -> None:
        """Raise ThrottledBroker while a removed partition still has files here."""
        held = key[1] in self._held.get(key[0], ()) or key in self._openings.under_way
        if held or self._repairs.is_leaving(key):
            raise ThrottledBroker("the partition's files are still being removed: try again.")

    def check_free(self, names: Mapping[str, bytes], topic_names: Iterable[str]) -> None:
        """Raise ThrottledBroker while partitions with these names cannot be created.

        Args:
            names: topic ids by partition name.
        """
        self._removal.check_free(names)
        self._repairs.check_free(names)
        if any(self._openings.deleted_of(name) is not None for name in topic_names):
            raise ThrottledBroker(
                "the deleted topic of this name is still being opened: try again."
            )
