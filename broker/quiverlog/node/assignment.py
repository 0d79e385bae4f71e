"""Which partitions are here: what the metadata image gives to this broker, and nothing else.

Owns the replicas, those that are being opened, and those that cannot be opened. `reconcile` is the
only place that opens, leads, follows, reconfigures and removes replicas; it is called with whatever
has changed in the image.

        image says: here                                          image says: not here
    (none) ──▶ opening ──▶ led or followed ──▶ ... ─────────────────────▶ removal
       ▲           └─ failed ─▶ offline, with a reason ─▶ opening (where trying again can help)
       └── let go, damaged (repairs.py) ◀── followed, or offline

A partition that cannot be opened (no directory, damaged files, a disk or process that is short of
something) answers a typed error; every other one, and DESCRIBE and DELETE of its own topic, work.

Must not know: requests, how records come about.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping

from quiverlog.core.controller.image import Image
from quiverlog.core.controller.topic_image import PartitionImage, TopicImage
from quiverlog.errors import NotEnoughReplicasAfterAppend, ThrottledBroker, UnknownTopicId
from quiverlog.node.config import NodeConfig
from quiverlog.node.directory_jobs import OpenedReplica
from quiverlog.node.flushes import Flushes
from quiverlog.node.in_sync_changes import InSyncChanges
from quiverlog.node.jobs import Jobs, Then
from quiverlog.node.letting_go import LettingGo
from quiverlog.node.metrics import NodeMetrics
from quiverlog.node.offline import Key, Offline, Opening, begins_here
from quiverlog.node.offline_partitions import OfflinePartitions
from quiverlog.node.openings import Openings
from quiverlog.node.outbox import Outbox
from quiverlog.node.recovered import report_recovery
from quiverlog.node.removal import Removal
from quiverlog.node.repairs import Repairs
from quiverlog.node.replica import Replica, log_config
from quiverlog.node.replication import Replication
from quiverlog.node.wakeups import Wakeups
from quiverlog.storage.directory.data_directory import DataDirectory
from quiverlog.storage.disk.disk import Disk
from quiverlog.types import Now, TopicPartition

__all__ = ["Assignment", "Key"]


class Assignment:
    """See the module docstring. `replicas`: those that are led here, by topic id and partition."""

    __slots__ = (
        "_config", "_flushes", "_followed", "_held", "_in_sync_changes", "_letting_go", "_metrics",
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
        self._letting_go = LettingGo(replication, flushes, in_sync_changes, wakeups, metrics)
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
        # Keys that are open, opening or offline here, by topic.
        self._held: dict[bytes, set[int]] = {}

    @property
    def opening(self) -> bool:
        """True while a partition is being opened."""
        return bool(self._openings.under_way)

    @property
    def waiting(self) -> list[Key]:
        """Those whose directories are not made yet, or cannot be made now."""
        found = [key for key, one in self._openings.under_way.items() if one.unmade]
        return [*found, *(key for key, one in self.offline.items() if one.opening.unmade)]

    def load(self, directory: DataDirectory) -> None:
        """The partitions lie there."""
        self._openings.load(directory)

    def next_us(self, *, starting: bool = False) -> int | None:
        """When the next partition is opened, for the first time or again; 0: at once."""
        open_us = self._openings.next_us()
        retry_us = None if starting else self._offline.next_us()
        return min((us for us in (open_us, retry_us) if us is not None), default=None)

    # --- what the image says -------------------------------------------------------------------
    def reconcile(
        self,
        image: Image,
        changed: Mapping[bytes, Collection[int] | None],
        now: Now,
        *,
        clean: bool = True,
        made: Collection[str] | None = (),
        open_now: bool = True,
        unmade: Collection[Key] = (),
    ) -> None:
        """Bring what is here to what the image says of these topics' partitions; None: of all.

        Args:
            clean: partitions that are opened now are new, or were left in order.
            made: names of partitions whose empty directories were made for this; None: no one's.
            open_now: False at a start, which begins to open with the next tick.
            unmade: at a start, those whose directories were never made.
        """
        self.image = image
        for topic_id, numbers in changed.items():
            topic = image.topics_by_id.get(topic_id)
            if topic is None:
                self._drop(topic_id, self._held.get(topic_id, ()), "was deleted")
                continue
            never_made = None if open_now else unmade
            for number in range(len(topic.partitions)) if numbers is None else numbers:
                assert 0 <= number < len(topic.partitions), "who decides knows the topic"
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
        unmade_at_start: Collection[Key] | None,
    ) -> None:
        key = (topic.topic_id, partition.partition)
        assert key not in self.replicas or key not in self._followed, "led or followed"
        held = self._held.setdefault(topic.topic_id, set())
        if self._config.node_id not in partition.replicas:
            if partition.partition in held:
                self._drop(topic.topic_id, (partition.partition,), "is not here any more")
        elif partition.partition not in held:
            held.add(partition.partition)
            # It may have gone, and come back before it was open, or had other files.
            if key not in self._openings.under_way and not self._repairs.is_leaving(key):
                name = TopicPartition(topic.name, partition.partition)
                new = made is not None and str(name) in made
                unmade = made is None
                if unmade_at_start is None:
                    unmade = unmade or begins_here(partition, self._config.node_id)
                else:
                    unmade = key in unmade_at_start
                self._openings.add(key, Opening(name, clean, new=new, unmade=unmade))
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
            return  # When its log is cut, the image is looked at again.
        state = replica.state
        begins = not state.leads or partition.leader_epoch != state.leader_epoch
        self._metrics.leader_epoch_changes += partition.leader_epoch != state.leader_epoch
        moved = replica.lead(partition, now)
        if begins:
            if replica.awaits_own_list:
                self._flushes.want(replica)
            self._followed.pop(key, None)
            self.replicas[key] = replica
            self._metrics.partitions_led = len(self.replicas)
        assert self.replicas.get(key) is replica
        if moved or (begins and replica.waiters) or partition.replaced_disks:
            self._wakeups.changed(replica)
        replica.look_at_answers()
        self._in_sync_changes.look_at((replica,))

    def _follow(self, key: Key, replica: Replica, partition: PartitionImage, now: Now) -> None:
        """Another broker leads, or none does."""
        assert not replica.admitted, "a produce is staged and appended before a decision is applied"
        state = replica.state
        self._metrics.leader_epoch_changes += partition.leader_epoch != state.leader_epoch
        state.follow(partition.leader_epoch)
        self._in_sync_changes.forget(replica)
        if self.replicas.pop(key, None) is not None:
            self._metrics.partitions_led = len(self.replicas)
            # Their rows are in the log and may stay: NOT_LEADER would say that nothing was stored.
            replica.answers.fail(NotEnoughReplicasAfterAppend(f"{replica.name} is led elsewhere."))
            self._wakeups.changed(replica)
        elif replica.waiters:
            # Readers of the copy: it may have another leader, or be out of sync.
            self._wakeups.changed(replica)
        self._followed[key] = replica
        self._replication.follow(key, replica, partition.leader_id, partition.leader_epoch, now)

    def reconfigure(self) -> None:
        """Every topic may be configured otherwise. Who is opened takes it over then."""
        for replica in (*self.replicas.values(), *self._followed.values()):
            self._reconfigure(replica)

    def _reconfigure(self, replica: Replica) -> None:
        """The log and the rules take the topic's configuration as it is now."""
        replica.log.config = log_config(replica.topic.config)
        if replica.state.set_durability(replica.topic.config.durability):
            self._wakeups.changed(replica)
        if replica.state.flushed_offset < replica.state.log_end_offset:
            # Rows written under `memory` become as safe as the topic promises from now on.
            self._flushes.want(replica)

    # --- opening -------------------------------------------------------------------------------
    def take_open(
        self,
        key: Key,
        name: TopicPartition,
        topic: TopicImage,
        opened: OpenedReplica,
        now: Now,
    ) -> None:
        """See `Taker`."""
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
        self._offline.forget(key)
        self._followed[key] = replica
        if key[0] not in self.image.topics_by_id or key[1] not in self._held.get(key[0], ()):
            self._drop(key[0], (key[1],), "was deleted")
        else:
            self._lead_or_follow(replica, partition, now)
            replica.log.config = log_config(topic.config)  # It may have been altered meanwhile.

    def take_failure(self, key: Key, opening: Opening, error: BaseException, now: Now) -> None:
        """See `Taker`. It is tried again where that can help."""
        if key[1] in self._held.get(key[0], ()):
            self._offline.failed(key, opening, error, now)
            self._offline.look_at(key, self.image)
            self._repairs.failed(key, error)
        else:
            # It went while it was being opened, and perhaps its directory with it.
            self.remove_leftovers({str(opening.name): key[0]})

    def take_unopened(self, key: Key, opening: Opening) -> None:
        """See `Taker`."""
        self.remove_leftovers({str(opening.name): key[0]})

    def opened(self, topic_id: bytes, now: Now) -> Callable[[Then], None]:
        """See `Openings.opened`."""
        return self._openings.opened(topic_id, now)

    def tick(self, now: Now, *, starting: bool = False) -> None:
        """Open the next partitions, and once more those that are due.

        Not while the broker is `starting`: a start ends when nothing is being opened.
        """
        self._openings.tick(now)
        for due in () if starting else self._offline.take_due(now, self.image):
            self._openings.add(*due)
        self._openings.start_jobs(now)

    def stop(self, now: Now) -> None:
        """Open no more partitions: the next start does."""
        self._openings.stop(now)

    def find(self, key: Key) -> Replica | None:
        """The replica, led or followed."""
        return self.replicas.get(key) or self._followed.get(key)

    def all_open(self) -> list[Replica]:
        """Every replica, led or followed."""
        return [*self.replicas.values(), *self._followed.values()]

    # --- letting go ----------------------------------------------------------------------------
    def _drop(self, topic_id: bytes, partitions: Collection[int], why: str) -> None:
        """Not here any more: answer those who wait, then let go of the files."""
        gone: list[Replica] = []
        for number in list(partitions):
            key = (topic_id, number)
            self._held.get(topic_id, set()).discard(number)
            offline = self._offline.forget(key)
            replica = self.replicas.pop(key, None) or self._followed.pop(key, None)
            if replica is None:
                if offline is not None and key not in self._openings.under_way:
                    self.remove_leftovers({str(offline.opening.name): topic_id})
                continue
            if replica.name.topic not in self.image.topics:
                self._metrics.topics.pop(replica.name.topic, None)
            is_moved = topic_id in self.image.topics_by_id
            kind = NotEnoughReplicasAfterAppend if is_moved else UnknownTopicId
            self._letting_go.let_go(replica, kind(f"{replica.name} {why}."))
            gone.append(replica)
        if not self._held.get(topic_id):
            self._held.pop(topic_id, None)
        self._metrics.partitions_led = len(self.replicas)
        self._removal.add(gone)

    # --- replicas whose rows are damaged (see `Holder`) ------------------------------------------
    def is_offline(self, key: Key) -> bool:
        """See `Holder`."""
        return key in self.offline and key not in self._openings.under_way

    def let_go_damaged(self, key: Key) -> tuple[TopicPartition, Replica | None]:
        """See `Holder`."""
        offline = self._offline.forget(key)
        assert key not in self.replicas, "what is led here is served"
        assert key not in self._openings.under_way
        replica = self._followed.pop(key, None)
        if replica is None:
            assert offline is not None, "it is here, or it could not be opened"
            name = offline.opening.name
        else:
            name = replica.name
            gone = NotEnoughReplicasAfterAppend(f"{name} is copied again.")
            self._letting_go.let_go(replica, gone)
        self._openings.forget_written(str(name))
        return name, replica

    def open_again(self, key: Key, name: TopicPartition, now: Now, *, new: bool) -> None:
        """See `Holder`."""
        assert self.find(key) is None
        if key[1] not in self._held.get(key[0], ()):
            self.remove_leftovers({str(name): key[0]})
        else:
            self._openings.add(key, Opening(name, clean=False, new=new))
            self._openings.start_jobs(now)

    def remove_leftovers(self, owners: Mapping[str, bytes]) -> None:
        """Remove the directories of these partitions, which are not here and not open.

        Args:
            owners: topic ids by partition name.
        """
        for name, topic_id in owners.items():
            self._openings.forget_written(name)
            self._removal.add_unopened(name, topic_id)

    def opening_deleted(self, topic_name: str) -> bytes | None:
        """Id of a deleted topic of this name, a partition of which is being opened."""
        return self._openings.deleted_of(topic_name)

    def check_left(self, key: Key) -> None:
        """Raise ThrottledBroker while a partition is here that has been decided to go."""
        held = key[1] in self._held.get(key[0], ()) or key in self._openings.under_way
        if held or self._repairs.is_leaving(key):
            raise ThrottledBroker("the partition is still on its way out: try again.")

    def check_free(self, names: Mapping[str, bytes], topic_names: Iterable[str]) -> None:
        """Raise ThrottledBroker while partitions of these names cannot be created.

        Args:
            names: topic ids by partition name.
            topic_names: of their topics.
        """
        self._removal.check_free(names)
        self._repairs.check_free(names)
        if any(self._openings.deleted_of(name) is not None for name in topic_names):
            raise ThrottledBroker(
                "the deleted topic of this name is still being opened: try again."
            )
