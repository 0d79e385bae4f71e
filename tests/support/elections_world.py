"""Brokers that come and go, and what their replicas hold: what elections must keep true.

Owns the world: an image that only production code changes, and beside it each replica's rows and
those that readers saw. Rows become readable by the rules alone (at least the minimum in sync, and
all of them have the row); then no election may lose one, unless it says so.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from quiverlog.batch.schema import serialize_schema
from quiverlog.core.controller import elections
from quiverlog.core.controller.alter_partition import alter_partition
from quiverlog.core.controller.image import Image
from quiverlog.core.controller.reassignment import cancel, reassign
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
from quiverlog.core.controller.topic_image import PartitionImage, TopicImage
from quiverlog.core.controller.topics import alter_topic, create_topic
from quiverlog.errors import QuiverlogError
from quiverlog.wire.replica_messages import AlterPartition

from .controller import SCHEMA
from .elections_checks import Violation, check, check_all

__all__ = ["ElectionsWorld", "Violation"]

Key = tuple[bytes, int]


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    """So many rows at their beginnings are the same."""
    pairs = zip(one, other, strict=False)
    return next((n for n, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))


class ElectionsWorld:
    """See the module docstring."""

    def __init__(self, seed: int) -> None:
        self.rng = rng = random.Random(seed)
        self.image = Image({})
        self.happened: Counter[str] = Counter()
        self.brokers = list(range(rng.choice((2, 3, 3, 4, 5))))
        self.log: dict[Key, dict[int, list[int]]] = {}
        self.seen: dict[Key, list[int]] = {}
        """Rows that readers saw, by partition."""
        self.torn: dict[Key, set[int]] = {}
        """Who is eligible only because nobody else is."""
        self.leader_of: dict[tuple[Key, int], int] = {}
        self.given_up: set[Key] = set()
        """Partitions whose last copy will not come back."""
        self.adding: dict[Key, set[int]] = {}  # By partitions that move.
        self.rows = 0
        for node_id in self.brokers:
            self.image.replay(BrokerRecord(node_id, b"first", f"host-{node_id}", broker_epoch=0))
        for number in range(3):
            self._create(f"t{number}")
        check_all(self)

    def _create(self, name: str) -> None:
        factor = self.rng.randint(1, min(3, len(self.brokers)))
        configs = {
            "min.insync.replicas": str(self.rng.randint(1, 3)),
            "unclean.leader.election.enable": self.rng.choice(("false", "false", "true")),
        }
        records = create_topic(
            self.image,
            name=name,
            schema=serialize_schema(SCHEMA),
            partitions=2,
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
            self.seen[key], self.torn[key] = [], set()

    # --- steps ---------------------------------------------------------------------------------
    def step(self) -> None:
        """Something happens, and what must hold does."""
        steps: Sequence[tuple[int, Callable[[], list[Record]]]] = (
            (6, self.append),
            (8, self.copy),
            (8, self.join),
            (3, self.shrink),
            (4, self.fence),
            (8, self.unfence),
            (2, self.stop),
            (3, self.restart),
            (2, self.configure),
            (2, self.prefer),
            (1, self.elect_unclean),
            (1, self.lose_disk),
            (4, self.reassign),
            (1, self.cancel),
        )
        weights = [weight for weight, _ in steps]
        (step,) = self.rng.choices([what for _, what in steps], weights)
        before = self.facts()
        records = step()
        if records:
            self.happened[step.__name__] += 1
            # As others hear of it.
            self.image.replay_entry(decode_entry(encode_entry(records)))
        changes = [one for one in records if isinstance(one, PartitionChangeRecord)]
        self._follow(changes, before, is_asked=step == self.elect_unclean)
        self._become_readable()
        check_all(self)

    def _broker(self, **states: bool) -> int | None:
        """Some broker in these states."""
        found = [
            node_id
            for node_id, one in self.image.brokers.items()
            if all(getattr(one, name) == value for name, value in states.items())
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
        node_id = self.rng.choice(self.brokers)
        clean = self.rng.random() < 0.4
        epoch = self.image.version + 1
        life = BrokerRecord(node_id, b"%d" % epoch, broker_epoch=epoch, fenced=True)
        if clean:
            if node_id not in self.image.brokers:
                return [life]
            return [life, *elections.broker_fenced(self.image, node_id)]
        for logs in self.log.values():
            if node_id in logs and self.rng.random() < 0.7:
                del logs[node_id][self.rng.randint(0, len(logs[node_id])) :]
        return [life, *elections.broker_restarted_uncleanly(self.image, node_id)]

    def lose_disk(self) -> list[Record]:
        """Who has its number next has nothing."""
        node_id = self._broker(fenced=True)
        if node_id is None or self.rng.random() < 0.7:
            return []
        for key, logs in self.log.items():
            partition = self.partition(key)[1]
            relied = {*partition.in_sync_replicas, *partition.eligible_leader_replicas}
            if relied == {node_id}:
                self.given_up.add(key)
            if node_id in logs:
                logs[node_id].clear()
        return elections.disk_lost(self.image, node_id)

    # --- a partition ---------------------------------------------------------------------------
    def partition(self, key: Key) -> tuple[TopicImage, PartitionImage]:
        topic = self.image.topics_by_id[key[0]]
        return topic, topic.partitions[key[1]]

    def _led(self) -> tuple[Key, PartitionImage] | None:
        keys = [key for key in self.log if self.partition(key)[1].leader_id != NO_LEADER]
        key = self.rng.choice(keys) if keys else None
        return None if key is None else (key, self.partition(key)[1])

    def append(self) -> list[Record]:
        found = self._led()
        if found is not None:
            self.rows += 1
            self.log[found[0]][found[1].leader_id].append(self.rows)
        return []

    def copy(self) -> list[Record]:
        """A follower cuts what its leader has not, and takes some of what that has."""
        found = self._led()
        if found is not None:
            key, partition = found
            node_id, rows = self.rng.choice(partition.replicas), self.log[key][partition.leader_id]
            own = self.log[key][node_id]
            end = self.rng.choice((len(rows), self.rng.randint(_common(own, rows), len(rows))))
            own[:] = rows[:end]
        return []

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
        ]  # fmt: skip
        ends = partition.moves and set(partition.adding_replicas) <= set(partition.in_sync_replicas)
        if not fit and not ends:
            return []
        return self._alter(key, partition, [*partition.in_sync_replicas, *fit[:1]])

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

    def _alter(self, key: Key, partition: PartitionImage, members: list[int]) -> list[Record]:
        brokers = self.image.brokers
        epochs = [brokers[n].broker_epoch if n in brokers else -1 for n in members]
        asked = AlterPartition(
            *key, partition.leader_epoch, partition.partition_epoch, members, epochs
        )
        leader = partition.leader_id
        try:
            return alter_partition(self.image, leader, brokers[leader].broker_epoch, asked)
        except QuiverlogError:
            return []

    def reassign(self) -> list[Record]:
        """To brokers of which some may be fenced, which are refused where they are new."""
        topic, partition = self.partition(self.rng.choice(list(self.log)))
        target = self.rng.sample(self.brokers, topic.replication_factor)
        try:
            return reassign(self.image, topic, partition, target)
        except QuiverlogError:
            return []

    def cancel(self) -> list[Record]:
        moving = [one for one in map(self.partition, self.log) if one[1].moves]
        try:
            return cancel(*self.rng.choice(moving)) if moving else []
        except QuiverlogError:
            return []

    def prefer(self) -> list[Record]:
        changes: list[Record] = []
        for key in self.image.unpreferred:
            changes += elections.preferred_leader(self.image, *key)
        return changes

    def elect_unclean(self) -> list[Record]:
        keys = list(self.image.leaderless)
        if not keys or self.rng.random() < 0.7:
            return []
        return elections.unclean_leader(self.image, *self.rng.choice(keys))

    def configure(self) -> list[Record]:
        topic = self.rng.choice(list(self.image.topics.values()))
        changes: dict[str, Any] = (
            {"min.insync.replicas": str(self.rng.randint(1, 3))}
            if self.rng.random() < 0.6
            else {"unclean.leader.election.enable": self.rng.choice(("false", "true"))}
        )
        return alter_topic(
            self.image, topic, set_configs=changes, delete_configs=[], partitions=-1, schema=b"",
            now_us=1,
        )  # fmt: skip

    # --- what follows --------------------------------------------------------------------------
    def facts(self) -> dict[Key, tuple[int, int, set[int]]]:
        found = {}
        for key in self.log:
            partition = self.partition(key)[1]
            relied = {*partition.in_sync_replicas, *partition.eligible_leader_replicas}
            found[key] = (partition.leader_id, partition.leader_epoch, relied)
        return found

    def _follow(
        self,
        changes: Sequence[PartitionChangeRecord],
        before: dict[Key, tuple[int, int, set[int]]],
        *,
        is_asked: bool,
    ) -> None:
        self._hold(changes)
        told = {(one.topic_id, one.partition): one for one in changes}
        check(len(told) == len(changes), "a partition changes twice in one entry")
        for key, (leader, epoch, relied) in before.items():
            topic, partition = self.partition(key)
            change, now = told.get(key), partition.leader_id
            if now == leader:
                check(partition.leader_epoch == epoch, "an epoch without an election", key)
                continue
            assert change is not None
            check(change.leader_id != LEADER_STAYS, "an election that the record does not tell of")
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
                self.given_up.discard(key)
            else:
                check(now in relied, "elected outside of in sync and eligible", key, now)
            if change.unclean or now in self.torn[key]:
                rows = self.log[key][now]
                left = [n for n, row in enumerate(self.seen[key]) if rows[n : n + 1] != [row]]
                del self.seen[key][min(left, default=len(self.seen[key])) :]
        for key, torn in self.torn.items():
            _, partition = self.partition(key)
            torn.clear()
            if len(partition.eligible_leader_replicas) == 1 and not partition.in_sync_replicas:
                (last,) = partition.eligible_leader_replicas
                seen = self.seen[key]
                if self.log[key][last][: len(seen)] != seen:
                    torn.add(last)

    def _hold(self, changes: Sequence[PartitionChangeRecord]) -> None:
        """Who is a replica no more removes its rows, and who begins to be one has none."""
        for change in changes:
            if change.replicas is None:
                continue
            key = (change.topic_id, change.partition)
            topic, partition = self.partition(key)
            logs = self.log[key]
            self.log[key] = {node_id: logs.get(node_id, []) for node_id in change.replicas}
            before = len(change.replicas) - len(change.adding_replicas or ())
            begin = self.log[key].keys() - logs.keys()
            check(begin <= self.alive(), "a replica at a broker that is not alive", key, begin)
            check(before == topic.replication_factor, "another number of replicas", key)
            added = self.adding.pop(key, set()) & set(change.replicas)
            self.adding[key] = set(partition.adding_replicas)
            if not partition.moves and added:
                self.happened["moves ended"] += 1
                in_sync = set(partition.in_sync_replicas)
                check(added <= in_sync, "a move ended early", key, added, in_sync)
                check(len(in_sync) >= topic.config.min_in_sync_replicas, "too few stay", key)

    def alive(self) -> set[int]:
        """Who may lead."""
        brokers = self.image.brokers.values()
        return {one.node_id for one in brokers if not one.fenced and not one.in_shutdown}

    def _become_readable(self) -> None:
        for key, logs in self.log.items():
            topic, partition = self.partition(key)
            minimum = topic.config.min_in_sync_replicas
            members = [logs[node_id] for node_id in partition.in_sync_replicas]
            if partition.leader_id == NO_LEADER or len(members) < minimum:
                continue
            # Who has other rows at its end is heard when it has cut them.
            led = logs[partition.leader_id]
            end = min(_common(rows, led) for rows in members)
            if end > len(self.seen[key]):
                self.seen[key] = led[:end]
