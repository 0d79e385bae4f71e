"""Brokers that come and go, and what their replicas hold: what elections must keep true.

Owns the world: an image that only production code changes, and beside it each replica's rows and
those that readers saw. Rows become readable by the rules alone (at least the minimum in sync, and
all of them have the row); then no election may lose one, unless it is unclean, or has asked the
logs.

Rows are *safe* that readers saw and that lie on the disks of at least the minimum in sync: what is
acknowledged at `replicated_flushed`. No election loses one of these unless it is unclean: whichever
replicas lost power or disks, however often, and whatever was reported in which life.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from quiverlog.batch.schema import serialize_schema
from quiverlog.core.controller import elections
from quiverlog.core.controller.alter_partition import alter_partition
from quiverlog.core.controller.image import Image
from quiverlog.core.controller.leaders import preferred_leader
from quiverlog.core.controller.records import (
    LEADER_GONE,
    LEADER_STAYS,
    NO_LEADER,
    BrokerChangeRecord,
    BrokerRecord,
    PartitionChangeRecord,
    Record,
    decode_entry,
    encode_entry,
)
from quiverlog.core.controller.replication_factor import factors_follow
from quiverlog.core.controller.topic_image import PartitionImage
from quiverlog.core.controller.topics import alter_topic, create_topic
from quiverlog.errors import QuiverlogError
from quiverlog.wire.replica_messages import AlterPartition

from .controller import SCHEMA
from .elections_checks import Violation, check, check_all
from .replica_logs import Key, ReplicaLogs, common

__all__ = ["ElectionsWorld", "Violation"]


class ElectionsWorld(ReplicaLogs):
    """Draws events of the metadata and the disks, and checks every election.

    Args:
        is_focused: one partition of three replicas that must not lose a row, and power that is lost
            often: what needs several things to happen in their order happens here.
    """

    def __init__(self, seed: int, *, is_focused: bool = False) -> None:
        super().__init__(seed)
        rng = self.rng
        self.is_focused = is_focused
        self.brokers = [0, 1, 2] if is_focused else list(range(rng.choice((2, 3, 3, 4, 5))))
        self.torn: dict[Key, set[int]] = {}
        """Replicas that are eligible only because no other one has a copy."""
        self.leader_of: dict[tuple[Key, int], int] = {}
        self.given_up: set[Key] = set()
        """Partitions whose last copy will not come back."""
        for node_id in self.brokers:
            self.image.replay(BrokerRecord(node_id, b"first", f"host-{node_id}", broker_epoch=0))
        self.disks = dict.fromkeys(self.brokers, 0)
        for number in range(1 if is_focused else 3):
            self._create(f"t{number}")
        check_all(self)

    def _create(self, name: str) -> None:
        factor = self.rng.randint(1, min(3, len(self.brokers)))
        configs = {
            "min.insync.replicas": str(self.rng.randint(1, 3)),
            "unclean.leader.election.enable": self.rng.choice(("false", "false", "true")),
        }
        if self.is_focused:
            factor = 3
            configs = {"min.insync.replicas": "2"}
        records = create_topic(
            self.image,
            name=name,
            schema=serialize_schema(SCHEMA),
            partitions=1 if self.is_focused else 2,
            replication_factor=factor,
            key_columns=[],
            configs=configs,
            now_us=1,
            entropy=self.rng.randbytes,
        )
        self.image.replay_entry(records)
        topic = self.image.topics[name]
        for partition in topic.partitions:
            key = (topic.topic_id, partition.partition)
            self.log[key] = {node_id: [] for node_id in partition.replicas}
            self.flushed[key] = dict.fromkeys(partition.replicas, 0)
            self.seen[key], self.torn[key], self.safe[key] = [], set(), []
            self.due[key] = 0
            self.counts[key] = len(partition.replicas)

    # --- steps ---------------------------------------------------------------------------------
    def step(self) -> None:
        """Something happens, and what must hold does."""
        focused = self.is_focused
        steps: Sequence[tuple[int, Callable[[], list[Record]]]] = (
            (16, self.append),
            (24, self.copy),
            (20, self.join),
            (2 if focused else 4, self.shrink),
            (1 if focused else 4, self.fence),
            (20, self.unfence),
            (0 if focused else 2, self.stop),
            (16 if self.dark else 1 if focused else 4, self.restart),
            (1 if focused else 2, self.configure),
            (2, self.prefer),
            (0 if focused else 3, self.elect_unclean),
            (3 if focused else 1, self.replace_disk),
            (0 if focused else 4, self.reassign),
            (0 if focused else 4, self.cancel),
            (10, self.flush),
            (2 if focused else 1, self.power),
            (16 if self.image.leaderless else 0, self.report),
            (16 if self.mail else 0, self.receive_report),
            (24 if self.dark else 0, self.lose_directory),
            (8 if self.lost else 1, self.report_damaged),
            (4, self.make_anew),
        )
        weights = [weight for weight, _ in steps]
        (step,) = self.rng.choices([what for _, what in steps], weights)
        before = self.facts()
        topics = self.image.topics.values()
        self.minimum = {one.topic_id: one.config.min_in_sync_replicas for one in topics}
        records = step()
        records += factors_follow(self.image, records)
        if records:
            self.happened[step.__name__] += 1
            # As others receive it.
            self.image.replay_entry(decode_entry(encode_entry(records)))
            if self.rng.random() < 0.02:
                self._snapshot()
        changes = [one for one in records if isinstance(one, PartitionChangeRecord)]
        self._follow(
            changes,
            before,
            is_asked=step == self.elect_unclean,
            has_left=step == self.report_damaged,
        )
        self._become_readable()
        check_all(self)

    def _snapshot(self) -> None:
        """Another controller has the metadata from a snapshot, and no reports yet."""
        image = Image({})
        image.replay_entry(self.image.snapshot_records(), version=self.image.version)
        self.image = image
        self.ends.clear()

    def _broker(self, **states: bool) -> int | None:
        """Some broker in these states that has power."""
        found = [
            node_id
            for node_id, one in self.image.brokers.items()
            if node_id not in self.dark
            and all(getattr(one, name) == value for name, value in states.items())
        ]
        return self.rng.choice(found) if found else None

    def _change(self, node_id: int, **states: bool) -> Record:
        return BrokerChangeRecord(node_id, self.image.brokers[node_id].broker_epoch, **states)

    def fence(self) -> list[Record]:
        node_id = self._broker(fenced=False)
        if node_id is None:
            return []
        return [
            self._change(node_id, fenced=True),
            *elections.broker_fenced(self.image, node_id),
        ]

    def unfence(self) -> list[Record]:
        node_id = self._broker(fenced=True, in_shutdown=False)
        if node_id is None:
            return []
        return [
            self._change(node_id, fenced=False),
            *elections.broker_unfenced(self.image, node_id),
        ]

    def stop(self) -> list[Record]:
        node_id = self._broker(fenced=False, in_shutdown=False)
        if node_id is None:
            return []
        return [
            self._change(node_id, in_shutdown=True),
            *elections.broker_shutting_down(self.image, node_id),
        ]

    def restart(self) -> list[Record]:
        """Alive or fenced; after a clean stop, or with power lost: rows at its end may be gone."""
        node_id = self.rng.choice(list(self.dark or self.brokers))
        clean = node_id not in self.dark and self.rng.random() < 0.4
        life = self._life(node_id)
        if clean:
            for key in self.log:
                self._flush(key, node_id)
            return [life, *elections.broker_fenced(self.image, node_id)]
        if node_id not in self.dark:
            self._lose_power(node_id)
        self.dark.discard(node_id)
        return [life, *elections.broker_restarted_uncleanly(self.image, node_id)]

    def _life(self, node_id: int) -> BrokerRecord:
        epoch = self.image.version + 1
        disk = f"disk-{self.disks[node_id]}"
        return BrokerRecord(
            node_id, b"%d" % epoch, broker_epoch=epoch, fenced=True, directory_id=disk
        )

    def replace_disk(self) -> list[Record]:
        """The next process with its number has nothing."""
        fenced = [n for n in self.brokers if self.image.brokers[n].fenced]
        node_id = self.rng.choice(fenced) if fenced else -1
        if not fenced or any(n != node_id and node_id in self.log[key] for key, n in self.lost):
            return []  # See `lose_directory`.
        for key, logs in self.log.items():
            if set(logs) == {node_id}:
                self.given_up.add(key)
                self.safe[key].clear()
            if node_id in logs:
                self._clear(key, node_id)
                self.lost.discard((key, node_id))
        self.disks[node_id] += 1
        self.dark.discard(node_id)
        return [self._life(node_id), *elections.disk_lost(self.image, node_id)]

    def join(self) -> list[Record]:
        """The leader proposes one that has all that it has."""
        found = self._led()
        if found is None:
            return []
        key, partition = found
        logs = self.log[key]
        fit = [
            n for n in partition.replicas
            if n not in partition.in_sync_replicas and logs[n] == logs[partition.leader_id]
            and n not in self.dark and (key, n) not in self.lost
            and (n not in partition.replaced_disks or self.flushed[key][n] >= self.due[key])
        ]  # fmt: skip
        ends = not fit and partition.moves and self._is_safe_without(key, partition)
        if not fit and not ends:
            return []
        members = [*partition.in_sync_replicas, *fit[:1]]
        return self._alter(key, partition, members, ends_move=ends)

    def _is_safe_without(self, key: Key, partition: PartitionImage) -> bool:
        """The disks of enough that stay have what is safe."""
        topic, leaving = self.partition(key)[0], partition.removing_replicas
        stay = [n for n in partition.in_sync_replicas if n not in leaving]
        has = [n for n in stay if self.flushed[key][n] >= len(self.safe[key])]
        count = len(partition.replicas) - len(leaving)
        return len(has) >= min(topic.config.min_in_sync_replicas, count)

    def shrink(self) -> list[Record]:
        found = self._led()
        if found is None:
            return []
        key, partition = found
        stay = [
            member
            for member in partition.in_sync_replicas
            if member == partition.leader_id or self.rng.random() < 0.5
        ]
        return self._alter(key, partition, stay)

    def _alter(
        self, key: Key, partition: PartitionImage, members: list[int], *, ends_move: bool = False
    ) -> list[Record]:
        brokers = self.image.brokers
        epochs = [brokers[n].broker_epoch if n in brokers else -1 for n in members]
        asked = AlterPartition(
            *key, partition.leader_epoch, partition.partition_epoch, members, epochs, ends_move
        )
        leader = partition.leader_id
        try:
            return alter_partition(self.image, leader, brokers[leader].broker_epoch, asked)
        except QuiverlogError:
            return []

    def prefer(self) -> list[Record]:
        keys = self.image.unpreferred
        return [change for key in keys for change in preferred_leader(self.image, *key)]

    def elect_unclean(self) -> list[Record]:
        keys = list(self.image.leaderless)
        if not keys or self.rng.random() < 0.7:
            return []
        key = self.rng.choice(keys)
        return elections.unclean_leader(self.image, *key, self.ends.of(self.image, *key))

    def configure(self) -> list[Record]:
        topic = self.rng.choice(list(self.image.topics.values()))
        changes: dict[str, Any] = (
            {"min.insync.replicas": str(self.rng.randint(1, 3))}
            if self.is_focused or self.rng.random() < 0.6
            else {"unclean.leader.election.enable": self.rng.choice(("false", "true"))}
        )
        return alter_topic(
            self.image, topic, set_configs=changes, delete_configs=[], partitions=-1, schema=b"",
            now_us=1,
        )  # fmt: skip

    # --- what follows --------------------------------------------------------------------------
    def facts(self) -> dict[Key, tuple[int, int, set[int], tuple[int, ...]]]:
        found = {}
        for key in self.log:
            partition = self.partition(key)[1]
            relied = {*partition.in_sync_replicas, *partition.eligible_leader_replicas}
            replaced = partition.replaced_disks
            found[key] = (partition.leader_id, partition.leader_epoch, relied, replaced)
        return found

    def _follow(
        self,
        changes: Sequence[PartitionChangeRecord],
        before: dict[Key, tuple[int, int, set[int], tuple[int, ...]]],
        *,
        is_asked: bool,
        has_left: bool,
    ) -> None:
        self.hold(changes)
        changed = {(one.topic_id, one.partition): one for one in changes}
        check(len(changed) == len(changes), "a partition changes twice in one entry")
        for key, (leader, epoch, relied, replaced) in before.items():
            topic, partition = self.partition(key)
            change, now = changed.get(key), partition.leader_id
            if now == leader:
                is_anew = change and (change.replaced_disks is not None or change.adding_replicas)
                is_over = change and (has_left or is_anew)
                is_same = partition.leader_epoch == epoch
                check(is_same or is_over, "an epoch without an election", key)
                continue
            assert change is not None
            check(change.leader_id != LEADER_STAYS, "an election that the record lacks")
            check((change.leader_id == LEADER_GONE) == (now == NO_LEADER), "gone, or not")
            self.happened["elections"] += 1
            if now == NO_LEADER:
                self.happened["left without a leader"] += 1
                continue
            broker = self.image.brokers[now]
            check(not broker.fenced and not broker.in_shutdown, "elected although gone", now)
            if change.unclean:
                self.happened["unclean elections"] += 1
                check(not relied & self.alive(), "unclean without need", key, relied)
                may_lose = topic.config.unclean_leader_election
                check(may_lose or is_asked, "unclean without being asked", key)
                check(partition.in_sync_replicas == (now,), "others in sync with an unclean one")
                check(not partition.eligible_leader_replicas, "others eligible beside an unclean")
            elif relied or len(partition.replicas) == 1:
                check(now in relied, "elected outside of in sync and eligible", key, now)
            else:
                self.happened["longest logs"] += 1
                check(now not in replaced, "a disk that was replaced leads", key, now)
            rows = self.log[key][now]
            if change.unclean or now in self.torn[key] or not relied:
                kept = common(self.seen[key], rows)
                del self.seen[key][kept:]
                if change.unclean:
                    del self.safe[key][kept:]
                    self.lost.discard((key, now))
        for key in changed:
            self.due[key] = len(self.safe[key])
        for key, torn in self.torn.items():
            _, partition = self.partition(key)
            torn.clear()
            if len(partition.eligible_leader_replicas) == 1 and not partition.in_sync_replicas:
                (last,) = partition.eligible_leader_replicas
                seen = self.seen[key]
                if self.log[key][last][: len(seen)] != seen:
                    torn.add(last)
